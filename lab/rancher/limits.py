"""Rancher's ResourceQuotaLimit: the annotation's JSON, its completion by a default, and the ResourceList of it. Pure.

The conversion is Rancher's own; only the names of the limits are the product's, so that the two can be compared.
Source: rancher pkg/resourcequota/quota_validate.go, resource_quota_common.go and resource_quota_sync.go.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, format_resource_list, parse_resource_list
from pkg.util.resourcequota.base import RESOURCE_NAMES

Limit = dict[str, Any]
"""ResourceQuotaLimit without its empty fields, in the order of Go's struct: `{"limitsCpu": "3", "extended": {…}}`."""
EXTENDED: Final = "extended"
_FIELDS: Final = (*RESOURCE_NAMES, EXTENDED)
_BY_LOWER_CASE: Final = {name.lower(): name for name in _FIELDS}
_BY_RESOURCE: Final = {resource: name for name, resource in RESOURCE_NAMES.items()}


class Unreadable(ValueError):
    """A limit that cannot be read; one line for people."""


def decode_annotation(text: str) -> Limit:
    """Returns the limit of a NamespaceResourceQuota. Raises Unreadable."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{text!r} is not a resource quota: {error}") from error
    return decode(_field({} if document is None else _object(document, text), "limit"), text)


def decode(document: Any, text: str = "") -> Limit:
    """Returns the limit that a JSON value is, as Go decodes it: names by any case, unknown ones left out. Raises
    Unreadable; `text` is where the value comes from."""
    text = text or json.dumps(document)
    values: Limit = {}
    for key, value in _object({} if document is None else document, text).items():
        name = key if key in _FIELDS else _BY_LOWER_CASE.get(key.lower())
        if name is None or value is None:
            continue
        if not _is_extended(value) if name == EXTENDED else not isinstance(value, str):
            raise Unreadable(f"{text!r} is not a resource quota: {key} is {json.dumps(value)}")
        values[name] = value
    return {name: values[name] for name in _FIELDS if values.get(name)}


def encode_annotation(limit: Limit) -> str:
    """Returns a NamespaceResourceQuota as Go marshals it: fields in the struct's order, map keys sorted."""
    fields = {name: limit[name] for name in _FIELDS if limit.get(name)}
    if EXTENDED in fields:
        fields[EXTENDED] = dict(sorted(fields[EXTENDED].items()))
    return json.dumps({"limit": fields}, separators=(",", ":"), ensure_ascii=False)


def complete(requested: Limit, default: Limit) -> Limit:
    """Returns the default with the requested values of the fields that the default has; `extended` is one field."""
    return {name: requested.get(name, value) for name, value in default.items()}


def resources(limit: Limit) -> ResourceList:
    """Returns the limit by the ResourceQuota's resource names; a fixed field wins over an extended one. Raises
    Unreadable."""
    texts = dict(limit.get(EXTENDED, {}))
    texts |= {RESOURCE_NAMES[name]: text for name, text in limit.items() if name != EXTENDED}
    quantities: ResourceList = {}
    for resource, text in texts.items():
        try:
            quantities[resource] = Quantity.parse(text)
        except QuantityError as error:
            raise Unreadable(f"limit {_BY_RESOURCE.get(resource, resource)} is {text!r}: {error}") from error
    return quantities


def limit_of(quantities: Mapping[str, Quantity]) -> Limit:
    """Returns the limit that a ResourceList makes."""
    texts = format_resource_list(quantities)
    fixed_fields = {_BY_RESOURCE[resource]: text for resource, text in texts.items() if resource in _BY_RESOURCE}
    extended_fields = {resource: text for resource, text in texts.items() if resource not in _BY_RESOURCE}
    limit = fixed_fields | ({EXTENDED: extended_fields} if extended_fields else {})
    return {name: limit[name] for name in _FIELDS if name in limit}


def render(annotation: str) -> dict[str, str]:
    """Returns spec.hard for an annotation that no default completes; empty when it limits nothing. Raises
    Unreadable."""
    return format_resource_list(resources(decode_annotation(annotation)))


def differs(hard: RawResourceList | None, expected: Mapping[str, Any]) -> bool:
    """Reports whether spec.hard is something else than what is wanted, by value."""
    try:
        return parse_resource_list(hard) != parse_resource_list(expected)
    except QuantityError:
        return True


def _object(value: Any, text: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(f"{text!r} is not a resource quota: an object is expected, not {json.dumps(value)}")
    return value


def _field(document: dict[str, Any], name: str) -> Any:
    """The value of the last key that Go takes for this field."""
    return next((value for key, value in reversed(document.items()) if key.lower() == name), None)


def _is_extended(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
