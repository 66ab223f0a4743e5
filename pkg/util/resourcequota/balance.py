"""The balance of a ResourceQuota: its limits, less what is used beside migrations. Pure.

The one answer: for the reserve, for the check whether a VM can start, for a budget's windows, and for the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of one quota: `limits` by resource name (a resource without a limit is absent), `used` by all pods,
    `promised`: the part of `used` that is the migrations', which goes when they are over.

    Source of the rule: kubernetes apiserver plugin/resourcequota CheckRequest, 1.34."""

    limits: Mapping[str, Quantity]
    used: Mapping[str, Quantity]
    promised: Mapping[str, Quantity] = field(default_factory=dict)

    def remainder(self, name: str) -> Quantity | None:
        """Returns what one resource has left, maybe less than nothing; None where it is not limited."""
        if name not in self.limits:
            return None
        return self.limits[name] - self.used.get(name, ZERO) + self.promised.get(name, ZERO)

    def lacking_resources(self, need: Mapping[str, Quantity]) -> ResourceList:
        """Returns the resources in which a pod of `need` does not fit, and what each has left. A resource that the pod
        does not need is left out."""
        remainders = {name: self.remainder(name) for name, amount in need.items() if amount > ZERO}
        return {
            name: remainder
            for name, remainder in remainders.items()
            if remainder is not None and need[name] > remainder
        }


def shortage(used: Quantity, need: Quantity, hard: Quantity) -> Quantity:
    """Returns how much of one resource is missing for a pod of `need`: used + need - hard, at least zero."""
    missing = used + need - hard
    return missing if missing > ZERO else ZERO
