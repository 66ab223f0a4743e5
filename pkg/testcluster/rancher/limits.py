"""The namespace annotation as a ResourceQuota's spec.hard: Rancher's conversion, written down once more. Pure.

Not the product's own reading of the annotation: two that are made apart can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from pkg.api.meta import RawResourceList
from pkg.util.quantity import Quantity, QuantityError

LIMIT_NAMES: Final[Mapping[str, str]] = MappingProxyType(
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
"""Rancher's name of a limit to the ResourceQuota's. What is not in it and not in `extended`, Rancher ignores."""


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
        elif name in LIMIT_NAMES and isinstance(value, str) and value:
            hard[LIMIT_NAMES[name]] = _quantity(name, value)
    return hard


def differs(hard: RawResourceList | None, wanted: Mapping[str, str]) -> bool:
    """Whether spec.hard is something else than what is wanted, by value."""
    have = hard or {}
    if have.keys() != wanted.keys():
        return True
    try:
        return any(Quantity.parse(have[name]) != Quantity.parse(text) for name, text in wanted.items())
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
