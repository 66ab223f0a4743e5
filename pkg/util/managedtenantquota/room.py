"""What a quota has room for while a window adds to it: min(source, target) of every VM that migrates, and no more than
the budget. Pure.

The base pays for what a VM has grown by, as in the annotation strategy: the same rules say what a side is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from kubeloop.api.core import ResourceQuota
from pkg.util.amounts import compared
from pkg.util.managedtenantquota.missing_targets import Missing
from pkg.util.managedtenantquota.record import Record
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, minimum, parse_resource_list, total
from pkg.util.resourcequota.balance import Balance
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.vms import vms_of


class Room:
    """One quota, what is added to it for the migrations that are let in so far, and what their targets will use."""

    def __init__(self, quota: ResourceQuota, record: Record | None, facts: Facts, most: Mapping[str, Quantity]) -> None:
        """`record`: how it was, where it is raised; `most`: what may be added. Raises QuantityError."""
        hard = quota.hard if record is None else record.hard
        spec = msgspec.structs.replace(quota.spec, hard=hard)
        self.name, self.quota = quota.name, quota
        self._hard, self._used, self._most = parse_resource_list(hard), parse_resource_list(quota.used), most
        self._facts = replace(facts, quota=msgspec.structs.replace(quota, spec=spec))
        vms = vms_of(self._facts, EXACT, Base(None))[0]
        self._granted = {vm.name: vm.granted for vm in vms}
        self._wanted = {vm.name: vm.wanted for vm in vms}
        self._let_in: dict[str, ResourceList] = {}
        self._needed: ResourceList = {}

    def refuses(self, missing: Missing) -> bool:
        """Whether it refuses the pod that is created next, as it was before. Raises QuantityError."""
        return bool(Balance(self._hard, self._used).short(missing.need(self._facts).next))

    def shortages(self, missing: Missing) -> dict[str, str]:
        """In which resources it refuses the target even when raised, beside the others, and a text for each. Raises
        QuantityError."""
        need, raised = missing.need(self._facts).all, self._raised(missing)
        found = {}
        for name in sorted(Balance(raised, self._used).short(total([self._needed, need]))):
            amounts = compared(name, need[name], self._used.get(name, ZERO), self._hard[name], raised[name])
            said = "{} of quota {}: requested {}, used {}, limited {}, with what may be added {}"
            found[f"{self.name}/{name}"] = said.format(name, self.name, *amounts)
        return found

    def let_in(self, missing: Missing) -> None:
        """Add what is granted to it. Raises QuantityError."""
        self._let_in |= self._own(missing)
        self._needed = total([self._needed, missing.need(self._facts).all])

    @property
    def added(self) -> ResourceList:
        """What is added for all that are let in, and for all VMs whose migration is under way."""
        return self._sum(self._granted | self._let_in)

    def _raised(self, missing: Missing) -> ResourceList:
        """What it would be raised to with this migration. Where its VM has grown, without what is added for pods that
        are there: one that has just ended may be in the cache and not in `used`, and the growth would be let in for
        it."""
        own = self._own(missing)
        alone, added = self._sum(self._let_in | own), self._sum(self._granted | self._let_in | own)
        wanted = own[missing.vmi.name]
        has_grown = {n for n, amount in missing.need(self._facts).all.items() if amount > wanted.get(n, ZERO)}
        return {n: limit + (alone if n in has_grown else added).get(n, ZERO) for n, limit in self._hard.items()}

    def _own(self, missing: Missing) -> dict[str, ResourceList]:
        return {missing.vmi.name: self._wanted.get(missing.vmi.name, {})}

    def _sum(self, of_vms: Mapping[str, ResourceList]) -> ResourceList:
        granted = minimum(self._most, total(of_vms.values()))
        return {name: amount for name, amount in granted.items() if name in self._hard}
