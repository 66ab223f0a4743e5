"""What is free under the limits of a ResourceQuota: the limits, less what is used beside migrations. Pure.

The one answer: for the reserve, for the check whether a VM can start, for a budget's windows, and for the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList


@dataclass(frozen=True, slots=True)
class Balance:
    """One quota at one moment: `limits` by resource name (what has none is not limited), `used` by all pods,
    `promised`: how much of `used` is the migrations', which goes when they are over.

    Source of the rule: kubernetes apiserver plugin/resourcequota CheckRequest, 1.34.
    """

    limits: Mapping[str, Quantity]
    used: Mapping[str, Quantity]
    promised: Mapping[str, Quantity] = field(default_factory=dict)

    def free(self, name: str) -> Quantity | None:
        """What is left of one resource, maybe less than nothing; None where it is not limited."""
        if name not in self.limits:
            return None
        return self.limits[name] - self.used.get(name, ZERO) + self.promised.get(name, ZERO)

    def short(self, need: Mapping[str, Quantity]) -> ResourceList:
        """The resources in which a pod of `need` does not fit, and what is left of each. What it does not need is not
        looked at."""
        left = {name: self.free(name) for name, amount in need.items() if amount > ZERO}
        return {name: free for name, free in left.items() if free is not None and need[name] > free}


def shortage(used: Quantity, need: Quantity, hard: Quantity) -> Quantity:
    """How much of one resource is missing for a pod of `need`: used + need - hard, at least zero."""
    missing = used + need - hard
    return missing if missing > ZERO else ZERO
