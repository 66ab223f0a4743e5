"""The refused migrations of a namespace, and those of them that its budget releases together. Pure.

    blocking = refused with today's spec.hard, admitted with what a window adds

A window adds min(source, target) of every VM that migrates, and no more than the budget. The base pays for what a VM
has grown by, as in the annotation strategy: the same rules say what a side is worth. A quota that refuses even then
leaves the migration where it is, and nothing is changed for its sake."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.objects import by_creation
from kubeloop.api.quantity import NANOS, ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, minimum, parse_resource_list, subtract, total
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.amounts import format_distinctly
from pkg.util.kubevirt.evidence import VMI, controller_of, trusted_status
from pkg.util.kubevirt.migration import abort_requested, is_refused, parallel_limit_reason, second_of
from pkg.util.managedtenantquota.lock import admitted_by
from pkg.util.managedtenantquota.model import Observed, Record, WindowPolicy
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import has_scopes, is_extended
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.entries import has_headroom
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.room import lacking_resources
from pkg.util.resourcequota.vm import VmUsage, vms_one_by_one

VmUsages = Mapping[str, VmUsage | Problem]


@dataclass(slots=True)
class RefusedTarget:
    """A migration whose target's pods quota refuses, and what a window does for it."""

    migration: VirtualMachineInstanceMigration
    lacks_launcher: bool  # False: only the attachment pods are missing
    admission_key: str  # by which a lock names it: `UID/VM`
    wait_reason: str = ""  # why it is not released, although it could be: for people
    blocking: Sequence[str] = ()
    """The names of the quotas that are raised to release it; none: it is not released."""
    lacks_room: bool = False


class WindowQuota:
    """A quota with the headroom for the migrations that are admitted so far, the usage of their targets, and what it
    says about the last one."""

    def __init__(self, quota: ResourceQuota, record: Record | None, vms: VmUsages, max_headroom: ResourceList) -> None:
        """`record`: of a quota that is raised; `max_headroom`: what may be added."""
        self.name = quota.name
        self.is_taken = has_headroom(quota.annotations) or constants.ANNOTATION_OWNER in quota.annotations
        """The annotation strategy, ours or Harvester's own, has something on it: not to be raised by both."""
        self.refuses = False
        """Before it is raised, it refuses the pod that is created next."""
        self.shortages: Mapping[str, str] = {}
        """Even raised, it refuses the target beside the others for these: quota and resource, and a text for people."""
        self.is_by_others = self.is_certain = True
        """The target's own entry, which the budget has room for, holds all of these: others use what is added; and the
        cache shows the target pods that status.used counts of them."""
        self._vms, self._max_headroom = vms, max_headroom
        hard = record.hard if record else quota.hard
        self._hard, self._used = parse_resource_list(hard), parse_resource_list(quota.used)
        self._sum_of_all = total(vm.used_headroom for vm in vms.values() if isinstance(vm, VmUsage))
        # Invariant: the sum of what is used now, in which those that are let in have what is granted to them.
        self._shown = add(self._hard, self._sum_of_all)
        """The most that status.used can be by the pods that the cache shows."""
        self._sum_of_admitted: ResourceList = {}
        self._needed: ResourceList = {}

    def admit(self, target: RefusedTarget) -> "WindowQuota":
        """Returns the quota with a target admitted beside the others. Raises QuantityError: what its VM needs cannot be
        determined. What quota will count of its pods is not bounded: quota refuses all of it."""
        vm, admitted = self._vm(target), copy(self)
        need, entry = add(vm.pending_launcher, vm.pending_attachment), vm.wanted_entry
        others = subtract(self._sum_of_all, vm.used_headroom)
        admitted._sum_of_admitted, admitted._sum_of_all = add(self._sum_of_admitted, entry), add(others, entry)
        admitted._needed = add(self._needed, need)
        # If the VM has grown, without what is added for pods that are there: one that has just ended may be in the
        # cache and not in `used`, and the growth would be let in for it.
        alone, shared = self._capped(admitted._sum_of_admitted), admitted.headroom
        raised = {
            name: limit + (alone if need.get(name, ZERO) > entry.get(name, ZERO) else shared).get(name, ZERO)
            for name, limit in self._hard.items()
        }
        first_pod = vm.pending_launcher if target.lacks_launcher else vm.pending_attachment
        lacking = sorted(lacking_resources(need, raised, add(self._used, self._needed)))
        own, shortages = self._capped(entry), {}
        for name in lacking:
            amounts = format_distinctly(name, need[name], self._used.get(name, ZERO), self._hard[name], raised[name])
            text = "{} of quota {}: requested {}, used {}, limited {}, with what may be added {}"
            shortages[f"{self.name}/{name}"] = text.format(name, self.name, *amounts)
        admitted.refuses, admitted.shortages = bool(lacking_resources(first_pod, self._hard, self._used)), shortages
        admitted.is_by_others = all(need[name] <= own.get(name, ZERO) for name in lacking)
        admitted.is_certain = all(self._used.get(name, ZERO) <= self._shown[name] for name in lacking)
        return admitted

    @property
    def headroom(self) -> ResourceList:
        """Returns the headroom for all that are admitted, and for all VMs whose migration is under way."""
        return self._capped(self._sum_of_all)

    def _vm(self, target: RefusedTarget) -> VmUsage:
        vm = self._vms[target.migration.spec.vmi_name]
        if isinstance(vm, Problem):
            raise QuantityError(vm.message)
        return vm

    def _capped(self, amounts: ResourceList) -> ResourceList:
        granted = minimum(self._max_headroom, amounts)
        return {name: amount for name, amount in granted.items() if name in self._hard}


def facts_by_scopes(observed: Observed) -> dict[str, Facts]:
    """Returns what VMs are worked out from, by a quota with scopes and "" for all others; nothing while no VM waits."""
    facts = replace(observed.facts, now=observed.now)
    jobs = {pod.labels.get(constants.LABEL_MIGRATION_JOB_UID) for pod in facts.pods}
    waiting = (vmim for vmim in facts.migrations if vmim.phase == constants.PHASE_PENDING)
    # Those that KubeVirt's parallel limits hold up have no condition.
    if not any(vmim.status.conditions or vmim.uid in jobs for vmim in waiting):
        return {}
    scoped = [quota for quota in observed.quotas if has_scopes(quota.spec)]
    return {"": facts} | {quota.name: replace(facts, quota=quota) for quota in scoped}


def _refused_targets(facts: Facts, vms: VmUsages) -> list[RefusedTarget]:
    """Returns the refused migrations that wait for a pod of their target, oldest first."""
    launchers: dict[str, list[Pod]] = defaultdict(list)
    for pod in facts.pods:
        if pod.labels.get(constants.LABEL_APP) == constants.APP_VIRT_LAUNCHER:
            launchers[controller_of(pod, VMI).uid].append(pod)
    first_by_vm: dict[str, RefusedTarget] = {}
    result = []
    for migration in sorted(facts.migrations, key=by_creation):
        name = migration.spec.vmi_name
        vmi, vm = facts.instances.get(name), vms.get(name)
        if vmi is None or migration.phase != constants.PHASE_PENDING or migration.deleting:
            continue
        pods = launchers[vmi.uid]
        labelled = [pod for pod in pods if pod.labels.get(constants.LABEL_MIGRATION_JOB_UID) == migration.uid]
        # Tenants may write the label to an older pod.
        if targets := [pod for pod in labelled if second_of(pod) >= second_of(migration)]:
            # Whatever became of it. No condition says that quota refused its attachment pod.
            is_running = any(pod.status.phase == constants.PHASE_RUNNING for pod in targets)
            lacks_attachment = isinstance(vm, VmUsage) and bool(vm.pending_attachment) and not vm.pending_launcher
            is_missing = is_running and lacks_attachment and not abort_requested(migration)
        else:
            # KubeVirt starts no target while a pod of an earlier migration runs (its VMIActivePodsCount;
            # status.activePods lists ended pods too).
            is_missing = is_refused(migration) and sum(not pod.terminal for pod in pods) <= 1
        if is_missing:
            target = RefusedTarget(migration, not targets, f"{migration.uid}/{name}")
            first = first_by_vm.setdefault(name, target)
            target.wait_reason = "" if first is target else f"migration {first.migration.name} of the same VM is first"
            result.append(target)
    return result


class Selection:
    """The migrations that a budget releases together, and why others wait: none before `select`."""

    def __init__(self, observed: Observed, policy: WindowPolicy) -> None:
        self.observed, self.policy = observed, policy
        self.timers, self.recheck_after = observed.timers, math.inf
        """The waiting times for the next decision, and the seconds until that."""
        self.problems: list[Problem] = []
        self.refused_targets: Sequence[RefusedTarget] = ()
        self.targets: Sequence[RefusedTarget] = ()
        """Those of them that are released."""
        self.headroom: Mapping[str, ResourceList] = {}
        """What is added to each of the quotas that block those that are released, by name."""

    def select(self, records: Mapping[str, Record], members: Collection[str]) -> None:
        """Selects beside `members`, the names of those that share the window already; `records`: how quotas were."""
        observed = self.observed
        latest = observed.now + self.policy.longest_pause  # what is later is from before the clock was set back
        paused = {uid: until for uid, until in observed.timers.paused.items() if observed.now < until <= latest}
        self.timers = replace(observed.timers, paused=paused, short_since={})
        vms: dict[str, VmUsages] = {}
        for scopes, facts in facts_by_scopes(observed).items():
            usages = vms_one_by_one(facts, EXACT, Base(None))
            vms[scopes] = {vm.name if isinstance(vm, VmUsage) else vm.vm: vm for vm in usages}
        targets = _refused_targets(observed.facts, vms[""]) if vms else []
        present = admitted_by(observed.lock) if observed.lock else ()
        self.refused_targets = sorted(targets, key=lambda target: target.admission_key not in present)
        try:
            max_headroom = parse_resource_list(observed.budgets[0].additional)
            if negative := ", ".join(name for name, amount in max_headroom.items() if amount < ZERO):
                raise QuantityError(f"{negative}: less than nothing")
            for name, amount in max_headroom.items():
                if name in ("pods", "persistentvolumeclaims") or is_extended(name):
                    max_headroom[name] = Quantity.of(amount.nanos // NANOS)  # a limit may have no fraction of these
            self._quotas = [
                WindowQuota(quota, records.get(quota.name), vms.get(quota.name, vms[""]), max_headroom)
                for quota in observed.quotas
                if targets and quota.hard and not quota.deleting
            ]
        except QuantityError as exc:
            message = f"spec.additionalMigrationResources: {exc}"
            self.problems.append(observed.problem(constants.EVENT_INVALID_BUDGET, message, message))
            return
        self._release(members)

    def _release(self, members: Collection[str]) -> None:
        """Judges one migration after the other, beside those that are admitted before."""
        observed, lock = self.observed, self.observed.lock
        # Whether others join an open window goes by when we saw it, not by its age: where the clocks of API servers
        # differ, a lock that is new would be for nobody.
        seconds_open = observed.now - lock.known_since if lock else 0.0
        is_too_late = seconds_open >= self.policy.open_to_others or bool(lock and observed.lock_unavailable_reason)
        for target in self.refused_targets:
            is_member = target.migration.name in members
            seconds, target.wait_reason = self._pause_of(target, is_too_late and not is_member)
            if target.wait_reason:
                self._recheck(seconds)
            else:
                self._judge(target, is_member)
        self.targets = [target for target in self.refused_targets if target.blocking]
        blocking = {name for target in self.targets for name in target.blocking}
        self.headroom = {quota.name: quota.headroom for quota in self._quotas if quota.name in blocking}

    def _pause_of(self, target: RefusedTarget, too_late: bool) -> tuple[float, str]:
        """Returns for how many seconds a target waits, and why ("": not). `too_late`: the window is open for others."""
        seconds = self.timers.paused.get(target.migration.uid, 0.0) - self.observed.now
        if seconds > 0:
            return seconds, f"a window for it was closed without a target pod, it is retried in {seconds:.0f} s"
        if target.wait_reason or too_late:
            reason = target.wait_reason or "a window is open for other migrations: it is for the next one"
            return self.policy.sweep, reason
        facts, limit_reason = self.observed.facts, ""
        if target.lacks_launcher:
            node = trusted_status(facts.instances[target.migration.spec.vmi_name]).node_name or ""
            limit_reason = parallel_limit_reason(facts.running, node, facts.rendering.kubevirt.migrations)
        return self.policy.recheck, limit_reason and f"KubeVirt's limits: {limit_reason}"

    def _judge(self, target: RefusedTarget, is_member: bool) -> None:
        try:
            quotas = [quota.admit(target) for quota in self._quotas]
        except QuantityError as exc:
            self._report_shortages(target, {"/": f"what it needs cannot be determined: {exc}"})
            return
        blocking = [quota for quota in quotas if quota.refuses]
        if names := ", ".join(quota.name for quota in blocking if quota.is_taken):
            # The other strategy is about to give it back: its limits are not the original ones.
            target.wait_reason = f"resource quota {names} still holds what was added for migrations by annotations"
            self._recheck(self.policy.sweep)
            return
        if any(quota.shortages for quota in quotas):
            self._await_room(target, quotas, is_member)
        if blocking and not target.lacks_room:
            self._quotas = quotas
            target.blocking = sorted(quota.name for quota in blocking)

    def _await_room(self, target: RefusedTarget, quotas: Sequence[WindowQuota], is_member: bool) -> None:
        """Leaves a migration for a later window, and reports the shortage once it lasts. One that has a part in the
        window keeps it for a moment if status.used may count a target pod that the cache does not show yet."""
        is_by_others = all(quota.is_by_others for quota in quotas)
        now, key, policy = self.observed.now, (target.migration.uid, is_by_others), self.policy
        since = self.observed.timers.short_since.get(key, now)
        self.timers = replace(self.timers, short_since={**self.timers.short_since, key: since})
        is_certain = all(quota.is_certain for quota in quotas)
        target.lacks_room = is_certain or not is_member or now - since >= policy.cache_delay
        if not target.lacks_room:
            self._recheck(since + policy.cache_delay - now)
        seconds_left = since + (policy.crowding if is_by_others else policy.cache_delay) - now
        if seconds_left <= 0:
            self._report_shortages(target, {key: text for quota in quotas for key, text in quota.shortages.items()})
        else:
            self._recheck(seconds_left)

    def _report_shortages(self, target: RefusedTarget, shortages: Mapping[str, str]) -> None:
        migration = target.migration
        message = (
            f"{self.observed.budgets[0].name} does not have enough resources to release migration {migration.name} of "
            f"VM {migration.spec.vmi_name}: {'; '.join(shortages.values())}"
        )
        key = f"{migration.uid}/{','.join(sorted(shortages))}"
        self.problems.append(self.observed.problem(constants.EVENT_NOT_ENOUGH, message, key, migration))

    def _recheck(self, seconds: float) -> None:
        self.recheck_after = min(self.recheck_after, seconds)
