"""VirtualMachine → VirtualMachineInstance, as its run strategy asks, and the VM's status."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from kubeloop.api.objects import condition_is_true, find_condition, owner_reference
from kubeloop.client.errors import AlreadyExists, Conflict
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from lab.kubevirt import objects
from lab.kubevirt.lookup import is_owned_by
from lab.kubevirt.objects import Patch, VirtualMachine, VirtualMachineInstance, delete, write
from pkg.util import constants


class Action(Enum):
    """The action on a VM's VMI."""

    LEAVE = "leave"
    START = "start"
    STOP = "stop"


_FAILED, _SUCCEEDED = constants.PHASE_FAILED, constants.PHASE_SUCCEEDED
STARTING: Mapping[str, tuple[str, ...]] = {"Always": (_FAILED, _SUCCEEDED), "RerunOnFailure": (_FAILED,), "Once": ()}
"""The run strategies that start a VM, and after which final phases of its VMI again. The others leave it alone; Manual
is started through KubeVirt's own API, which is not served here."""
_STOPPING = ("WaitAsReceiver", constants.RUN_STRATEGY_HALTED)
_NEVER_RAN = (None, "", "Starting", "ErrorUnschedulable")


def run_strategy(vm: VirtualMachine) -> str:
    """Returns spec.runStrategy, or the strategy that spec.running stands for."""
    return vm.spec.run_strategy or ("Always" if vm.spec.running else constants.RUN_STRATEGY_HALTED)


def next_action(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> Action:
    """Returns the action on the VMI, which is this VM's own or None. An unknown strategy does nothing."""
    strategy = run_strategy(vm)
    if strategy not in (*STARTING, *_STOPPING) or (vmi is not None and vmi.deleting):
        return Action.LEAVE
    if vmi is None:
        has_run = strategy == "Once" and vm.status.printable_status not in _NEVER_RAN
        return Action.START if strategy in STARTING and not vm.deleting and not has_run else Action.LEAVE
    stops = strategy in _STOPPING or vm.deleting or vmi.phase in STARTING[strategy]
    return Action.STOP if stops else Action.LEAVE


def vmi_body(vm: VirtualMachine) -> dict[str, Any]:
    meta = vm.spec.template.metadata
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": vm.name,
            "namespace": vm.namespace,
            "labels": dict(meta.labels or {}),
            "annotations": dict(meta.annotations or {}),
            "finalizers": [objects.FINALIZER_VMI],
            "ownerReferences": [msgspec.to_builtins(owner_reference(vm, controller=True))],
        },
        "spec": vm.spec.template.spec,
    }


def status_patch(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> Patch | None:
    """The merge patch of /status, None when all is said."""
    status: Patch = {
        "printableStatus": printable_status(vm, vmi),
        "created": vmi is not None,
        "ready": vmi is not None and condition_is_true(vmi.status.conditions, "Ready"),
    }
    current = {"printableStatus": vm.status.printable_status, "created": vm.status.created, "ready": vm.status.ready}
    return None if status == current else {"status": status}


def printable_status(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> str:
    """The status that kubectl and Harvester's UI show (KubeVirt's table of printable statuses)."""
    if vm.deleting:
        return "Terminating"
    if vmi is None:
        return "Starting" if next_action(vm, vmi) is Action.START else "Stopped"
    if vmi.deleting:
        return "Stopping"
    if vmi.phase == constants.PHASE_RUNNING:
        state = vmi.status.migration_state
        return "Migrating" if state and state.start_timestamp and not state.completed else "Running"
    if vmi.phase in constants.FINAL_PHASES:
        return "Stopped"
    condition = find_condition(vmi.status.conditions, objects.CONDITION_SYNCHRONIZED)
    return "ErrorUnschedulable" if condition and condition.status == "False" else "Starting"


logger = logging.getLogger(__name__)


@dataclass(eq=False)
class VMHandler:
    """Handles one VM at a time: its VMI first, then the VM's status."""

    vms: ResourceClient[VirtualMachine]
    vmis: Controller[VirtualMachineInstance]

    async def on_vm_changed(self, key: str, vm: VirtualMachine | None) -> None:
        """Raises ApiError."""
        if vm is None:
            return
        vmi = self.vmis.cache().get_by_key(key)
        if vmi is not None and not is_owned_by(vmi, vm):
            return  # A VMI of the same name that is not this VM's: KubeVirt leaves both alone.
        action = next_action(vm, vmi)
        if action is Action.START:
            # The cache does not show it yet, or an earlier one is still going.
            with contextlib.suppress(AlreadyExists):
                await self.vmis.client.create(vmi_body(vm))
                logger.info("started %s", key)
        elif action is Action.STOP and vmi is not None:
            with contextlib.suppress(Conflict):  # Another one by now.
                await delete(self.vmis.client, vmi)
                logger.info("stopped %s", key)
        if patch := status_patch(vm, vmi):
            await write(self.vms, vm, patch, "status")
