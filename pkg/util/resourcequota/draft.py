"""The draft of a plan for a ResourceQuota, which a rule set fills: entries, compensation and spec.hard. Pure.

    base → VMs → entries → spec.hard

A migration that a cap leaves out waits; the first in line is served first: by KubeVirt's priority, then by age.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add_to, marshal, minimum, total
from pkg.util import constants
from pkg.util.amounts import format_amount, format_written
from pkg.util.kubevirt.migration import Stage
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import Base, difference, hard, is_added
from pkg.util.resourcequota.entries import changes, is_by_uid, migrating_key, parse_resources, put, read
from pkg.util.resourcequota.errors import EVENT_CAP_REACHED, EVENT_IDLE_CAP, EVENT_TOO_MANY, InvalidEntry
from pkg.util.resourcequota.facts import Facts, Plan, Timers
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher_request import denied
from pkg.util.resourcequota.vm import VmUsage, vms_of

MAX_ANNOTATION_BYTES = 200 * 1024
"""An object's annotations may take 256 KiB; what is left is for others."""
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
    """The quota as it shall be, and what keeps it from that: each step of a rule set changes it."""

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
        wanted_entries: Sequence[WantedEntry],
        stays: Callable[[VmUsage], bool],
        compensation: Mapping[str, Quantity],
        *,
        may_be_unknown: bool = False,
    ) -> ResourceList:
        """Writes the wanted entries and removes others; returns what all entries add up to. `stays`: a VM's entry stays
        as it was written, though none is wanted; `may_be_unknown`: one under a uid may be that of a VMI that is not
        known."""
        keys = {entry.key for entry in wanted_entries}
        self._drop(keys, stays, may_be_unknown=may_be_unknown)
        other_entries = (entry for key, entry in self.entries.items() if key not in keys)
        entered = total({name: entry[name] for name in self.limits if name in entry} for entry in other_entries)
        self._write(sorted(wanted_entries, key=turn), entered, compensation)
        return entered

    def _write(
        self, wanted_entries: Sequence[WantedEntry], entered: ResourceList, compensation: Mapping[str, Quantity]
    ) -> None:
        """Writes entries and adds them to `entered`, as long as the caps and the annotations have room beside the
        compensation."""
        sizes = {key: len(key.encode()) + len(text.encode()) for key, text in self.annotations.items()}
        size = sum(sizes.values())
        for vm, key, desired, present in wanted_entries:
            value: ResourceList | None = desired
            size -= sizes.get(key, 0)
            if present is None or any(amount > present.get(name, ZERO) for name, amount in desired.items()):
                size_then = size + len(key + marshal(desired)) if present is None else 0
                most = total([entered, desired, compensation])
                if refusal := self.refusal(f"migration of VM {vm.name}", most, size_then):
                    if vm.stage > Stage.WITHOUT_TARGET and not vm.target:  # else nothing waits for it any more
                        self.problems.append(refusal)
                    value = minimum(desired, present) if present is not None else None
            if value is None:
                self._remove(key)
                continue
            if self.entries.get(key) != value:
                self.annotations[key] = marshal(value)
            size += len(key + self.annotations[key])
            self.invalid.pop(key, None)
            add_to(entered, value)

    def refusal(self, subject: str, headroom: Mapping[str, Quantity], size: int = 0) -> Problem | None:
        """Returns why `headroom` altogether, with `subject` in it, may not be: a cap, or Rancher; None where it may."""
        caps = self.facts.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), self.facts.max_extra
        return refuse(caps, subject, headroom, size) or denied(self.facts, subject, headroom)

    # ---- spec.hard -------------------------------------------------------------------------------------------

    def plan(self, headroom: Mapping[str, Quantity] | None = None) -> Plan:
        """Returns the plan that is drafted, with spec.hard at the base and `headroom`, None: as it is."""
        facts, policy, now = self.facts, self.policy, self.facts.now
        raised = None if headroom is None else self._raise(headroom)
        graces = [since + policy.foreign_grace for key, since in self.unexplained.items() if key in self.annotations]
        hold_ends = [since + policy.hold_limit for since in self.held_since.values()]
        charged = [max(now, end + _AFTER_GRACE) for vm in self.vms for end in vm.charged_until]
        due = min((*charged, *(end for end in (*graces, *hold_ends) if end > now)), default=float("inf"))
        return Plan(
            annotations=changes(facts.quota.annotations, self.annotations),
            hard=self.hard,
            raised=raised,
            problems=self.problems,
            timers=Timers(self.unexplained, self.held_since, denial=facts.timers.denial),
            recheck_after=due - now if due < float("inf") else None,
        )

    def _raise(self, headroom: Mapping[str, Quantity]) -> ResourceList:
        """Returns the limits that the quota shall have, and records them where a limit that Rancher wrote could not be
        told from headroom's otherwise."""
        rancher, raised = self.facts.rancher, hard(self.limits, headroom)
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


# ---- how much may be added -----------------------------------------------------------------------------------


def refuse(caps: Collection[str], subject: str, headroom: Mapping[str, Quantity], size: int = 0) -> Problem | None:
    """Returns why `headroom` altogether, or annotations of this size, are too much with `subject` in them, None when
    not. A cap that is garbage allows nothing: better to wait than to overrun it."""
    try:
        limits = [parse_resources(constants.ANNOTATION_MAX_EXTRA, text) for text in caps if text]
    except InvalidEntry as exc:
        return Problem(EVENT_CAP_REACHED, f"{exc}: nothing is added")
    for cap in limits:
        for name, limit in sorted(cap.items()):
            if headroom.get(name, ZERO) > limit:
                raised, most = format_amount(headroom[name], name), format_written(str(limit), name)
                text = f"{subject} waits: {name} would be raised by {raised}, max-extra is {most}"
                return Problem(EVENT_CAP_REACHED, text)
    if size <= MAX_ANNOTATION_BYTES:
        return None
    text = f"{subject} waits: the annotations would take {size} of {MAX_ANNOTATION_BYTES} bytes"
    return Problem(EVENT_TOO_MANY, text)


def idle(on_quota: str, on_namespace: str, hard: Collection[str]) -> list[Problem]:
    """Returns a problem for each name in `max-extra` that caps nothing: on a quota one that its spec.hard does not
    have, on a namespace, whose quotas may limit different things, one that is no resource that headroom adds."""
    absent = [(name, "spec.hard does not have it") for name in _capped(on_quota) if name not in hard]
    never = [(name, "quotas do not count it of pods or claims") for name in _capped(on_namespace) if not is_added(name)]
    return [Problem(EVENT_IDLE_CAP, f"max-extra of {name} caps nothing: {reason}") for name, reason in absent + never]


def _capped(text: str) -> list[str]:
    with suppress(InvalidEntry):  # `refuse` tells, where something is to be added
        return sorted(parse_resources(constants.ANNOTATION_MAX_EXTRA, text)) if text else []
    return []
