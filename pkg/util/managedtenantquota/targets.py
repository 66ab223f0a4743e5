"""The refused migrations of a namespace: what is missing of their targets, what a quota counts of it, and what there is
room for while a window adds min(source, target) of every VM that migrates, and no more than the budget. Pure.

The base pays for what a VM has grown by, as in the annotation strategy: the same rules say what a side is worth."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.objects import by_creation
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, minimum, parse_resource_list, subtract, total
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.amounts import format_distinctly
from pkg.util.kubevirt.launcher import has_hotplugged_volumes
from pkg.util.kubevirt.migration import abort_requested, is_refused
from pkg.util.kubevirt.sides import ControlledPods, target_launchers
from pkg.util.managedtenantquota.lock import admission_key
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import is_extended
from pkg.util.resourcequota.entries import has_headroom
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.room import lacking_resources
from pkg.util.resourcequota.vm import VmUsage


class WindowShortage(NamedTuple):
    """A resource of a quota in which a target does not fit; `key` names both."""

    key: str
    text: str
    is_by_others: bool = False
    """Its own entry, which the budget has room for, holds it: others use what is added."""
    is_certain: bool = True
    """The cache shows the target pods that status.used counts."""


@dataclass(slots=True)
class RefusedTarget:
    """A migration whose target's pods quota refuses, and what a window does for it."""

    migration: VirtualMachineInstanceMigration
    vmi: VirtualMachineInstance
    launcher: bool
    """False: only the attachment pods are missing."""
    blocking: Sequence[str] = ()
    """The names of the quotas that are raised to release it; none: it is not released."""
    wait_reason: str = ""
    """Why not, although it could be: for people."""
    lacks_room: bool = False
    """The budget does not suffice for it beside the others."""

    @property
    def admission_key(self) -> str:
        """Returns the text by which a lock names it."""
        return admission_key(self.migration.uid, self.migration.spec.vmi_name)


class WindowQuota:
    """A quota with the headroom for the migrations that are admitted so far, and the usage of their targets. Methods
    that take a target raise QuantityError: what its VM needs cannot be determined."""

    def __init__(self, quota: ResourceQuota, vms: Iterable[VmUsage | Problem], max_headroom: ResourceList) -> None:
        """`quota`: as it was before it was raised; `max_headroom`: what may be added."""
        self.quota = quota
        self.is_taken = has_headroom(quota.annotations) or constants.ANNOTATION_OWNER in quota.annotations
        """The annotation strategy, ours or Harvester's own, has something on it: not to be raised by both."""
        self._max_headroom = {name: _whole(name, amount) for name, amount in max_headroom.items()}
        self._hard, self._used = parse_resource_list(quota.hard), parse_resource_list(quota.used)
        self._vms = {vm.name if isinstance(vm, VmUsage) else vm.vm: vm for vm in vms}
        self._promised = total(vm.used_headroom for vm in self._vms.values() if isinstance(vm, VmUsage))
        self._sum_of_all = self._promised
        # Invariant: the sum of what is used now, in which those that are let in have what is granted to them.
        self._sum_of_admitted: ResourceList = {}
        self._needed: ResourceList = {}

    def refuses(self, target: RefusedTarget) -> bool:
        """Reports whether the quota, before it is raised, refuses the pod that is created next."""
        vm = self._vm(target)
        need = vm.pending_launcher if target.launcher else vm.pending_attachment
        return bool(lacking_resources(need, self._hard, self._used))

    def shortages(self, target: RefusedTarget) -> list[WindowShortage]:
        """Returns the resources in which the quota, even raised, refuses the target beside the others."""
        vm, shortages = self._vm(target), []
        need, entry = vm.pending_usage, self._capped(vm.wanted_entry)
        # If the VM has grown, without what is added for pods that are there: one that has just ended may be in the
        # cache and not in `used`, and the growth would be let in for it.
        alone, shared = map(self._capped, self._sums_with(vm))
        grown = {name for name, amount in need.items() if amount > vm.wanted_entry.get(name, ZERO)}
        raised = {n: limit + (alone if n in grown else shared).get(n, ZERO) for n, limit in self._hard.items()}
        for name in sorted(lacking_resources(need, raised, add(self._used, self._needed))):
            used = self._used.get(name, ZERO)
            amounts = format_distinctly(name, need[name], used, self._hard[name], raised[name])
            text = "{} of quota {}: requested {}, used {}, limited {}, with what may be added {}"
            text = text.format(name, self.quota.name, *amounts)
            is_certain = used <= self._hard[name] + self._promised.get(name, ZERO)
            is_by_others = need[name] <= entry.get(name, ZERO)
            shortages.append(WindowShortage(f"{self.quota.name}/{name}", text, is_by_others, is_certain))
        return shortages

    def admit(self, target: RefusedTarget) -> None:
        """Adds a target's entry and usage."""
        vm = self._vm(target)
        self._sum_of_admitted, self._sum_of_all = self._sums_with(vm)
        self._needed = add(self._needed, vm.pending_usage)

    @property
    def headroom(self) -> ResourceList:
        """Returns the headroom for all that are admitted, and for all VMs whose migration is under way."""
        return self._capped(self._sum_of_all)

    def _sums_with(self, vm: VmUsage) -> tuple[ResourceList, ResourceList]:
        """Returns the sums of the entries of admitted VMs, and of all, with this VM among them."""
        others = subtract(self._sum_of_all, vm.used_headroom)
        return add(self._sum_of_admitted, vm.wanted_entry), add(others, vm.wanted_entry)

    def _vm(self, target: RefusedTarget) -> VmUsage:
        """Returns the target's VM. What quota will count of its pods is not bounded: quota refuses all of it."""
        vm = self._vms[target.vmi.name]
        if isinstance(vm, Problem):
            raise QuantityError(vm.message)
        return vm

    def _capped(self, amounts: ResourceList) -> ResourceList:
        granted = minimum(self._max_headroom, amounts)
        return {name: amount for name, amount in granted.items() if name in self._hard}


def refused_targets(facts: Facts) -> list[RefusedTarget]:
    """Returns the refused migrations that wait for a pod of their target, oldest first, one a VM."""
    pods, result = ControlledPods(facts.pods), dict[str, RefusedTarget]()
    for migration in sorted(facts.migrations, key=by_creation):
        vmi = facts.instances.get(migration.spec.vmi_name)
        if vmi is None or migration.phase != constants.PHASE_PENDING or migration.deleting:
            continue
        launchers = [*(side.launcher for side in pods.sides[vmi.uid]), *pods.ended_launchers[vmi.uid]]
        targets = target_launchers(migration, vmi, launchers)
        if targets:
            is_missing = not abort_requested(migration) and _lacks_attachment(vmi, targets, pods)
        else:
            # KubeVirt starts no target while a pod of an earlier migration runs (its VMIActivePodsCount;
            # status.activePods lists ended pods too).
            is_missing = is_refused(migration) and len(pods.live_sides[vmi.uid]) <= 1
        if is_missing:
            result.setdefault(vmi.name, RefusedTarget(migration, vmi, launcher=not targets))
    return list(result.values())


def _lacks_attachment(vmi: VirtualMachineInstance, targets: Sequence[Pod], pods: ControlledPods) -> bool:
    """Reports whether a running target has no attachment pod yet; no condition says that quota refused it."""
    running = {pod.uid for pod in targets if pod.status.phase == constants.PHASE_RUNNING}
    sides = [side for side in pods.sides[vmi.uid] if side.launcher.uid in running]
    return bool(sides) and has_hotplugged_volumes(vmi) and not any(side.attachments for side in sides)


def _whole(name: str, amount: Quantity) -> Quantity:
    """Returns an amount that a limit may have: the API server refuses a fraction of what counts objects or devices."""
    if name not in ("pods", "persistentvolumeclaims") and not is_extended(name):
        return amount
    rounded_up = amount.value()
    return Quantity.of(rounded_up - (Quantity.of(rounded_up) > amount))
