"""What a window adds to a quota: min(source, target) of every VM that migrates, and no more than the budget. Pure.

The base pays for what a VM has grown by, as in the annotation strategy: the same rules say what a side is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import msgspec

from kubeloop.api.core import ResourceQuota
from pkg.util.managedtenantquota.missing_targets import Missing, need_of, with_largest_defaults
from pkg.util.managedtenantquota.model import Observed
from pkg.util.managedtenantquota.record import Record
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, minimum, parse_resource_list, total
from pkg.util.resourcequota.balance import Balance
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.vm import Vm
from pkg.util.resourcequota.vms import vms_of


class Grant:
    """One quota, what is added to it for the migrations that are let in so far, and what their targets will use."""

    def __init__(
        self, quota: ResourceQuota, record: Record | None, observed: Observed, most: Mapping[str, Quantity]
    ) -> None:
        """`record`: how it was, where it is raised; `most`: what may be added. Raises QuantityError."""
        hard = quota.spec.hard if record is None else record.hard
        self.name = quota.name
        self.spec = msgspec.structs.replace(quota.spec, hard=hard)
        self.quota = msgspec.structs.replace(quota, spec=self.spec)
        self.hard = parse_resource_list(hard)
        self.used = parse_resource_list(quota.used)
        self._observed = observed
        self._most = most
        self._needed: ResourceList = {}
        self._added: dict[str, ResourceList] = {}

    def refuses(self, missing: Missing) -> bool:
        """Whether it refuses the pod that is created next, as it was before. Raises QuantityError."""
        return bool(Balance(self.hard, self.used).short(self._need(missing)[0]))

    def lacks(self, missing: Missing) -> list[str]:
        """The resources in which it refuses the target even when raised, beside the others. Raises QuantityError."""
        needed = total([self._needed, self._need(missing)[1]])
        return sorted(Balance(self.raised(missing), self.used).short(needed))

    def raised(self, missing: Missing) -> ResourceList:
        """What it would be raised to with this migration. Where its VM has grown, without what is added for pods that
        are there: one that has just ended may be in the cache and not in `used`, and the growth would be let in for
        it. Raises QuantityError."""
        need, own = self._need(missing)[1], {missing.vmi.name: self._wanted(missing)}
        added, alone = self._sum({**self._under_way, **self._added, **own}), self._sum({**self._added, **own})
        has_grown = {name for name, amount in need.items() if amount > own[missing.vmi.name].get(name, ZERO)}
        return {
            name: limit + (alone if name in has_grown else added).get(name, ZERO) for name, limit in self.hard.items()
        }

    def let_in(self, missing: Missing, *, pending: bool) -> None:
        """Add what is granted to it. `pending`: its pods are not in `used` yet. Raises QuantityError."""
        self._added[missing.vmi.name] = self._wanted(missing)
        if pending:
            self._needed = total([self._needed, self._need(missing)[1]])

    @property
    def added(self) -> ResourceList:
        """What is added for all that are let in, and for all VMs whose migration is under way."""
        return self._sum({**self._under_way, **self._added})

    def compared(self, missing: Missing, name: str) -> tuple[Quantity, ...]:
        """Of a resource: requested, used, limited, and the limit with what may be added."""
        used = self.used.get(name, ZERO)
        return self._need(missing)[1][name], used, self.hard[name], self.raised(missing)[name]

    def _need(self, missing: Missing) -> tuple[ResourceList, ResourceList]:
        return need_of(missing, self._observed.facts.rendering, self.spec)

    def _wanted(self, missing: Missing) -> ResourceList:
        vm = self._vms.get(missing.vmi.name)
        return vm.wanted if vm else {}

    def _sum(self, of_vms: Mapping[str, ResourceList]) -> ResourceList:
        granted = minimum(self._most, total(of_vms.values()))
        return {name: amount for name, amount in granted.items() if name in self.hard}

    @property
    def _under_way(self) -> Mapping[str, ResourceList]:
        return {name: vm.granted for name, vm in self._vms.items()}

    @cached_property
    def _vms(self) -> Mapping[str, Vm]:
        facts, now = self._observed.facts, self._observed.now
        rendering = with_largest_defaults(facts.rendering)
        facts = replace(facts, quota=self.quota, rendering=rendering, now=now)
        return {vm.name: vm for vm in vms_of(facts, EXACT, Base(None))[0]}
