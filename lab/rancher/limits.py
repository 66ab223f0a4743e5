"""The namespace annotation as a ResourceQuota's spec.hard: Rancher's conversion, written down once more. Pure.

Only the names are the product's own: two readings that are made apart can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import parse_resource_list
from pkg.util.resourcequota.base import RESOURCE_NAMES


class Unreadable(ValueError):
    """The annotation says nothing that can be rendered; one line for people."""


class _Annotation(msgspec.Struct):
    """NamespaceResourceQuota (management.cattle.io/v3)."""

    limit: dict[str, str | dict[str, str] | None] | None = None


def render(annotation: str) -> dict[str, str]:
    """spec.hard of the default quota; empty when the annotation limits nothing. Raises Unreadable."""
    hard: dict[str, str] = {}
    for name, value in _limits(annotation).items():
        if name == "extended" and isinstance(value, dict):
            hard |= {resource: _quantity(resource, text) for resource, text in value.items()}
        elif name in RESOURCE_NAMES and isinstance(value, str) and value:
            hard[RESOURCE_NAMES[name]] = _quantity(name, value)
    return hard


def differs(hard: RawResourceList | None, wanted: Mapping[str, str]) -> bool:
    """Whether spec.hard is something else than what is wanted, by value."""
    try:
        return parse_resource_list(hard) != parse_resource_list(wanted)
    except QuantityError:
        return True


def _limits(annotation: str) -> dict[str, str | dict[str, str] | None]:
    try:
        return msgspec.json.decode(annotation, type=_Annotation).limit or {}
    except msgspec.DecodeError as error:
        raise Unreadable(f"{annotation!r} is not a resource quota: {error}") from error


def _quantity(name: str, text: str) -> str:
    try:
        return str(Quantity.parse(text))
    except QuantityError as error:
        raise Unreadable(f"limit {name} is {text!r}: {error}") from error
