"""Rancher's check of the limits that a project's namespaces request against the project's. Pure.

Source: rancher pkg/resourcequota/quota_validate.go (IsQuotaFit) and resource_quota_sync.go.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, add, format_resource_list
from lab.rancher.limits import Limit, resources


@dataclass(frozen=True, slots=True)
class Verdict:
    """The amounts that do not fit, and the condition's message: "" if all fits."""

    exceeded: ResourceList = field(default_factory=dict)
    """The project's sums that are above its limits."""
    negative: ResourceList = field(default_factory=dict)
    """The namespace's own limits below zero."""
    message: str = ""

    @property
    def fits(self) -> bool:
        return not (self.exceeded or self.negative)

    def granted(self, limit: Limit) -> ResourceList:
        """Returns spec.hard of a quota that is created: zero for what does not fit."""
        return resources(limit) | dict.fromkeys((*self.exceeded, *self.negative), ZERO)


def validate(namespace_limit: Limit, other_limits: Iterable[Limit], project_limit: Limit) -> Verdict:
    """Compares what all namespaces request, negative limits as zero, with the project's limits: those that it has.

    Raises Unreadable for any limit that cannot be read.
    """
    requested = resources(namespace_limit)
    total = _not_negative(requested)
    for other_limit in other_limits:
        total = add(total, _not_negative(resources(other_limit)))
    exceeded = _excess(total, resources(project_limit))
    negative = {name: limit for name, limit in requested.items() if limit < ZERO}
    parts = (("Oversubscribed", exceeded), ("Negative", negative))
    message = "; ".join(f"{word} resource quota [{_listing(quantities)}]" for word, quantities in parts if quantities)
    return Verdict(exceeded, negative, message)


def validate_together(namespace_limit: Limit, other_limits: Iterable[Limit], project_limit: Limit) -> Verdict:
    """Compares as `validate`, in releases that do not tell negative limits apart: they make room for others. Raises
    Unreadable."""
    requested = resources(namespace_limit)
    total = add(sum_of(other_limits), requested)
    names = (*_excess(total, resources(project_limit)), *(name for name, limit in requested.items() if limit < ZERO))
    exceeded = {name: total[name] for name in names}
    return Verdict(exceeded, message=f"Resource quota [{_listing(exceeded)}] exceeds project limit" if exceeded else "")


def sum_of(limits: Iterable[Limit]) -> ResourceList:
    """Returns the sum of limits, negative ones too. Raises Unreadable."""
    total: ResourceList = {}
    for limit in limits:
        total = add(total, resources(limit))
    return total


def _excess(total: ResourceList, limits: ResourceList) -> ResourceList:
    return {name: total[name] for name in limits if name in total and total[name] > limits[name]}


def _not_negative(quantities: ResourceList) -> ResourceList:
    return {name: max(quantity, ZERO) for name, quantity in quantities.items()}


def _listing(quantities: ResourceList) -> str:
    return ",".join(sorted(f"{name}={text}" for name, text in format_resource_list(quantities).items()))
