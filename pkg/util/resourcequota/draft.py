"""The draft of a plan for a ResourceQuota, which a rule set fills: entries, compensation and spec.hard. Pure.

    base → VMs → entries → spec.hard

A migration that a cap leaves out waits; the first in line is served first: by KubeVirt's priority, then by age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add_to, marshal, minimum, total
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import Base, difference, hard
from pkg.util.resourcequota.caps import refuse
from pkg.util.resourcequota.entries import changes, is_by_uid, migrating_key, put, read
from pkg.util.resourcequota.errors import InvalidEntry
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher_request import denied
from pkg.util.resourcequota.timers import Timers
from pkg.util.resourcequota.vm import VmUsage
from pkg.util.resourcequota.vms import vms_of

_AFTER_GRACE = 0.05
"""Seconds: Kubernetes still charges a pod at the very moment at which its grace ends."""


class WantedEntry(NamedTuple):
    """`present` is the VM's present entry, under any form of the key; None: there is none."""

    vm: VmUsage
    key: str
    value: ResourceList
    present: ResourceList | None = None


@dataclass(slots=True)
class QuotaDraft:
    """What a quota shall say, and what keeps it from that: each step of a rule set changes it."""

    facts: Facts
    policy: Policy
    base: Base
    default: bool
    """It is Rancher's default quota."""
    annotations: dict[str, str]
    """As they shall be; the rule set has marked them."""
    hard: dict[str, str] = field(default_factory=dict)
    """The changes of spec.hard."""
    unexplained: dict[str, float] = field(default_factory=dict)
    """By the keys of entries that no migration explains: since when, also of one that goes. That may not be written,
    and is then due at once."""
    held_since: dict[str, float] = field(default_factory=dict)
    """By the uids of leftovers."""
    limits: ResourceList = field(init=False)
    """The base's; empty: there are none."""
    vms: list[VmUsage] = field(init=False)
    problems: list[Problem] = field(init=False)
    entries: dict[str, ResourceList] = field(init=False)
    """What each entry adds, by key; one that is removed is neither here nor in `invalid`."""
    compensation: ResourceList = field(init=False)
    """The present one."""
    invalid: dict[str, InvalidEntry] = field(init=False)
    """Why the others add nothing."""

    def __post_init__(self) -> None:
        self.limits = self.base.limits or {}
        self.vms, self.problems = vms_of(self.facts, self.policy, self.base)
        self.problems += self.base.problems
        self.entries, self.compensation, self.invalid = read(self.annotations)
        self.invalid.pop(constants.ANNOTATION_MIGRATING_COMPENSATION, None)  # headroom's to write
        if self.annotations.get(constants.ANNOTATION_RESYNC_NEEDED) == constants.TRUE and self.base.limits is not None:
            self.annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.FALSE  # Harvester's order to compute again

    # ---- entries ---------------------------------------------------------------------------------------------

    def _drop(self, keys: Set[str], stays: Callable[[VmUsage], bool], *, may_be_unknown: bool) -> None:
        """Removes the entries that nothing accounts for any longer: at once those of VMs whose migrations are over,
        other forms of the keys that are wanted, and headroom's own that no migration explains; after the grace the
        others.

        A name key on a quota that carried headroom's mark already is its own, unless it was found there when the quota
        was taken over: then the timers have it.
        """
        quota, now, since = self.facts.quota, self.facts.now, self.facts.timers.unexplained
        owned = (constants.ANNOTATION_OWNER if self.default else constants.ANNOTATION_BASE) in quota.annotations
        vms = {key: vm for vm in self.vms for key in vm.keys}
        for key in sorted({*self.entries, *self.invalid} - keys):
            vm = vms.get(key)
            if vm is not None and stays(vm):
                continue
            is_over = vm is not None and (vm.migrations or migrating_key(vm.name) in keys)
            if is_over or (owned and not is_by_uid(key) and key not in since):
                self._remove(key)
            elif not (may_be_unknown and is_by_uid(key)):
                self.unexplained[key] = since.get(key, now)
                if now - self.unexplained[key] >= self.policy.foreign_grace:
                    self._remove(key)

    def _remove(self, key: str) -> None:
        for by_key in (self.annotations, self.entries, self.invalid):
            by_key.pop(key, None)

    def enter(
        self,
        wanted: Sequence[WantedEntry],
        stays: Callable[[VmUsage], bool],
        compensation: Mapping[str, Quantity],
        *,
        may_be_unknown: bool = False,
    ) -> ResourceList:
        """Writes the wanted entries and removes others; returns what all entries add up to. `stays`: a VM's entry stays
        as it was written, though none is wanted; `may_be_unknown`: one under a uid may be that of a VMI that is not
        known."""
        keys = {entry.key for entry in wanted}
        self._drop(keys, stays, may_be_unknown=may_be_unknown)
        others = (entry for key, entry in self.entries.items() if key not in keys)
        added = total({name: entry[name] for name in self.limits if name in entry} for entry in others)
        self._write(sorted(wanted, key=turn), added, compensation)
        return added

    def _write(self, wanted: Sequence[WantedEntry], added: ResourceList, compensation: Mapping[str, Quantity]) -> None:
        """Writes entries and adds them to `added`, as long as the caps and the annotations have room beside the
        compensation."""
        sizes = {key: len(key.encode()) + len(text.encode()) for key, text in self.annotations.items()}
        size = sum(sizes.values())
        for vm, key, wanted_value, present in wanted:
            value: ResourceList | None = wanted_value
            size -= sizes.get(key, 0)
            if present is None or any(amount > present.get(name, ZERO) for name, amount in wanted_value.items()):
                then = size + len(key + marshal(wanted_value)) if present is None else 0
                most = total([added, wanted_value, compensation])
                if refusal := self.refusal(f"migration of VM {vm.name}", most, then):
                    if vm.stage > Stage.ANNOUNCED and not vm.target:  # else nothing waits for it any more
                        self.problems.append(refusal)
                    value = minimum(wanted_value, present) if present is not None else None
            if value is None:
                self._remove(key)
                continue
            if self.entries.get(key) != value:
                self.annotations[key] = marshal(value)
            size += len(key + self.annotations[key])
            self.invalid.pop(key, None)
            add_to(added, value)

    def refusal(self, what: str, added: Mapping[str, Quantity], size: int = 0) -> Problem | None:
        """Returns why `added` altogether, with `what` in it, may not be: a cap, or Rancher; None where it may."""
        caps = self.facts.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), self.facts.max_extra
        return refuse(caps, what, added, size) or denied(self.facts, what, added)

    # ---- spec.hard -------------------------------------------------------------------------------------------

    def plan(self, added: Mapping[str, Quantity] | None = None) -> Plan:
        """Returns the plan that is drafted, with spec.hard at the base and what is `added`, None: as it is."""
        facts, policy, now = self.facts, self.policy, self.facts.now
        raised = None if added is None else self._raise(added)
        graces = [at + policy.foreign_grace for key, at in self.unexplained.items() if key in self.annotations]
        holds = [at + policy.hold_limit for at in self.held_since.values()]
        charged = [max(now, at + _AFTER_GRACE) for vm in self.vms for at in vm.charged_until]
        due = min((*charged, *(at for at in (*graces, *holds) if at > now)), default=float("inf"))
        return Plan(
            annotations=changes(facts.quota.annotations, self.annotations),
            hard=self.hard,
            raised=raised,
            problems=self.problems,
            timers=Timers(self.unexplained, self.held_since, denial=facts.timers.denial),
            recheck_after=due - now if due < float("inf") else None,
        )

    def _raise(self, added: Mapping[str, Quantity]) -> ResourceList:
        """Returns the limits that the quota shall have, and records them where a limit that Rancher wrote could not be
        told from headroom's otherwise."""
        rancher, raised = self.facts.rancher, hard(self.limits, added)
        if not self.default or (rancher.granted is not None and not rancher.asks):
            is_raised = raised != self.limits
            put(self.annotations, constants.ANNOTATION_APPLIED, raised if is_raised else None)
            if self.default:
                put(self.annotations, constants.ANNOTATION_BASE, self.base.record if is_raised else None)
        self.hard |= difference(self.facts.quota.hard, raised)
        return raised


def turn(entry: WantedEntry) -> tuple[bool, int, str]:
    """Orders what waits behind what is there."""
    return entry.present is None, -entry.vm.priority, entry.vm.since
