"""The draft of a plan for a ResourceQuota, which a rule set fills: entries, compensation and spec.hard. Pure.

    base → VMs → entries → spec.hard

A migration that a cap leaves out waits; the first in line is served first: by KubeVirt's priority, then by age."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add_to, marshal, minimum, parse_resource_list, total
from pkg.util import constants
from pkg.util.amounts import format_amount, format_distinctly, format_written
from pkg.util.kubevirt.migration import Stage
from pkg.util.problems import EVENT_CAP_REACHED, EVENT_IDLE_CAP, EVENT_TOO_MANY, InvalidEntry, Problem
from pkg.util.resourcequota.base import Base, difference, hard, is_scaled
from pkg.util.resourcequota.entries import changes, is_by_uid, migrating_key, names_by_key, parse_resources, put, read
from pkg.util.resourcequota.facts import Facts, Plan, Timers
from pkg.util.resourcequota.managed import is_ours
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher_request import denied
from pkg.util.resourcequota.vm import VmUsage, vms_of

MAX_ANNOTATION_BYTES = 200 * 1024
"""An object's annotations may take 256 KiB; what is left is for others."""
_MOST_NAMES = 5
_AFTER_GRACE = 0.05
"""Seconds: Kubernetes still charges a pod at the very moment at which its grace ends."""


class WantedEntry(NamedTuple):
    """`present` is the VM's present entry, under any form of the key; None: there is none."""

    vm: VmUsage
    key: str
    value: ResourceList
    present: ResourceList | None = None

    @property
    def turn(self) -> tuple[bool, int, str]:
        """Orders what waits behind what is there."""
        return self.present is None, -self.vm.priority, self.vm.since


class QuotaDraft:
    """The quota as it shall be, and what keeps it from that. Each step of a rule set, a subclass, changes it."""

    def __init__(self, facts: Facts, policy: Policy, base: Base, annotations: dict[str, str]) -> None:
        """`annotations`: as they shall be; the rule set has marked them."""
        self.facts, self.policy, self.base, self.annotations = facts, policy, base, annotations
        self.limits = base.limits or {}
        self._caps = facts.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), facts.max_extra
        self.hard: dict[str, str] = {}
        self.unexplained: dict[str, float] = {}
        """By the keys of entries that no migration explains: since when, also of one that goes. That may not be
        written, and is then due at once."""
        self.held_since: dict[str, float] = {}
        """By the uids of leftovers."""
        self.vms, self.problems = vms_of(facts, policy, base)
        self.problems += base.problems
        # By key what an entry adds, or why it adds nothing; one that is removed is in neither.
        self.entries, self.compensation, self.invalid = read(annotations)
        self.invalid.pop(constants.ANNOTATION_MIGRATING_COMPENSATION, None)  # headroom's to write
        if annotations.get(constants.ANNOTATION_RESYNC_NEEDED) == constants.TRUE and base.limits is not None:
            annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.FALSE  # Harvester's order to compute again

    def _drop(self, keys: Set[str], stays: Callable[[VmUsage], bool], *, may_be_unknown: bool) -> None:
        """Removes the entries that nothing accounts for any longer: at once those of VMs whose migrations are over,
        other forms of the keys that are wanted, and headroom's own that no migration explains; after the grace the
        others. A name key on a quota with headroom's mark is its own, unless the timers have it since the takeover."""
        now, since = self.facts.now, self.facts.timers.unexplained
        mark = constants.ANNOTATION_OWNER if self.base.is_default else constants.ANNOTATION_BASE
        vms = {key: vm for vm in self.vms for key in vm.keys}
        for key in sorted({*self.entries, *self.invalid} - keys):
            vm = vms.get(key)
            if vm is not None and stays(vm):
                continue
            is_over = vm is not None and (vm.migrations or migrating_key(vm.name) in keys)
            is_own = mark in self.facts.quota.annotations and not is_by_uid(key) and key not in since
            if not (is_over or is_own):
                if may_be_unknown and is_by_uid(key):
                    continue
                self.unexplained[key] = min(since.get(key, now), now)
            if is_over or is_own or now - self.unexplained[key] >= self.policy.foreign_grace:
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
        """Writes the wanted entries, as long as the caps and the annotations have room beside the compensation, and
        removes others; returns what all entries add up to. `stays`: a VM's entry stays as it was written, though none
        is wanted; `may_be_unknown`: one under a uid may be that of a VMI that is not known."""
        keys = {entry.key for entry in wanted_entries}
        self._drop(keys, stays, may_be_unknown=may_be_unknown)
        other_entries = (entry for key, entry in self.entries.items() if key not in keys)
        entered = total({name: entry[name] for name in self.limits if name in entry} for entry in other_entries)
        size = _size({key: text for key, text in self.annotations.items() if key not in keys})
        for wanted in sorted(wanted_entries, key=lambda entry: entry.turn):
            key = wanted.key
            value = self._value_of(wanted, total([entered, wanted.value, compensation]), size)
            if value is None:
                self._remove(key)
                continue
            if self.entries.get(key) != value:
                self.annotations[key] = marshal(value)
            size += _size({key: self.annotations[key]})
            self.invalid.pop(key, None)
            add_to(entered, value)
        self.problems += idle(self._caps, self.facts.quota.hard)
        return entered

    def _value_of(self, wanted: WantedEntry, most: ResourceList, size: int) -> ResourceList | None:
        """Returns the wanted entry's value, no more than the present one where there is no room for `most`, all that is
        added with it; None: there is none. `size`: of the other annotations, without entries that wait."""
        vm, key, value, present = wanted
        if present is not None and all(amount <= present.get(name, ZERO) for name, amount in value.items()):
            return value
        new_size = size + _size({key: marshal(value)}) if present is None else 0
        refusal = self.refusal(f"migration of VM {vm.name}", most, new_size)
        if refusal is None:
            return value
        if vm.stage > Stage.WITHOUT_TARGET and not vm.target:  # else nothing waits for it any more
            self.problems.append(refusal)
        return minimum(value, present) if present is not None else None

    def refusal(self, subject: str, headroom: Mapping[str, Quantity], size: int = 0) -> Problem | None:
        """Returns why `headroom` altogether, with `subject` in it, may not be: a cap, or Rancher; None where it may."""
        return refuse(self._caps, subject, headroom, size) or denied(self.facts, subject, headroom)

    def result(self, headroom: Mapping[str, Quantity] | None = None) -> Plan:
        """Returns the plan that is drafted, with spec.hard at the base and `headroom`, None: as it is."""
        policy, now, rancher = self.policy, self.facts.now, self.facts.rancher
        raised = None if headroom is None else hard(self.limits, headroom)
        if raised is not None and (not self.base.is_default or (rancher.granted is not None and not rancher.asks)):
            # Recorded where a limit that Rancher wrote could not be told from headroom's otherwise.
            is_raised = raised != self.limits
            put(self.annotations, constants.ANNOTATION_APPLIED, raised if is_raised else None)
            if self.base.is_default:
                put(self.annotations, constants.ANNOTATION_BASE, self.base.record if is_raised else None)
        graces = [since + policy.foreign_grace for key, since in self.unexplained.items() if key in self.annotations]
        hold_ends = [since + policy.hold_limit for since in self.held_since.values()]
        charged = [end + _AFTER_GRACE for vm in self.vms for end in vm.charged_until]
        due = min((end for end in (*charged, *graces, *hold_ends) if end > now), default=float("inf"))
        return Plan(
            annotations=changes(self.facts.quota.annotations, self.annotations),
            hard=self.hard | difference(self.facts.quota.hard, raised or {}),
            raised=raised,
            problems=self.problems,
            timers=Timers(self.unexplained, self.held_since, denial=self.facts.timers.denial),
            recheck_after=due - now if due < float("inf") else None,
        )


def _size(annotations: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())


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


def idle(caps: Collection[str], hard: Collection[str]) -> list[Problem]:
    """Returns a problem for each name in `max-extra` that caps nothing: on a quota one that its spec.hard lacks, on a
    namespace, whose quotas may limit different things, one that is no resource that headroom adds."""
    with suppress(InvalidEntry):  # `refuse` tells, where something is to be added
        on_quota, on_namespace = (sorted(parse_resources(constants.ANNOTATION_MAX_EXTRA, t)) if t else () for t in caps)
        reasons = {name: "spec.hard does not have it" for name in on_quota if name not in hard}
        reasons |= {n: "quotas do not count it of pods or claims" for n in on_namespace if not is_scaled(n)}
        return [Problem(EVENT_IDLE_CAP, f"max-extra of {n} caps nothing: {why}") for n, why in reasons.items()]
    return []


def with_summary(facts: Facts, decided: Plan) -> Plan:
    """Returns the plan with the summary of what it leaves on the quota, such as "limits.cpu 6500m + 1025m for web-2
    until its old pod ends"; unchanged where it writes nothing there. On a quota that is not ours alone, a summary would
    outlive entries that Harvester ends."""
    if not decided.annotations and not decided.hard:
        return decided
    quota, text = facts.quota, ""
    annotations = decided.annotations_of(quota)
    vms = sorted(names_by_key(annotations, facts.migrations, facts.instances.values()).values())
    if vms and is_ours(structs.replace(quota, metadata=structs.replace(quota.metadata, annotations=annotations))):
        limits, headroom = parse_resource_list({**quota.hard, **decided.hard}), read(annotations).total
        amounts = [
            "{} {} + {}".format(name, *format_distinctly(name, limits[name] - amount, amount))
            for name, amount in sorted(headroom.items())
            if name in limits and amount > ZERO
        ]
        omitted = f" and {len(vms) - _MOST_NAMES} more" if len(vms) > _MOST_NAMES else ""
        ends = "its old pod ends" if len(vms) == 1 else "their old pods end"
        if amounts:
            text = f"{', '.join(amounts)} for {', '.join(vms[:_MOST_NAMES])}{omitted} until {ends}"
    if text == quota.annotations.get(constants.ANNOTATION_SUMMARY, ""):
        return decided
    return replace(decided, annotations={**decided.annotations, constants.ANNOTATION_SUMMARY: text or None})
