"""What the API server makes of resources when it reads a pod or a LimitRange.

Source: kubernetes pkg/apis/core/v1/defaults.go (SetDefaults_ResourceList, SetDefaults_Pod), 1.34.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.core import ResourceRequirements
from kubeloop.api.meta import RawQuantity, RawResourceList
from pkg.util.quantity import Quantity
from pkg.util.resource_list import parse_wire

_MILLI_IN_NANOS = 10**6


def default_list(raw: Mapping[str, RawQuantity] | None) -> RawResourceList:
    """The list with what is finer than a thousandth rounded up; everything else as it was spelled."""
    return {name: _at_least_milli(value) for name, value in (raw or {}).items()}


def default_requirements(resources: ResourceRequirements) -> ResourceRequirements:
    """A container's resources on a pod: rounded, and a request that is not given equals the limit."""
    limits = default_list(resources.limits)
    requests = default_list(resources.requests)
    for name, limit in limits.items():
        requests.setdefault(name, limit)
    return ResourceRequirements(limits=limits or None, requests=requests or None)


def _at_least_milli(raw: RawQuantity) -> RawQuantity:
    quantity = parse_wire(raw)
    if quantity.nanos % _MILLI_IN_NANOS == 0:
        return raw
    return str(Quantity(quantity.milli_value() * _MILLI_IN_NANOS, quantity.format))
