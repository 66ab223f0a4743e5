"""What is free in a ResourceQuota: the base, less what is used beside its migrations. Pure.

The one answer for the reserve, for the check whether a VM can start, and for the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList


@dataclass(frozen=True, slots=True)
class Balance:
    """One quota at one moment: `base` by resource name (a limit that is zero or absent limits nothing), `used` by all
    pods, `promised`: how much of `used` is the migrations', which goes when they are over."""

    base: Mapping[str, Quantity]
    used: Mapping[str, Quantity]
    promised: Mapping[str, Quantity]

    def free(self, name: str) -> Quantity | None:
        """What is left of one resource, maybe less than nothing; None where the base does not limit it."""
        limit = self.base.get(name, ZERO)
        if limit.is_zero():
            return None
        return limit - self.used.get(name, ZERO) + self.promised.get(name, ZERO)

    def short(self, need: Mapping[str, Quantity]) -> ResourceList:
        """The resources in which a pod of `need` does not fit, and what is left of each."""
        found: ResourceList = {}
        for name, amount in need.items():
            left = self.free(name)
            if left is not None and amount > max(ZERO, left):
                found[name] = left
        return found
