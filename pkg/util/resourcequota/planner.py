"""The decision about one ResourceQuota: from what is observed to one patch. Pure; `plan` is the only way to one.

    facts → base → VMs → entries → spec.hard → plan

Level-triggered: the truth is the migrations and the pods, the annotations say what was added. The same facts always
give the same plan, and a plan applied gives facts whose plan is empty. Whatever happens to the annotations or to
spec.hard, the next patch repairs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, minimum, subtract, total
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage, is_finished
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resourcequota.base import HARVESTERS, Base, base_of, hard, quantity_of
from pkg.util.resourcequota.compensation import compensate_as_harvester, max_compensation, missing_compensation
from pkg.util.resourcequota.draft import QuotaDraft, WantedEntry, idle, turn
from pkg.util.resourcequota.entries import (
    entry_keys,
    has_migrating_vm,
    is_by_uid,
    migrating_key,
    migrating_uid_key,
    present_entry,
    put,
    read,
    remove,
)
from pkg.util.resourcequota.errors import EVENT_HOLD_LIMIT
from pkg.util.resourcequota.facts import NO_RANCHER, Facts, Plan
from pkg.util.resourcequota.give_back import give_back, hand_over, lowered
from pkg.util.resourcequota.managed import OWN_MARKS, RECORDS, QuotaManagement, is_default, is_ours, management_of
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.rancher_request import as_request, with_answer, with_grant, without_request
from pkg.util.resourcequota.touch import has_entry, with_touch, without_touch


def plan(facts: Facts, policy: Policy) -> Plan:
    """Returns the one patch that makes a ResourceQuota fit its namespace's migrations, or the request by which Rancher
    does."""
    if facts.quota.deleting:
        return Plan()
    if facts.rancher is NO_RANCHER:
        return _decide(facts, policy)
    facts = with_answer(facts)
    decided = _decide(facts, policy)
    return with_grant(facts, as_request(facts, decided) if facts.rancher.asks else without_request(facts, decided))


def _decide(facts: Facts, policy: Policy) -> Plan:
    quota = facts.quota
    management = management_of(quota)
    if policy.released:  # without Rancher's leave Harvester could not go on either
        decided = give_back(facts, to_harvester=not facts.rancher.asks)
    elif facts.namespace_off or management is QuotaManagement.OFF:
        decided = give_back(facts, to_harvester=True)
    elif facts.mtq:
        decided = _left_to_mtq(facts, policy)
    elif management is QuotaManagement.NONE:  # it has lost the label
        decided = give_back(facts)
    elif management is QuotaManagement.SKIPPED:
        decided = Plan()
        if is_default(quota):  # nothing is added, an entry goes with its migrations, one that is not explained stays
            decided = HarvesterRules(facts, replace(policy, foreign_grace=inf), Base(None)).plan()
    else:
        default = management is QuotaManagement.DEFAULT
        beside_harvester = default and policy.mode is Mode.ASSIST
        decided = _as_harvester(facts, policy) if beside_harvester else OwnRules(facts, policy, default=default).plan()
        if not facts.rancher.asks:  # a touch is a write of the quota
            return with_touch(facts, decided)
    return without_touch(quota, decided)


def _left_to_mtq(facts: Facts, policy: Policy) -> Plan:
    """Returns the plan for a quota of managed tenant quota: never two strategies on one quota. Entries that are not
    headroom's run out, nothing is added: Harvester may stay, or have left them. A quota without entries is left alone:
    its limits are the other strategy's."""
    quota = facts.quota
    if is_ours(quota) or not (has_migrating_vm(quota.annotations) and is_default(quota)):
        return give_back(facts)
    migrations = [vmim for vmim in facts.migrations if is_finished(vmim) or has_entry(facts, vmim)]
    return _as_harvester(replace(facts, migrations=migrations), replace(policy, mode=Mode.ASSIST))


def _as_harvester(facts: Facts, policy: Policy) -> Plan:
    base = base_of(facts.quota, facts.limits, policy, facts.rancher.granted)
    return HarvesterRules(facts, policy, base).plan()


# ---- the two rule sets: each decides once about one quota ----------------------------------------------------


class OwnRules:
    """Headroom's own: an entry follows the migration and the pods that quota counts, and a refused target gets what the
    overhead has grown by."""

    def __init__(self, facts: Facts, policy: Policy, *, default: bool) -> None:
        """`default`: the quota is Rancher's."""
        quota = facts.quota
        base = base_of(quota, facts.limits, policy, facts.rancher.granted)
        annotations = dict(quota.annotations)
        if default:
            annotations |= OWN_MARKS
        elif base.record is not None:
            put(annotations, constants.ANNOTATION_BASE, base.record)
        self.draft = QuotaDraft(facts, policy, base, default, annotations)

    def plan(self) -> Plan:
        """Returns marks, entries, compensation and spec.hard together."""
        draft, quota = self.draft, self.draft.facts.quota
        self._hold()
        wanted_entries = [*self._wanted_entries()]
        refused = [entry for entry in wanted_entries if entry.vm.stage is Stage.REFUSED and entry.vm.pending_usage]
        growth: ResourceList = {}
        if refused and draft.policy.compensate:
            needs = [(entry.vm.target_limit, entry.value) for entry in refused]
            growth = max_compensation(draft.facts, draft.base, needs, draft.problems)
        compensation = minimum(draft.compensation, growth)
        entered = draft.enter(
            wanted_entries, lambda vm: vm.stage >= Stage.WITHOUT_TARGET and not draft.limits, compensation
        )
        caps = quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), draft.facts.max_extra
        draft.problems += idle(*caps, quota.hard)
        if not draft.limits:
            self._retire()
            return draft.plan()
        if draft.invalid:  # spec.hard is left alone
            draft.problems += [error.problem for error in draft.invalid.values()][:1]
            return draft.plan()
        if growth:
            compensation = self._compensation(refused, entered, growth, compensation)
        if compensation or constants.ANNOTATION_MIGRATING_COMPENSATION in draft.annotations:
            put(draft.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, compensation or None)
        return draft.plan(add(entered, compensation))

    def _hold(self) -> None:
        """Releases what a migration left behind after the hold limit, whatever else its VM does. While a migration is
        under way, as many claims keep their headroom as there are ended launchers of the VM: each uses one."""
        draft, now, limit = self.draft, self.draft.facts.now, self.draft.policy.hold_limit
        since, known_since = draft.held_since, draft.facts.timers.held_since
        for index, vm in enumerate(draft.vms):
            leftovers = (*vm.old_sides, *vm.old_claims)
            since |= {
                leftover.uid: min(known_since.get(leftover.uid, now), leftover.ended_at or now)
                for leftover in leftovers
            }
            sides = [leftover for leftover in vm.old_sides if since[leftover.uid] + limit <= now]
            claims = [leftover for leftover in vm.old_claims if since[leftover.uid] + limit <= now]
            in_use = vm.ended_pods.value() if vm.stage >= Stage.ACTIVE else 0
            expired = sides + claims[in_use:]
            if expired:
                sides, claims = ([old for old in olds if old not in expired] for olds in (vm.old_sides, vm.old_claims))
                draft.vms[index] = replace(vm, old_sides=sides, old_claims=claims)
                names = ", ".join(leftover.name for leftover in expired)
                text = f"VM {vm.name}: {names} still counts {limit:g} s after the migration"
                draft.problems.append(Problem(EVENT_HOLD_LIMIT, text, vm=vm.name))

    def _wanted_entries(self) -> Iterator[WantedEntry]:
        draft, limits = self.draft, self.draft.limits
        beyond = self._pods_beyond() if COUNT_PODS in limits else ZERO
        # The base pays for the disks once: those that fill what is added for one VM are not doubled for the next.
        left_to_double = limits
        for vm in draft.vms:
            present = present_entry(draft.entries, vm.keys)
            value = vm.entry(present)
            if vm.stage >= Stage.ACTIVE and (pods := min(vm.ended_pods, beyond)):
                value, beyond = add(value, {COUNT_PODS: pods}), beyond - pods
            if vm.volumes:
                volumes = minimum(vm.volumes, left_to_double)
                value, left_to_double = add(value, volumes), subtract(left_to_double, volumes)
            value = {name: amount for name, amount in value.items() if name in limits and amount > ZERO}
            if value:
                yield WantedEntry(vm, migrating_key(vm.name), value, present)

    def _pods_beyond(self) -> Quantity:
        """Returns how many pods of the namespace the base has no room for: launchers that are over count as objects."""
        draft = self.draft
        granted = total(vm.used_headroom for vm in draft.vms).get(COUNT_PODS, ZERO)
        return max(ZERO, quantity_of(draft.facts.quota.used, COUNT_PODS) - granted - draft.limits[COUNT_PODS])

    def _compensation(
        self,
        refused: Sequence[WantedEntry],
        entered: Mapping[str, Quantity],
        growth: Mapping[str, Quantity],
        present: ResourceList,
    ) -> ResourceList:
        """Returns the compensation, as long as the caps have room."""
        draft = self.draft
        lacking = missing_compensation(draft.facts.quota, draft.vms, hard(draft.limits, entered), growth, present)
        if lacking == present:
            return present
        names = ", ".join(f"VM {entry.vm.name}" for entry in sorted(refused, key=turn))
        refusal = draft.refusal(f"compensation for {names}", add(entered, lacking))
        draft.problems += [refusal] if refusal else []
        return present if refusal else lacking

    def _retire(self) -> None:
        """Without a base: what was added is removed, and with it every entry of headroom's. An entry, or a
        compensation, that was found when the quota was taken over has perhaps never been applied: that is not
        subtracted, and the entry goes with its migration."""
        draft, facts, quota = self.draft, self.draft.facts, self.draft.facts.quota
        if draft.base.limits is None or not draft.default:
            return
        remove(draft.annotations, *RECORDS)
        if facts.limits:
            return
        entries, known = read(quota.annotations), is_ours(quota)
        keys = [key for key in entry_keys(quota.annotations) if not is_by_uid(key)]
        own_keys = [key for key in keys if known and key not in facts.timers.unexplained]
        headroom = total([*(entries.by_key.get(key, {}) for key in own_keys), entries.compensation if known else {}])
        remove(draft.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, *own_keys)
        draft.unexplained |= {key: facts.now for key in keys if key in draft.annotations.keys() - draft.unexplained}
        draft.hard |= lowered(facts, headroom)


class HarvesterRules:
    """Harvester's, beside its controllers, which know default quotas only: an entry is written once, under the VMI's
    uid, and stays as it is until all migrations of its VM are over, with limits.cpu and limits.memory alone; a refused
    target gets what is missing of limits.memory, and 128Mi. A quota that was taken over goes back to Harvester.

    Source: vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go.
    """

    def __init__(self, facts: Facts, policy: Policy, base: Base) -> None:
        annotations = dict(facts.quota.annotations)
        given_back = hand_over(facts, annotations) if is_ours(facts.quota) else {}
        self.draft = QuotaDraft(facts, policy, base, default=True, annotations=annotations)
        self.draft.hard |= {name: limit for name, limit in given_back.items() if name not in self.draft.limits}

    def plan(self) -> Plan:
        """Returns entries, compensation and spec.hard together."""
        draft = self.draft
        keys = {*draft.entries, *draft.invalid}
        is_unknown = any(vm.vmi is None and vm.stage > Stage.FINISHED for vm in draft.vms)
        entered = draft.enter(
            [*self._wanted_entries()], lambda vm: vm.stage > Stage.FINISHED, {}, may_be_unknown=is_unknown
        )
        if keys - draft.annotations.keys():  # as upstream
            remove(draft.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION)
            if draft.base.limits is None:  # where spec.hard is not looked at here, its controller computes it again
                draft.annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
        if not draft.limits:
            remove(draft.annotations, *(RECORDS if draft.base.limits is not None else ()))
            return draft.plan()
        compensate_as_harvester(draft.facts.quota, draft.limits, draft.vms, draft.annotations)
        entries = read(draft.annotations)  # with the compensation
        if entries.invalid:
            draft.problems += [error.problem for error in entries.invalid.values()][:1]
            return draft.plan()
        return draft.plan(add(entered, entries.compensation))

    def _wanted_entries(self) -> Iterator[WantedEntry]:
        """Yields entries of what the formula scales, as far as the quota limits it."""
        draft, quota = self.draft, self.draft.facts.quota
        for vm in draft.vms if draft.limits else ():
            is_new = draft.annotations.keys().isdisjoint(vm.keys)
            if is_new and vm.vmi is not None and vm.need is not None and vm.stage >= Stage.ACTIVE:
                value = {name: vm.need[name] for name in HARVESTERS if name in vm.need and name in quota.hard}
                yield WantedEntry(vm, migrating_uid_key(vm.vmi.uid), value)
