"""What a ResourceQuota that is scaled shall say: entries, compensation and spec.hard. Pure.

    base → VMs → entries → spec.hard

Source of Harvester's rules: vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from pkg.util import constants
from pkg.util.kubevirt.migration import Stage
from pkg.util.names import migrating_key, migrating_uid_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resource_list import ResourceList, add, maximum, minimum, subtract, total
from pkg.util.resourcequota.base import HARVESTERS, Base, base_of, difference, hard, quantity_of
from pkg.util.resourcequota.caps import idle, refuse
from pkg.util.resourcequota.compensation import compensate_as_harvester, lack, promised
from pkg.util.resourcequota.entries import Entries
from pkg.util.resourcequota.errors import EVENT_HOLD_LIMIT, InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.give_back import hand_over, lowered
from pkg.util.resourcequota.managed import is_default, is_ours
from pkg.util.resourcequota.plan import Plan
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.timers import Timers
from pkg.util.resourcequota.vm import Vm
from pkg.util.resourcequota.vms import vms_of

_AFTER_GRACE = 0.05
"""Seconds: Kubernetes still charges a pod at the very moment at which its grace ends."""


class Wanted(NamedTuple):
    """A wanted entry. `stands` is the VM's present entry, under any form of the key; None: there is none."""

    vm: Vm
    key: str
    value: ResourceList
    stands: ResourceList | None

    @property
    def grows(self) -> bool:
        stands = self.stands or {}
        return self.stands is None or any(q > stands.get(n, ZERO) for n, q in self.value.items())


class Scaling:
    """One decision about one quota; each step changes its `entries` and adds to its `problems`."""

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
        self.grace = float("inf") if off else policy.foreign_grace
        self.base = Base(None) if off else base_of(self.quota, facts.limits, policy)
        self.limits = self.base.limits or {}
        self.entries = Entries(self.quota.annotations)
        self.vms, self.problems = vms_of(facts, policy, self.base)

    def plan(self) -> Plan:
        """Marks, entries, compensation and spec.hard together."""
        now, held_since = self.facts.now, self._hold() if self.follows else {}
        self.problems += self.base.problems
        handed = self._mark()
        wanted = sorted(self._wanted(), key=lambda each: (each.stands is None, each.vm.since))
        standing = list(self.entries)
        unexplained = self._drop({each.key for each in wanted})
        self._answer_harvester(dropped=not self.follows and list(self.entries) != standing)
        changed = self._raised(wanted)
        graces = [at + self.grace for key, at in unexplained.items() if self.entries.get(key) is not None]
        ends = [at + self.policy.hold_limit for at in held_since.values()]
        charged = [max(now, at + _AFTER_GRACE) for vm in self.vms for at in vm.charged_until]
        due = min((*charged, *(at for at in (*graces, *ends) if at > now)), default=float("inf"))
        return Plan(
            annotations=self.entries.changes(),
            hard={name: to for name, to in handed.items() if name not in self.limits} | changed,
            problems=self.problems,
            timers=Timers(unexplained, held_since),
            recheck_after=due - now if due < float("inf") else None,
        )

    def _hold(self) -> Mapping[str, float]:
        """A side that never ends keeps its headroom for the hold limit at most, whatever else its VM does. Since when
        each old side is left over, by the uid of its launcher."""
        now, since = self.facts.now, dict[str, float]()
        for index, vm in enumerate(self.vms):
            for side in vm.old:
                since[side.uid] = min(self.facts.timers.held_since.get(side.uid, now), side.ended or now)
            if over := [side for side in vm.old if since[side.uid] + self.policy.hold_limit <= now]:
                self.vms[index] = vm.without(over)
                limit = f"{self.policy.hold_limit:g} s"
                said = f"VM {vm.name}: a pod of the old side still counts {limit} after the migration"
                self.problems.append(ResourceQuotaError(said, EVENT_HOLD_LIMIT, vm=vm.name))
        return since

    def _mark(self) -> Mapping[str, str]:
        """The quota is ours: Harvester leaves it alone, or its base is recorded. One that mode takeover has left goes
        back to Harvester: what changes of spec.hard with it."""
        if self.marks:
            marks = {constants.ANNOTATION_SKIP_AUTO_SCALING: "true", constants.ANNOTATION_OWNER: constants.OWNER}
            self.entries.set(marks)
        elif self.follows:
            if self.base.record is not None:
                self.entries.put(constants.ANNOTATION_BASE, self.base.record)
        elif is_ours(self.quota):
            return hand_over(self.facts, self.entries)
        return {}

    # ---- entries ---------------------------------------------------------------------------------------------

    def _wanted(self) -> Iterator[Wanted]:
        return self._followed() if self.follows else self._written_once()

    def _written_once(self) -> Iterator[Wanted]:
        """Of what Harvester's formula scales, what the quota limits."""
        for vm in self.vms if self.limits else ():
            need = vm.need if vm.stage >= Stage.WANTED else None
            if need is not None and not self.entries.keys_of(vm.name, vm.vmi):
                value = {name: need[name] for name in HARVESTERS if name in need and name in self.quota.hard}
                yield Wanted(vm, migrating_uid_key(vm.uid), value, None)

    def _followed(self) -> Iterator[Wanted]:
        beyond = self._pods_beyond()
        once_more: Mapping[str, Quantity] = self.limits
        # The base pays for the disks once: those that fill what is added for one VM are not doubled for the next.
        for vm in self.vms:
            stands = self.entries.of(vm.name, vm.vmi)
            # An existing entry is kept as far as it is used, or will be if the migration continues.
            value = maximum(vm.wanted, minimum(stands, vm.upper_bound)) if stands else vm.wanted
            if vm.stage >= Stage.WANTED and (ended := min(vm.ended, beyond)):
                value, beyond = add(value, {COUNT_PODS: ended}), beyond - ended
            if vm.doubled:
                volumes = minimum(vm.doubled, once_more)
                value, once_more = add(value, volumes), subtract(once_more, volumes)
            value = {n: q for n, q in value.items() if n in self.limits and q > ZERO}
            if value:
                yield Wanted(vm, migrating_key(vm.name), value, stands)

    def _pods_beyond(self) -> Quantity:
        """How many pods of the namespace the base has no room for: launchers that are over count as objects."""
        if COUNT_PODS not in self.limits:
            return ZERO
        granted = total(vm.granted for vm in self.vms).get(COUNT_PODS, ZERO)
        return max(ZERO, quantity_of(self.quota.used, COUNT_PODS) - granted - self.limits[COUNT_PODS])

    def _drop(self, wanted: Collection[str]) -> Mapping[str, float]:
        """Remove the entries that nothing accounts for any longer: at once those of VMs whose migrations are over,
        other forms of the keys that are `wanted`, and our own that no migration explains; after the grace the others.
        Since when each of those is seen: also of one that goes, for that may not be written, and is then due at once.

        A name key on a quota that carried our mark already is our own, unless it was found there when the quota was
        taken over: then the timers have it.
        """
        now, since = self.facts.now, self.facts.timers.unexplained
        ours = (constants.ANNOTATION_OWNER if self.default else constants.ANNOTATION_BASE) in self.quota.annotations
        vms = {key: vm for vm in self.vms for key in self.entries.keys_of(vm.name, vm.vmi)}
        unknown = not self.follows and any(vm.vmi is None and vm.stage > Stage.FINISHED for vm in self.vms)
        seen: dict[str, float] = {}
        for entry in [entry for entry in self.entries if entry.key not in wanted]:
            vm = vms.get(entry.key)
            if vm is not None and self._stands(vm):
                continue
            over = vm is not None and (vm.migrations or migrating_key(vm.name) in wanted)
            if over or (ours and not entry.by_uid and entry.key not in since):
                self.entries.remove(entry.key)
            elif not (unknown and entry.by_uid):  # it may be the unknown VMI's
                seen[entry.key] = since.get(entry.key, now)
                if now - seen[entry.key] >= self.grace:
                    self.entries.remove(entry.key)
        return seen

    def _stands(self, vm: Vm) -> bool:
        """Whether its entry stays as it was written, though none is wanted; or there is nothing to add it to."""
        return vm.stage >= Stage.ANNOUNCED and not self.limits if self.follows else vm.stage > Stage.FINISHED

    def _answer_harvester(self, *, dropped: bool) -> None:
        """What an entry's end means beside Harvester: its compensation goes (as upstream), and where spec.hard is not
        looked at here, migratingScalingResyncNeeded orders its rq controller to compute again."""
        if dropped:
            self.entries.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
        ordered = self.quota.annotations.get(constants.ANNOTATION_RESYNC_NEEDED) == constants.TRUE
        if dropped and self.base.limits is None:
            self.entries.set({constants.ANNOTATION_RESYNC_NEEDED: constants.TRUE})
        elif ordered and self.base.limits is not None:
            self.entries.set({constants.ANNOTATION_RESYNC_NEEDED: constants.FALSE})

    # ---- spec.hard -------------------------------------------------------------------------------------------

    def _raised(self, wanted: Sequence[Wanted]) -> dict[str, str]:
        """spec.hard = base + entries + compensation, as far as it differs. An invalid entry or base: it is left
        alone."""
        caps = self.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), self.facts.max_extra
        helps = self.follows and self.policy.compensate
        refused = [each for each in wanted if helps and each.vm.stage is Stage.REFUSED and each.vm.to_come]
        of_refused = [(each.vm.allowed, each.value) for each in refused]
        growth = promised(self.facts, self.base, of_refused) if refused else {}
        stands = minimum(self.entries.compensation_or_none(), growth) if growth else {}
        added = self._enter(wanted, stands, caps)
        self.problems += idle(*caps, self.quota.hard) if self.follows else ()
        if not self.limits:
            return self._retired()
        try:
            if self.follows:
                without = hard(self.limits, self.entries.added(compensated=False))
                lacking = lack(self.quota, self.vms, without, growth, stands) if growth else {}
                if lacking != stands:
                    names = ", ".join(f"VM {each.vm.name}" for each in refused)
                    if refusal := refuse(caps, f"compensation for {names}", add(added, lacking)):
                        self.problems.append(refusal)
                        lacking = stands
                self.entries.compensate(lacking)
            else:  # as upstream also where an entry is invalid
                compensate_as_harvester(self.quota, self.limits, self.vms, self.entries)
            raised = hard(self.limits, self.entries.added())
        except InvalidEntry as exc:
            self.problems.append(exc)
            return {}
        if self.follows and not self.marks:
            if raised == self.limits:
                self.entries.remove(constants.ANNOTATION_APPLIED)
            else:
                self.entries.put(constants.ANNOTATION_APPLIED, raised)
        return difference(self.quota.hard, raised)

    def _enter(
        self, wanted: Sequence[Wanted], compensation: Mapping[str, Quantity], caps: Sequence[str]
    ) -> ResourceList:
        """Write the entries, as long as the caps and the annotations have room; what all of them add up to."""
        keys = {each.key for each in wanted}
        added = total(
            {n: q for n, q in entry.readable().items() if n in self.limits}
            for entry in self.entries
            if entry.key not in keys
        )
        for each in wanted:
            value: ResourceList | None = each.value
            if each.grows:
                size = self.entries.size_with(each.key, each.value) if each.stands is None else 0
                most = total([added, each.value, compensation])
                if refusal := refuse(caps, f"migration of VM {each.vm.name}", most, size):
                    self.problems.append(refusal)
                    value = minimum(each.value, each.stands) if each.stands is not None else None
            if value is None:
                self.entries.remove(each.key)
            else:
                self.entries.put(each.key, value)
                added = add(added, value)
        return added

    def _retired(self) -> dict[str, str]:
        """The namespace lost its annotation: what we added is removed, and with it every entry of ours. One that was
        found when the quota was taken over has perhaps never been applied."""
        if self.base.limits is None or not self.marks or self.facts.limits or not is_ours(self.quota):
            return {}
        before = Entries(self.quota.annotations)
        ours = [each for each in before if not each.by_uid and each.key not in self.facts.timers.unexplained]
        added = total([*(entry.readable() for entry in ours), before.compensation_or_none()])
        self.entries.remove(constants.ANNOTATION_MIGRATING_COMPENSATION, *(entry.key for entry in ours))
        return lowered(self.facts, added)
