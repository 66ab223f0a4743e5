"""The base: what Rancher's namespace annotation grants, before anything is added for migrations.

Source: rancher `NamespaceResourceQuota` (management.cattle.io/v3) and Harvester pkg/util/resourcequota.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from pkg.util.quantity import Quantity, QuantityError
from pkg.util.resourcequota.errors import InvalidBaseQuantity, InvalidNamespaceAnnotation

RESOURCE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "pods": "pods",
        "services": "services",
        "replicationControllers": "replicationcontrollers",
        "secrets": "secrets",
        "configMaps": "configmaps",
        "persistentVolumeClaims": "persistentvolumeclaims",
        "servicesNodePorts": "services.nodeports",
        "servicesLoadBalancers": "services.loadbalancers",
        "requestsCpu": "requests.cpu",
        "requestsMemory": "requests.memory",
        "requestsStorage": "requests.storage",
        "limitsCpu": "limits.cpu",
        "limitsMemory": "limits.memory",
    }
)
"""Rancher's name of a limit to the ResourceQuota's."""

_FOLDED = {name.lower(): name for name in RESOURCE_NAMES}


@lru_cache(maxsize=4096)
def parse_limits(annotation: str) -> Mapping[str, str]:
    """The annotation's limits as text, by the ResourceQuota's resource names; empty ones are left out.

    Names match as Go's JSON decoder matches them: exactly, else by folded case. `null` is no limit at all.
    Raises InvalidNamespaceAnnotation when the text is not JSON of Rancher's shape.
    """
    try:
        document = json.loads(annotation)
    except (ValueError, RecursionError) as exc:
        raise InvalidNamespaceAnnotation(f"field.cattle.io/resourceQuota is not JSON: {exc}") from exc
    limit = _field(_object(document, "the document"), "limit")
    limits: dict[str, str] = {}
    for key, value in _object(limit, "limit").items():
        name = key if key in RESOURCE_NAMES else _FOLDED.get(key.lower())
        if name is None:
            limits |= _extended(key, value)
        elif isinstance(value, str):
            limits[RESOURCE_NAMES[name]] = value
        elif value is not None:
            raise InvalidNamespaceAnnotation(
                f"field.cattle.io/resourceQuota: {key} must be a string, not {value!r}"
            )
    return MappingProxyType({name: value for name, value in limits.items() if value})


def parse_base(annotation: str) -> Mapping[str, Quantity]:
    """The annotation's limits as quantities, by the ResourceQuota's resource names.

    Raises InvalidNamespaceAnnotation, or InvalidBaseQuantity naming the limit that does not parse. Only the
    limits that headroom adds to must parse; a strange `secrets` limit is Rancher's affair.
    """
    base: dict[str, Quantity] = {}
    for name, text in parse_limits(annotation).items():
        try:
            base[name] = Quantity.parse(text)
        except QuantityError as exc:
            if name in ("limits.cpu", "limits.memory"):
                raise InvalidBaseQuantity(
                    f"field.cattle.io/resourceQuota: {name} is {text!r}: {exc}"
                ) from exc
    return base


def _object(value: object, what: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidNamespaceAnnotation(f"field.cattle.io/resourceQuota: {what} must be an object")
    return value


def _field(document: Mapping[str, object], name: str) -> object:
    """A field as Go decodes it: the last one whose name matches when case is folded."""
    found: object = None
    for key, value in document.items():
        if key.lower() == name:
            found = value
    return found


def _extended(key: str, value: object) -> dict[str, str]:
    """Rancher's `extended` map carries resource names as they are (extended resources)."""
    if key.lower() != "extended" or not isinstance(value, dict):
        return {}
    return {name: text for name, text in value.items() if isinstance(text, str)}
