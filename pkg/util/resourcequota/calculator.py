"""Arithmetic of a ResourceQuota: base + delta + compensation, and what is missing for a refused pod.

Source: Harvester pkg/util/resourcequota/calculator.go. Everything works on ResourceLists (resource name to
Quantity) and on any resource name; which ones take part is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pkg.api.meta import RawResourceList
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.quantity import ZERO, Quantity, QuantityError
from pkg.util.resource_list import ResourceList, total

COMPENSATION_MARGIN = Quantity.parse("128Mi")
"""Upstream's allowance for what KubeVirt's own estimate leaves out (additionalCompensationMemory)."""


def scaled_hard(
    base: Mapping[str, Quantity],
    entries: Iterable[Mapping[str, Quantity]],
    compensation: Mapping[str, Quantity],
) -> ResourceList:
    """spec.hard as it shall be: for each non-zero limit of the base, base + all entries + compensation.

    A resource that the base does not limit is left alone (upstream CalculateNewResourceQuotaFromBaseDelta).
    """
    delta = total([*entries, compensation])
    return {name: limit + delta.get(name, ZERO) for name, limit in base.items() if not limit.is_zero()}


def difference(hard: RawResourceList, wanted: Mapping[str, Quantity]) -> dict[str, str]:
    """The part of `wanted` that spec.hard does not already say by value, in canonical spelling."""
    return {name: str(value) for name, value in wanted.items() if not _says(hard, name, value)}


def _says(hard: RawResourceList, name: str, value: Quantity) -> bool:
    if name not in hard:
        return False
    try:
        return Quantity.parse(hard[name]) == value
    except QuantityError:
        return False


def quantity_of(resources: RawResourceList, name: str) -> Quantity:
    """A resource's quantity; absent or unreadable counts as zero (the API server lets no unreadable one in)."""
    try:
        return Quantity.parse(resources[name]) if name in resources else ZERO
    except QuantityError:
        return ZERO


def limits_are_empty(hard: RawResourceList) -> bool:
    """Whether both the cpu and the memory limit are zero or absent (upstream IsEmptyResourceQuota)."""
    return quantity_of(hard, LIMITS_CPU).is_zero() and quantity_of(hard, LIMITS_MEMORY).is_zero()


def shortage(used: Quantity, need: Quantity, hard: Quantity) -> Quantity:
    """How much of one resource is missing for a pod of `need`: used + need - hard, at least zero."""
    missing = used + need - hard
    return missing if missing > ZERO else ZERO
