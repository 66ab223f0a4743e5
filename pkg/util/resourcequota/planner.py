"""The decision about one ResourceQuota: from what is observed to one patch. Pure; `plan` is the only way to one.

    facts → base → VMs → entries → spec.hard → plan

Level-triggered: the truth is the migrations and the pods, the annotations say what was added. The same facts always
give the same plan, and a plan applied gives facts whose plan is empty. Whatever happens to the annotations or to
spec.hard, the next patch repairs it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, minimum, subtract, total
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage, is_finished
from pkg.util.problems import EVENT_HOLD_LIMIT, Problem
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resourcequota import entries
from pkg.util.resourcequota.base import HARVESTERS, Base, applied_to, base_of, difference, hard, quantity_of
from pkg.util.resourcequota.compensation import compensate_as_harvester, max_compensation, missing_compensation
from pkg.util.resourcequota.draft import QuotaDraft, WantedEntry
from pkg.util.resourcequota.facts import NO_RANCHER, Facts, Plan
from pkg.util.resourcequota.managed import OWN_MARKS, RECORDS, QuotaManagement, is_default, is_ours, management_of
from pkg.util.resourcequota.policy import EXACT, Mode, Policy
from pkg.util.resourcequota.rancher_request import beside_rancher, with_answer
from pkg.util.resourcequota.timing import has_entry, with_touch, without_touch


def plan(facts: Facts, policy: Policy) -> Plan:
    """Returns the one patch, or request to Rancher, that makes a ResourceQuota fit its namespace's migrations."""
    if facts.quota.deleting:
        return Plan()
    if facts.rancher is NO_RANCHER:
        return _decide(facts, policy)
    facts = with_answer(facts)
    return beside_rancher(facts, _decide(facts, policy))


def _decide(facts: Facts, policy: Policy) -> Plan:
    quota = facts.quota
    management = management_of(quota, namespace_off=facts.namespace_off)
    if policy.released:  # without Rancher's leave Harvester could not go on either
        decided = give_back(facts, to_harvester=not facts.rancher.asks)
    elif management is QuotaManagement.OFF:
        decided = give_back(facts, to_harvester=True)
    elif facts.mtq:
        decided = _left_to_mtq(facts, policy)
    elif management is QuotaManagement.NONE:  # it has lost the label
        decided = give_back(facts)
    elif management is QuotaManagement.SKIPPED:
        decided = Plan()
        if is_default(quota):  # nothing is added, an entry goes with its migrations, one that is not explained stays
            decided = HarvesterRules(facts, replace(policy, foreign_grace=inf), Base(None)).decide()
    else:
        beside_harvester = policy.mode is Mode.ASSIST and is_default(quota)
        decided = (HarvesterRules if beside_harvester else OwnRules)(facts, policy).decide()
        if not facts.rancher.asks:  # a touch is a write of the quota
            return with_touch(facts, decided)
    return without_touch(quota, decided)


def _left_to_mtq(facts: Facts, policy: Policy) -> Plan:
    """Returns the plan for a quota of managed tenant quota: never two strategies on one quota. Entries that are not
    headroom's run out, nothing is added: Harvester may stay, or have left them. A quota without entries is left alone:
    its limits are the other strategy's."""
    quota = facts.quota
    if is_ours(quota) or not (entries.has_migrating_vm(quota.annotations) and is_default(quota)):
        return give_back(facts)
    migrations = [vmim for vmim in facts.migrations if is_finished(vmim) or has_entry(facts, vmim)]
    return HarvesterRules(replace(facts, migrations=migrations), replace(policy, mode=Mode.ASSIST)).decide()


_FOR_ENTRIES = (constants.ANNOTATION_TOUCHED, constants.ANNOTATION_SUMMARY)


def give_back(facts: Facts, *, to_harvester: bool = False) -> Plan:
    """Returns the plan after which nothing of headroom's is left; an empty one for a quota that is not owned.

    `to_harvester`: its own controllers go on from here on a default quota. The entries of migrations under way stay,
    under the key that Harvester looks for when it restores, and spec.hard gets at once the value that Harvester's next
    sync, which the resync flag orders, would give it: resources that Harvester does not scale are at the base."""
    quota = facts.quota
    if not is_ours(quota):
        return Plan()
    annotations = dict(quota.annotations)
    if to_harvester and is_default(quota):
        hard = hand_over(facts, annotations)
        annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
    else:
        hard = lowered(facts, {})
        marks = (constants.ANNOTATION_RESYNC_NEEDED, *OWN_MARKS) if constants.ANNOTATION_OWNER in annotations else ()
        entries.remove(annotations, *_FOR_ENTRIES, *RECORDS, *marks, *filter(entries.is_entry, quota.annotations))
    return Plan(annotations=entries.changes(quota.annotations, annotations), hard=hard)


def hand_over(facts: Facts, annotations: dict[str, str]) -> dict[str, str]:
    """Takes headroom's marks off a default quota, and its entries but those of migrations under way: one a VM, under
    the VMI's uid, by which Harvester looks for it; with the last one goes the compensation. Returns the changes of
    spec.hard: resources that Harvester does not scale are at the base."""
    needed: set[str] = set()
    for migration in facts.migrations:
        vmi = facts.instances.get(migration.spec.vmi_name)
        keys = entries.keys_of(annotations, migration.spec.vmi_name, vmi)
        if is_finished(migration) or not keys:
            continue
        if vmi is not None:
            if (uid_key := entries.migrating_uid_key(vmi.uid)) not in needed:
                annotations[uid_key] = annotations[keys[0]]
            keys = [uid_key]
        needed.update(keys)
    gone = [key for key in entries.entry_keys(annotations) if key not in needed]
    gone += [] if needed else [constants.ANNOTATION_MIGRATING_COMPENSATION]  # Harvester removes it with the last only
    entries.remove(annotations, *gone, *_FOR_ENTRIES, *OWN_MARKS, *RECORDS)
    kept = entries.read(annotations)
    if kept.invalid:  # Harvester leaves spec.hard alone too
        return {}
    return lowered(facts, {name: amount for name, amount in kept.total.items() if name in HARVESTERS})


def lowered(facts: Facts, kept: Mapping[str, Quantity]) -> dict[str, str]:
    """Returns the changes of spec.hard that take the headroom away except for what is kept: the limits that were raised
    are at the base, or lower by the headroom where no base is known. Garbage changes nothing."""
    quota, headroom = facts.quota, entries.read(facts.quota.annotations).total
    limited_by = base_of(quota, facts.limits, EXACT, facts.rancher.granted)
    base = limited_by.limits
    if base is None:
        return {}
    if base or (limited_by.is_default and facts.limits):
        names = {*headroom, *applied_to(quota)}
        if limited_by.is_default:  # upstream: else it is not scaled
            is_scaled = any(not quantity_of(quota.hard, name).is_zero() for name in HARVESTERS)
            names = (names | {*HARVESTERS}) if is_scaled else (names - {*HARVESTERS})
        return difference(quota.hard, {name: base[name] + kept.get(name, ZERO) for name in names if name in base})
    surplus = {name: amount - kept.get(name, ZERO) for name, amount in headroom.items() if name in quota.hard}
    reduced = {name: quantity_of(quota.hard, name) - amount for name, amount in surplus.items()}
    return difference(quota.hard, {name: limit for name, limit in reduced.items() if limit >= ZERO})


class OwnRules(QuotaDraft):
    """Headroom's own: an entry follows the migration and the pods that quota counts, and a refused target gets what the
    overhead has grown by."""

    def __init__(self, facts: Facts, policy: Policy) -> None:
        base = base_of(facts.quota, facts.limits, policy, facts.rancher.granted)
        annotations = dict(facts.quota.annotations)
        if base.is_default:
            annotations |= OWN_MARKS
        elif base.record is not None:
            entries.put(annotations, constants.ANNOTATION_BASE, base.record)
        super().__init__(facts, policy, base, annotations)

    def decide(self) -> Plan:
        """Returns marks, entries, compensation and spec.hard together."""
        self._hold()
        wanted = [*self._wanted_entries()]
        refused = [entry for entry in wanted if entry.vm.stage is Stage.REFUSED and entry.vm.pending_usage]
        growth: ResourceList = {}
        if refused and self.policy.compensate:
            needs = [(entry.vm.target_limit, entry.value) for entry in refused]
            growth = max_compensation(self.facts, self.base, needs, self.problems)
        compensation = minimum(self.compensation, growth)
        entered = self.enter(wanted, lambda vm: vm.stage >= Stage.WITHOUT_TARGET and not self.limits, compensation)
        if not self.limits:
            return self._without_limits()
        if self.invalid:  # spec.hard is left alone
            self.problems += [error.problem for error in self.invalid.values()][:1]
            return self.result()
        if growth:
            lacking = missing_compensation(self.facts.quota, self.vms, hard(self.limits, entered), growth, compensation)
            if lacking != compensation:
                names = ", ".join(f"VM {entry.vm.name}" for entry in sorted(refused, key=lambda entry: entry.turn))
                refusal = self.refusal(f"compensation for {names}", add(entered, lacking))
                self.problems += [refusal] if refusal else []
                compensation = compensation if refusal else lacking
        if compensation or constants.ANNOTATION_MIGRATING_COMPENSATION in self.annotations:
            entries.put(self.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, compensation or None)
        return self.result(add(entered, compensation))

    def _without_limits(self) -> Plan:
        """Gives back what was added in a namespace that has lost its annotation. An entry, or a compensation, that is
        there without headroom's mark was perhaps never applied: it goes, and nothing is subtracted."""
        quota, is_unlimited = self.facts.quota, self.base.is_default and self.base.limits is not None
        if is_unlimited and not self.facts.limits:
            if is_ours(quota) and entries.has_headroom(quota.annotations):
                return give_back(self.facts)
            unwritten = () if is_ours(quota) else OWN_MARKS
            entries.remove(self.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, *unwritten)
        entries.remove(self.annotations, *(RECORDS if is_unlimited else ()))
        return self.result()

    def _hold(self) -> None:
        """Releases what a migration left behind after the hold limit, whatever else its VM does. While a migration is
        under way, as many claims keep their headroom as there are ended launchers of the VM: each uses one."""
        now, limit, known_since = self.facts.now, self.policy.hold_limit, self.facts.timers.held_since
        for index, vm in enumerate(self.vms):
            leftovers = (*vm.old_sides, *vm.old_claims)
            since = {old.uid: min(known_since.get(old.uid, now), old.ended_at or now, now) for old in leftovers}
            self.held_since |= since
            over = {uid for uid, moment in since.items() if moment + limit <= now}
            in_use = vm.ended_pods.value() if vm.stage >= Stage.ACTIVE else 0
            claims_over = [old for old in vm.old_claims if old.uid in over]
            if expired := [old for old in vm.old_sides if old.uid in over] + claims_over[in_use:]:
                sides, claims = ([old for old in olds if old not in expired] for olds in (vm.old_sides, vm.old_claims))
                self.vms[index] = replace(vm, old_sides=sides, old_claims=claims)
                names = ", ".join(leftover.name for leftover in expired)
                text = f"VM {vm.name}: {names} still counts {limit:g} s after the migration"
                self.problems.append(Problem(EVENT_HOLD_LIMIT, text, vm=vm.name))

    def _wanted_entries(self) -> Iterator[WantedEntry]:
        limits, beyond = self.limits, ZERO
        if COUNT_PODS in limits:  # how many pods the base has no room for: launchers that are over count as objects
            granted = total(vm.used_headroom for vm in self.vms).get(COUNT_PODS, ZERO)
            beyond = max(ZERO, quantity_of(self.facts.quota.used, COUNT_PODS) - granted - limits[COUNT_PODS])
        # The base pays for the disks once: those that fill what is added for one VM are not doubled for the next.
        left_to_double = limits
        for vm in self.vms:
            present = entries.present_entry(self.entries, vm.keys)
            value = vm.entry(present)
            if vm.stage >= Stage.ACTIVE and (pods := min(vm.ended_pods, beyond)):
                value, beyond = add(value, {COUNT_PODS: pods}), beyond - pods
            if vm.volumes:
                volumes = minimum(vm.volumes, left_to_double)
                value, left_to_double = add(value, volumes), subtract(left_to_double, volumes)
            value = {name: amount for name, amount in value.items() if name in limits and amount > ZERO}
            if value:
                yield WantedEntry(vm, entries.migrating_key(vm.name), value, present)


class HarvesterRules(QuotaDraft):
    """Harvester's, beside its controllers, which know default quotas only: an entry is written once, under the VMI's
    uid, and stays as it is until all migrations of its VM are over, with limits.cpu and limits.memory alone; a refused
    target gets what is missing of limits.memory, and 128Mi. A quota that was taken over goes back to Harvester.

    Source: vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go."""

    def __init__(self, facts: Facts, policy: Policy, base: Base | None = None) -> None:
        base = base or base_of(facts.quota, facts.limits, policy, facts.rancher.granted)
        annotations = dict(facts.quota.annotations)
        given_back = hand_over(facts, annotations) if is_ours(facts.quota) else {}
        super().__init__(facts, policy, base, annotations)
        self.hard |= {name: limit for name, limit in given_back.items() if name not in self.limits}

    def decide(self) -> Plan:
        """Returns entries, compensation and spec.hard together."""
        keys = {*self.entries, *self.invalid}
        is_unknown = any(vm.vmi is None and vm.stage > Stage.FINISHED for vm in self.vms)
        wanted = [*self._wanted_entries()]
        entered = self.enter(wanted, lambda vm: vm.stage > Stage.FINISHED, {}, may_be_unknown=is_unknown)
        if keys - self.annotations.keys():  # as upstream
            entries.remove(self.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION)
            if self.base.limits is None:  # where spec.hard is not looked at here, its controller computes it again
                self.annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
        if not self.limits:
            entries.remove(self.annotations, *(RECORDS if self.base.limits is not None else ()))
            return self.result()
        compensate_as_harvester(self.facts.quota, self.limits, self.vms, self.annotations)
        present = entries.read(self.annotations)  # with the compensation
        if present.invalid:
            self.problems += [error.problem for error in present.invalid.values()][:1]
            return self.result()
        return self.result(add(entered, present.compensation))

    def _wanted_entries(self) -> Iterator[WantedEntry]:
        """Yields entries of what the formula scales, as far as the quota limits it."""
        for vm in self.vms if self.limits else ():
            is_new = self.annotations.keys().isdisjoint(vm.keys)
            if is_new and vm.vmi is not None and vm.need is not None and vm.stage >= Stage.ACTIVE:
                names = [name for name in HARVESTERS if name in vm.need and name in self.facts.quota.hard]
                yield WantedEntry(vm, entries.migrating_uid_key(vm.vmi.uid), {name: vm.need[name] for name in names})
