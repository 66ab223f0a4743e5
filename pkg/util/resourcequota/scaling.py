"""What a ResourceQuota that is scaled shall say: entries, compensation and spec.hard. Pure.

    base → VMs → entries → spec.hard

A migration that a cap leaves out waits; the first in line is served first: by KubeVirt's priority, then by age.
Source of Harvester's rules: vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, add_to, marshal, minimum, subtract, total
from pkg.util import constants
from pkg.util.amounts import as_written, shown
from pkg.util.kubevirt.migration import Stage
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resourcequota.base import HARVESTERS, Base, base_of, difference, hard, is_added, quantity_of
from pkg.util.resourcequota.compensation import compensate_as_harvester, lack, promised
from pkg.util.resourcequota.entries import (
    changes,
    entry_keys,
    is_by_uid,
    migrating_key,
    migrating_uid_key,
    parse_resources,
    put,
    read,
    remove,
    standing,
)
from pkg.util.resourcequota.errors import (
    EVENT_CAP_REACHED,
    EVENT_HOLD_LIMIT,
    EVENT_IDLE_CAP,
    EVENT_TOO_MANY,
    InvalidEntry,
    ResourceQuotaError,
)
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.give_back import hand_over, lowered
from pkg.util.resourcequota.managed import RECORDS, is_default, is_ours
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.rancher_request import denied
from pkg.util.resourcequota.timers import Timers
from pkg.util.resourcequota.vm import VmUsage
from pkg.util.resourcequota.vms import vms_of

MAX_ANNOTATION_BYTES = 200 * 1024
"""An object's annotations may take 256 KiB; what is left is for others."""
_AFTER_GRACE = 0.05
"""Seconds: Kubernetes still charges a pod at the very moment at which its grace ends."""


class Wanted(NamedTuple):
    """A wanted entry. `stands` is the VM's present entry, under any form of the key; None: there is none."""

    vm: VmUsage
    key: str
    value: ResourceList
    stands: ResourceList | None


class Scaling:
    """One decision about one quota; each step changes its `annotations` and adds to its `problems`."""

    def __init__(self, facts: Facts, policy: Policy, *, off: bool = False) -> None:
        """`off`: a person has switched auto-scaling off there, and only what is over goes."""
        self.facts, self.policy, self.quota = facts, policy, facts.quota
        self.default = is_default(self.quota)
        self.follows = not self.default or not (off or policy.mode is Mode.ASSIST)
        """Our rules: an entry follows the migration and the pods that quota counts, and a refused target gets the
        growth of the overhead. Else Harvester's, beside its own controllers, which know default quotas only: an entry
        is written once, under the VMI's uid, and stays as it is until all migrations of its VM are over, with
        limits.cpu and limits.memory alone; a refused target gets what is missing of limits.memory, and 128Mi."""
        self.marks = self.follows and self.default
        """The quota is marked as ours, so that Harvester leaves it alone; one that follows without that has its base
        recorded on it."""
        self.records = not self.default or (facts.rancher.granted is not None and not facts.rancher.asks)
        """While it is raised, the quota itself says what it was and what was made of it: else a limit that Rancher
        wrote could not be told from ours."""
        self.raised: Mapping[str, Quantity] | None = None
        self.grace = float("inf") if off else policy.foreign_grace
        self.base = Base(None) if off else base_of(self.quota, facts.limits, policy, facts.rancher.granted)
        self.limits = self.base.limits or {}
        self.vms, self.problems = vms_of(facts, policy, self.base)
        self.annotations = dict(self.quota.annotations)
        """As they shall be."""
        self.handed = self._mark()
        self.said, self.compensation, self.invalid = read(self.annotations)
        """What each entry adds, by key, and why the others add nothing; one that is removed is in neither."""
        self.invalid.pop(constants.ANNOTATION_MIGRATING_COMPENSATION, None)  # ours to write
        self.caps = self.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), facts.max_extra

    def plan(self) -> Plan:
        """Marks, entries, compensation and spec.hard together."""
        now, held_since = self.facts.now, self._hold() if self.follows else {}
        self.problems += self.base.problems
        found = self._followed() if self.follows else self._written_once()
        wanted = sorted(found, key=lambda each: (each.stands is None, -each.vm.priority, each.vm.since))
        before = len(self.annotations)
        unexplained = self._drop({each.key for each in wanted})
        if not self.follows or constants.ANNOTATION_RESYNC_NEEDED in self.annotations:
            self._answer_harvester(dropped=not self.follows and len(self.annotations) < before)
        changed = self._raised(wanted)
        graces = [at + self.grace for key, at in unexplained.items() if key in self.annotations]
        ends = [at + self.policy.hold_limit for at in held_since.values()]
        charged = [max(now, at + _AFTER_GRACE) for vm in self.vms for at in vm.charged_until]
        due = min((*charged, *(at for at in (*graces, *ends) if at > now)), default=float("inf"))
        return Plan(
            annotations=changes(self.quota.annotations, self.annotations),
            hard={name: to for name, to in self.handed.items() if name not in self.limits} | changed,
            raised=self.raised,
            problems=self.problems,
            timers=Timers(unexplained, held_since, denial=self.facts.timers.denial),
            recheck_after=due - now if due < float("inf") else None,
        )

    def _mark(self) -> Mapping[str, str]:
        """The quota is ours: Harvester leaves it alone, or its base is recorded. One that mode takeover has left goes
        back to Harvester: what changes of spec.hard with it."""
        if self.marks:
            self.annotations[constants.ANNOTATION_SKIP_AUTO_SCALING] = constants.TRUE
            self.annotations[constants.ANNOTATION_OWNER] = constants.OWNER
        elif self.follows:
            if self.base.record is not None:
                put(self.annotations, constants.ANNOTATION_BASE, self.base.record)
        elif is_ours(self.quota):
            return hand_over(self.facts, self.annotations)
        return {}

    def _hold(self) -> Mapping[str, float]:
        """What a migration leaves behind, and never ends, keeps its headroom for the hold limit at most, whatever else
        its VM does; then claims do that are used by launchers that are over while a migration is under way, as these
        do. Since when each is left over, by the uid of a side's launcher, or of a claim."""
        now, since = self.facts.now, dict[str, float]()
        for index, vm in enumerate(self.vms):
            for left in vm.leftovers:
                since[left.uid] = min(self.facts.timers.held_since.get(left.uid, now), left.ended or now)
            sides, claims = (
                [left for left in leftovers if since[left.uid] + self.policy.hold_limit <= now]
                for leftovers in (vm.old_sides, vm.old_claims)
            )
            if over := sides + claims[vm.ended.value() if vm.stage >= Stage.WANTED else 0 :]:
                sides, claims = ([left for left in held if left not in over] for held in (vm.old_sides, vm.old_claims))
                self.vms[index] = replace(vm, old_sides=sides, old_claims=claims)
                limit = f"{self.policy.hold_limit:g} s"
                names = ", ".join(left.name for left in over)
                said = f"VM {vm.name}: {names} still counts {limit} after the migration"
                self.problems.append(ResourceQuotaError(said, EVENT_HOLD_LIMIT, vm=vm.name))
        return since

    # ---- entries ---------------------------------------------------------------------------------------------

    def _written_once(self) -> Iterator[Wanted]:
        """Of what Harvester's formula scales, what the quota limits."""
        for vm in self.vms if self.limits else ():
            need = vm.need if vm.stage >= Stage.WANTED else None
            if need is not None and self.annotations.keys().isdisjoint(vm.keys):
                value = {name: need[name] for name in HARVESTERS if name in need and name in self.quota.hard}
                yield Wanted(vm, migrating_uid_key(vm.vmi.uid if vm.vmi else ""), value, None)

    def _followed(self) -> Iterator[Wanted]:
        beyond = self._pods_beyond() if COUNT_PODS in self.limits else ZERO
        once_more: Mapping[str, Quantity] = self.limits
        # The base pays for the disks once: those that fill what is added for one VM are not doubled for the next.
        for vm in self.vms:
            stands = standing(self.said, vm.keys)
            value = vm.entry(stands)
            if vm.stage >= Stage.WANTED and (ended := min(vm.ended, beyond)):
                value, beyond = add(value, {COUNT_PODS: ended}), beyond - ended
            if vm.volumes:
                volumes = minimum(vm.volumes, once_more)
                value, once_more = add(value, volumes), subtract(once_more, volumes)
            value = {n: q for n, q in value.items() if n in self.limits and q > ZERO}
            if value:
                yield Wanted(vm, migrating_key(vm.name), value, stands)

    def _pods_beyond(self) -> Quantity:
        """How many pods of the namespace the base has no room for: launchers that are over count as objects."""
        granted = total(vm.granted for vm in self.vms).get(COUNT_PODS, ZERO)
        return max(ZERO, quantity_of(self.quota.used, COUNT_PODS) - granted - self.limits[COUNT_PODS])

    def _drop(self, wanted: Set[str]) -> Mapping[str, float]:
        """Remove the entries that nothing accounts for any longer: at once those of VMs whose migrations are over,
        other forms of the keys that are `wanted`, and our own that no migration explains; after the grace the others.
        Since when each of those is seen: also of one that goes, for that may not be written, and is then due at once.

        A name key on a quota that carried our mark already is our own, unless it was found there when the quota was
        taken over: then the timers have it.
        """
        now, since = self.facts.now, self.facts.timers.unexplained
        ours = (constants.ANNOTATION_OWNER if self.default else constants.ANNOTATION_BASE) in self.quota.annotations
        vms = {key: vm for vm in self.vms for key in vm.keys}
        unknown = not self.follows and any(vm.vmi is None and vm.stage > Stage.FINISHED for vm in self.vms)
        seen: dict[str, float] = {}
        for key in sorted({*self.said, *self.invalid} - wanted):
            vm = vms.get(key)
            if vm is not None and self._stands(vm):
                continue
            over = vm is not None and (vm.migrations or migrating_key(vm.name) in wanted)
            if over or (ours and not is_by_uid(key) and key not in since):
                self._remove(key)
            elif not (unknown and is_by_uid(key)):  # it may be the unknown VMI's
                seen[key] = since.get(key, now)
                if now - seen[key] >= self.grace:
                    self._remove(key)
        return seen

    def _stands(self, vm: VmUsage) -> bool:
        """Whether its entry stays as it was written, though none is wanted; or there is nothing to add it to."""
        return vm.stage >= Stage.ANNOUNCED and not self.limits if self.follows else vm.stage > Stage.FINISHED

    def _remove(self, key: str) -> None:
        for each in (self.annotations, self.said, self.invalid):
            each.pop(key, None)

    def _answer_harvester(self, *, dropped: bool) -> None:
        """What an entry's end means beside Harvester: its compensation goes (as upstream), and where spec.hard is not
        looked at here, migratingScalingResyncNeeded orders its rq controller to compute again."""
        if dropped:
            self.annotations.pop(constants.ANNOTATION_MIGRATING_COMPENSATION, None)
        ordered = self.quota.annotations.get(constants.ANNOTATION_RESYNC_NEEDED) == constants.TRUE
        if dropped and self.base.limits is None:
            self.annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
        elif ordered and self.base.limits is not None:
            self.annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.FALSE

    # ---- spec.hard -------------------------------------------------------------------------------------------

    def _raised(self, wanted: Sequence[Wanted]) -> dict[str, str]:
        """spec.hard = base + entries + compensation, as far as it differs. An invalid entry or base: it is left
        alone."""
        helps = self.follows and self.policy.compensate
        refused = [each for each in wanted if helps and each.vm.stage is Stage.REFUSED and each.vm.to_come]
        claims = [(each.vm.allowed, each.value) for each in refused]
        growth = promised(self.facts, self.base, claims, self.problems) if refused else {}
        stands = minimum(self.compensation, growth) if growth else {}
        added = self._enter(wanted, stands)
        if self.follows and any(self.caps):
            self.problems += idle(*self.caps, self.quota.hard)
        if not self.limits:
            if self.default and self.base.limits is not None:
                remove(self.annotations, *RECORDS)
            return self._retired()
        if not self.follows:  # as upstream also where an entry is invalid
            compensate_as_harvester(self.quota, self.limits, self.vms, self.annotations)
            _, lacking, self.invalid = read(self.annotations)
        if self.invalid:
            self.problems += [*self.invalid.values()][:1]
            return {}
        if self.follows:
            names = [each.vm.name for each in refused]
            lacking = self._lacking(names, added, growth, stands) if growth else {}
            if lacking or constants.ANNOTATION_MIGRATING_COMPENSATION in self.annotations:
                put(self.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, lacking or None)
        raised = hard(self.limits, add(added, lacking))
        self.raised = raised
        if self.records:
            is_raised = raised != self.limits
            put(self.annotations, constants.ANNOTATION_APPLIED, raised if is_raised else None)
            if self.default:
                put(self.annotations, constants.ANNOTATION_BASE, self.base.record if is_raised else None)
        return difference(self.quota.hard, raised)

    def _enter(self, wanted: Sequence[Wanted], stands: Mapping[str, Quantity]) -> ResourceList:
        """Write the entries, as long as the caps and the annotations have room beside the compensation that `stands`;
        what all of them add up to."""
        keys = {each.key for each in wanted}
        others = (said for key, said in self.said.items() if key not in keys)
        added = total({name: said[name] for name in self.limits if name in said} for said in others)
        sizes = {key: len(key.encode()) + len(text.encode()) for key, text in self.annotations.items()}
        size = sum(sizes.values())
        for each in wanted:
            value: ResourceList | None = each.value
            size -= sizes.get(each.key, 0)
            if each.stands is None or any(q > each.stands.get(n, ZERO) for n, q in each.value.items()):
                then = size + len(each.key + marshal(each.value)) if each.stands is None else 0
                most = total([added, each.value, stands])
                what = f"migration of VM {each.vm.name}"
                if refusal := refuse(self.caps, what, most, then) or denied(self.facts, what, most):
                    if each.vm.stage > Stage.ANNOUNCED and not each.vm.target:  # else nothing waits for it any more
                        self.problems.append(refusal)
                    value = minimum(each.value, each.stands) if each.stands is not None else None
            if value is None:
                self._remove(each.key)
                continue
            if self.said.get(each.key) != value:
                self.annotations[each.key] = marshal(value)
            size += len(each.key + self.annotations[each.key])
            self.invalid.pop(each.key, None)
            add_to(added, value)
        return added

    def _lacking(
        self,
        refused: Sequence[str],
        added: Mapping[str, Quantity],
        growth: Mapping[str, Quantity],
        stands: ResourceList,
    ) -> ResourceList:
        """The compensation, as long as the caps have room."""
        lacking = lack(self.quota, self.vms, hard(self.limits, added), growth, stands)
        if lacking != stands:
            names = ", ".join(f"VM {name}" for name in refused)
            what, most = f"compensation for {names}", add(added, lacking)
            if refusal := refuse(self.caps, what, most) or denied(self.facts, what, most):
                self.problems.append(refusal)
                return stands
        return lacking

    def _retired(self) -> dict[str, str]:
        """The namespace lost its annotation: what we added is removed, and with it every entry of ours. One that was
        found when the quota was taken over has perhaps never been applied."""
        if self.base.limits is None or not self.marks or self.facts.limits or not is_ours(self.quota):
            return {}
        before, found = read(self.quota.annotations), entry_keys(self.quota.annotations)
        ours = [key for key in found if not is_by_uid(key) and key not in self.facts.timers.unexplained]
        added = total([*(before.said.get(key, {}) for key in ours), before.compensation])
        remove(self.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, *ours)
        return lowered(self.facts, added)


# ---- how much may be added -----------------------------------------------------------------------------------


def refuse(caps: Collection[str], what: str, added: Mapping[str, Quantity], size: int = 0) -> ResourceQuotaError | None:
    """Why `added` altogether, or annotations of this size, are too much with `what` in them; None when not. A cap that
    is garbage allows nothing: better to wait than to overrun it."""
    try:
        limits = [parse_resources(constants.ANNOTATION_MAX_EXTRA, text) for text in caps if text]
    except InvalidEntry as exc:
        return ResourceQuotaError(f"{exc}: nothing is added", EVENT_CAP_REACHED)
    for cap in limits:
        for name, limit in sorted(cap.items()):
            if added.get(name, ZERO) > limit:
                raised, most = shown(added[name], name), as_written(str(limit), name)
                said = f"{what} waits: {name} would be raised by {raised}, max-extra is {most}"
                return ResourceQuotaError(said, EVENT_CAP_REACHED)
    if size <= MAX_ANNOTATION_BYTES:
        return None
    said = f"{what} waits: the annotations would take {size} of {MAX_ANNOTATION_BYTES} bytes"
    return ResourceQuotaError(said, EVENT_TOO_MANY)


def idle(on_quota: str, on_namespace: str, hard: Collection[str]) -> list[ResourceQuotaError]:
    """The names in `max-extra` that cap nothing: on a quota those that its spec.hard does not have, on a namespace,
    whose quotas may limit different things, those that are no resource that headroom adds."""
    absent = [(name, "spec.hard does not have it") for name in _capped(on_quota) if name not in hard]
    never = [(name, "quotas do not count it of pods or claims") for name in _capped(on_namespace) if not is_added(name)]
    return [
        ResourceQuotaError(f"max-extra of {name} caps nothing: {why}", EVENT_IDLE_CAP) for name, why in absent + never
    ]


def _capped(text: str) -> list[str]:
    with suppress(InvalidEntry):  # `refuse` tells, where something is to be added
        return sorted(parse_resources(constants.ANNOTATION_MAX_EXTRA, text)) if text else []
    return []
