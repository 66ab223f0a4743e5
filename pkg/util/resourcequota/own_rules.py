"""Headroom's own rules for a ResourceQuota. Pure.

An entry follows the migration and the pods that quota counts, and a refused target gets the growth of the overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, minimum, subtract, total
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resourcequota.base import base_of, hard, quantity_of
from pkg.util.resourcequota.caps import idle
from pkg.util.resourcequota.compensation import lack, promised
from pkg.util.resourcequota.draft import QuotaDraft, WantedEntry, turn
from pkg.util.resourcequota.entries import entry_keys, is_by_uid, migrating_key, put, read, remove, standing
from pkg.util.resourcequota.errors import EVENT_HOLD_LIMIT
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.give_back import lowered
from pkg.util.resourcequota.managed import RECORDS, is_default, is_ours
from pkg.util.resourcequota.policy import Policy


class OwnRules:
    """One decision about one quota."""

    def __init__(self, facts: Facts, policy: Policy) -> None:
        quota = facts.quota
        base = base_of(quota, facts.limits, policy, facts.rancher.granted)
        annotations = dict(quota.annotations)
        default = is_default(quota)
        if default:  # Harvester leaves one with these marks alone
            annotations[constants.ANNOTATION_SKIP_AUTO_SCALING] = constants.TRUE
            annotations[constants.ANNOTATION_OWNER] = constants.OWNER
        elif base.record is not None:
            put(annotations, constants.ANNOTATION_BASE, base.record)
        self.draft = QuotaDraft(facts, policy, base, default, annotations)

    def plan(self) -> Plan:
        """Returns marks, entries, compensation and spec.hard together."""
        draft, quota = self.draft, self.draft.facts.quota
        self._hold()
        wanted = [*self._wanted()]
        refused = [entry for entry in wanted if entry.vm.stage is Stage.REFUSED and entry.vm.to_come]
        growth = self._growth(refused if draft.policy.compensate else [])
        compensation = minimum(draft.compensation, growth)
        added = draft.enter(wanted, lambda vm: vm.stage >= Stage.ANNOUNCED and not draft.limits, compensation)
        caps = quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), draft.facts.max_extra
        draft.problems += idle(*caps, quota.hard)
        if not draft.limits:
            self._retire()
            return draft.plan()
        if draft.invalid:  # spec.hard is left alone
            draft.problems += [error.problem for error in draft.invalid.values()][:1]
            return draft.plan()
        if growth:
            compensation = self._compensation(refused, added, growth, compensation)
        if compensation or constants.ANNOTATION_MIGRATING_COMPENSATION in draft.annotations:
            put(draft.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, compensation or None)
        return draft.plan(add(added, compensation))

    def _hold(self) -> None:
        """What a migration leaves behind, and never ends, keeps its headroom for the hold limit at most, whatever else
        its VM does; then claims do that are used by launchers that are over while a migration is under way, as these
        do."""
        draft, now, limit = self.draft, self.draft.facts.now, self.draft.policy.hold_limit
        since, before = draft.held_since, draft.facts.timers.held_since
        for index, vm in enumerate(draft.vms):
            leftovers = (*vm.old_sides, *vm.old_claims)
            since |= {left.uid: min(before.get(left.uid, now), left.ended or now) for left in leftovers}
            sides = [left for left in vm.old_sides if since[left.uid] + limit <= now]
            claims = [left for left in vm.old_claims if since[left.uid] + limit <= now]
            released = sides + claims[vm.ended.value() if vm.stage >= Stage.WANTED else 0 :]
            if released:
                held_sides = [left for left in vm.old_sides if left not in released]
                held_claims = [left for left in vm.old_claims if left not in released]
                draft.vms[index] = replace(vm, old_sides=held_sides, old_claims=held_claims)
                names = ", ".join(left.name for left in released)
                text = f"VM {vm.name}: {names} still counts {limit:g} s after the migration"
                draft.problems.append(Problem(EVENT_HOLD_LIMIT, text, vm=vm.name))

    def _wanted(self) -> Iterator[WantedEntry]:
        draft, limits = self.draft, self.draft.limits
        beyond = self._pods_beyond() if COUNT_PODS in limits else ZERO
        # The base pays for the disks once: those that fill what is added for one VM are not doubled for the next.
        left_to_double = limits
        for vm in draft.vms:
            present = standing(draft.entries, vm.keys)
            value = vm.entry(present)
            if vm.stage >= Stage.WANTED and (ended := min(vm.ended, beyond)):
                value, beyond = add(value, {COUNT_PODS: ended}), beyond - ended
            if vm.volumes:
                volumes = minimum(vm.volumes, left_to_double)
                value, left_to_double = add(value, volumes), subtract(left_to_double, volumes)
            value = {name: amount for name, amount in value.items() if name in limits and amount > ZERO}
            if value:
                yield WantedEntry(vm, migrating_key(vm.name), value, present)

    def _pods_beyond(self) -> Quantity:
        """Returns how many pods of the namespace the base has no room for: launchers that are over count as objects."""
        draft = self.draft
        granted = total(vm.granted for vm in draft.vms).get(COUNT_PODS, ZERO)
        return max(ZERO, quantity_of(draft.facts.quota.used, COUNT_PODS) - granted - draft.limits[COUNT_PODS])

    def _growth(self, refused: Sequence[WantedEntry]) -> ResourceList:
        """Returns the most that a compensation may add."""
        draft, needs = self.draft, [(entry.vm.allowed, entry.value) for entry in refused]
        return promised(draft.facts, draft.base, needs, draft.problems) if refused else {}

    def _compensation(
        self,
        refused: Sequence[WantedEntry],
        added: Mapping[str, Quantity],
        growth: Mapping[str, Quantity],
        present: ResourceList,
    ) -> ResourceList:
        """Returns the compensation, as long as the caps have room."""
        draft = self.draft
        lacking = lack(draft.facts.quota, draft.vms, hard(draft.limits, added), growth, present)
        if lacking == present:
            return present
        names = ", ".join(f"VM {entry.vm.name}" for entry in sorted(refused, key=turn))
        refusal = draft.refusal(f"compensation for {names}", add(added, lacking))
        draft.problems += [refusal] if refusal else []
        return present if refusal else lacking

    def _retire(self) -> None:
        """Without a base: what was added is removed, and with it every entry of headroom's. An entry that was found
        when the quota was taken over has perhaps never been applied."""
        draft, facts, quota = self.draft, self.draft.facts, self.draft.facts.quota
        if draft.base.limits is None or not draft.default:
            return
        remove(draft.annotations, *RECORDS)
        if facts.limits or not is_ours(quota):
            return
        before = read(quota.annotations)
        keys = [key for key in entry_keys(quota.annotations) if not is_by_uid(key)]
        keys = [key for key in keys if key not in facts.timers.unexplained]
        added = total([*(before.said.get(key, {}) for key in keys), before.compensation])
        remove(draft.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, *keys)
        draft.hard |= lowered(facts, added)
