"""VirtualMachine → VirtualMachineInstance, as its run strategy asks, and the VM's status."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from kubeloop.api.objects import condition_is_true, find_condition, guarded, owner_reference
from kubeloop.client.errors import AlreadyExists, Conflict, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt import names
from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from lab.kubevirt.patches import Patch
from pkg.util import constants


class Action(Enum):
    """What is to be done about a VM's VMI."""

    LEAVE = "leave"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Policy:
    """A run strategy: does it start the VM, and after which final phases of the VMI again.

    `once`: it starts a VM that has never run, and leaves one alone that was stopped.
    """

    starts: bool
    again_after: frozenset[str] = frozenset()
    once: bool = False


_FAILED, _SUCCEEDED = constants.PHASE_FAILED, constants.PHASE_SUCCEEDED
POLICIES = {
    "Always": Policy(True, frozenset({_FAILED, _SUCCEEDED})),
    "RerunOnFailure": Policy(True, frozenset({_FAILED})),
    "Manual": Policy(True, once=True),
    "Once": Policy(True, once=True),
    "WaitAsReceiver": Policy(False),
    constants.RUN_STRATEGY_HALTED: Policy(False),
}
"""Run strategy to policy; one that is not known leaves the VM alone."""

_NEVER_RAN = frozenset({"", "Starting", "ErrorUnschedulable"})


def run_strategy(vm: VirtualMachine) -> str:
    """spec.runStrategy, else what spec.running stands for."""
    return vm.spec.run_strategy or ("Always" if vm.spec.running else constants.RUN_STRATEGY_HALTED)


def next_action(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> Action:
    """What is to be done about the VMI, which is this VM's own or None."""
    policy = POLICIES.get(run_strategy(vm))
    if policy is None or (vmi is not None and vmi.deleting):
        return Action.LEAVE
    if vmi is None:
        starts = policy.starts and not vm.deleting
        ran = policy.once and vm.status.printable_status not in (None, *_NEVER_RAN)
        return Action.START if starts and not ran else Action.LEAVE
    stops = not policy.starts or vm.deleting or vmi.phase in policy.again_after
    return Action.STOP if stops else Action.LEAVE


def instance_body(vm: VirtualMachine) -> dict[str, Any]:
    meta = vm.spec.template.metadata
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": vm.name,
            "namespace": vm.namespace,
            "labels": dict(meta.labels or {}),
            "annotations": dict(meta.annotations or {}),
            "finalizers": [names.FINALIZER_INSTANCE],
            "ownerReferences": [msgspec.to_builtins(owner_reference(vm, controller=True))],
        },
        "spec": vm.spec.template.spec,
    }


def owned_by(vmi: VirtualMachineInstance, vm: VirtualMachine) -> bool:
    """Whether the VMI is this VM's: a VMI of the same name may have been created without."""
    return any(ref.uid == vm.uid for ref in vmi.metadata.owner_references or ())


def status_patch(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> Patch | None:
    """The merge patch of /status, None when all is said."""
    wanted: Patch = {
        "printableStatus": printable_status(vm, vmi),
        "created": vmi is not None,
        "ready": vmi is not None and condition_is_true(vmi.status.conditions, "Ready"),
    }
    have = {"printableStatus": vm.status.printable_status, "created": vm.status.created, "ready": vm.status.ready}
    return None if wanted == have else {"status": wanted}


def printable_status(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> str:
    """The status that kubectl and Harvester's UI show (KubeVirt's table of printable statuses)."""
    if vm.deleting:
        return "Terminating"
    if vmi is None:
        return "Starting" if next_action(vm, vmi) is Action.START else "Stopped"
    if vmi.deleting:
        return "Stopping"
    if vmi.phase == constants.PHASE_RUNNING:
        return "Migrating" if _migrating(vmi) else "Running"
    if vmi.phase in constants.FINAL_PHASES:
        return "Stopped"
    synchronized = find_condition(vmi.status.conditions, names.CONDITION_SYNCHRONIZED)
    return "ErrorUnschedulable" if synchronized and synchronized.status == "False" else "Starting"


def _migrating(vmi: VirtualMachineInstance) -> bool:
    state = vmi.status.migration_state
    return state is not None and state.start_timestamp is not None and not state.completed


logger = logging.getLogger(__name__)


@dataclass(eq=False)
class MachineHandler:
    """One VM at a time: its VMI first, then what its status says."""

    machines: ResourceClient[VirtualMachine]
    instances: ResourceClient[VirtualMachineInstance]
    cache: CacheReader[VirtualMachineInstance]

    async def on_machine_changed(self, key: str, vm: VirtualMachine | None) -> None:
        """Raises ApiError."""
        if vm is None:
            return
        vmi = self.cache.get_by_key(key)
        if vmi is not None and not owned_by(vmi, vm):
            return  # A VMI of the same name that is not this VM's: KubeVirt leaves both alone.
        wanted = next_action(vm, vmi)
        if wanted is Action.START:
            await self._start(vm)
        elif wanted is Action.STOP and vmi is not None:
            await self._stop(vmi)
        patch = status_patch(vm, vmi)
        if patch is not None:
            with contextlib.suppress(NotFound):  # deleted meanwhile
                await self.machines.merge_patch(
                    guarded(vm, patch), name=vm.name, namespace=vm.namespace, subresource="status"
                )

    async def _start(self, vm: VirtualMachine) -> None:
        try:
            await self.instances.create(instance_body(vm), namespace=vm.namespace)
        except AlreadyExists:
            return  # The cache does not show it yet, or an earlier one is still going.
        logger.info("started %s", vm.key)

    async def _stop(self, vmi: VirtualMachineInstance) -> None:
        try:
            await self.instances.delete(name=vmi.name, namespace=vmi.namespace, uid=vmi.uid)
        except (NotFound, Conflict):
            return  # Gone, or another one by now.
        logger.info("stopped %s", vmi.key)
