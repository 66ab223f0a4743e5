"""A VirtualMachine's decisions: should it run, what is its VMI, what does its status say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from pkg.api.meta import Condition, condition_is_true
from pkg.testcluster.kubevirt import names
from pkg.testcluster.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from pkg.testcluster.kubevirt.patches import Patch, conditions_with
from pkg.testcluster.kubevirt.pod import owner_reference
from pkg.util import constants

SYNCHRONIZED = "Synchronized"
"""Condition of a VMI whose pod could not be created: status False, reason FailedCreate."""


class Wish(Enum):
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


def wish(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> Wish:
    """What is to be done about the VMI, which is this VM's own or None."""
    policy = POLICIES.get(run_strategy(vm))
    if policy is None or (vmi is not None and vmi.deleting):
        return Wish.LEAVE
    if vmi is None:
        starts = policy.starts and not vm.deleting
        ran = policy.once and vm.status.printable_status not in (None, *_NEVER_RAN)
        return Wish.START if starts and not ran else Wish.LEAVE
    stops = not policy.starts or vm.deleting or vmi.phase in policy.again_after
    return Wish.STOP if stops else Wish.LEAVE


def instance_body(vm: VirtualMachine) -> dict[str, Any]:
    """The VMI that a VM is started as."""
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
            "ownerReferences": [owner_reference(vm, "kubevirt.io/v1", "VirtualMachine")],
        },
        "spec": vm.spec.template.spec,
    }


def owned_by(vmi: VirtualMachineInstance, vm: VirtualMachine) -> bool:
    """Whether the VMI is this VM's: a VMI of the same name may have been created without."""
    return any(ref.uid == vm.uid for ref in vmi.metadata.owner_references or ())


def status_patch(vm: VirtualMachine, vmi: VirtualMachineInstance | None, now: str) -> Patch | None:
    """The merge patch of /status, None when all is said."""
    wanted: Patch = {
        "printableStatus": printable_status(vm, vmi),
        "created": vmi is not None,
        "ready": vmi is not None and condition_is_true(vmi.status.conditions, "Ready"),
    }
    have = {
        "printableStatus": vm.status.printable_status,
        "created": vm.status.created,
        "ready": vm.status.ready,
    }
    changes = {key: value for key, value in wanted.items() if have[key] != value}
    conditions = _conditions(vm, vmi, now)
    if conditions is not None:
        changes["conditions"] = conditions
    return {"status": changes} if changes else None


def printable_status(vm: VirtualMachine, vmi: VirtualMachineInstance | None) -> str:
    """The status that kubectl and Harvester's UI show (KubeVirt's table of printable statuses)."""
    if vm.deleting:
        return "Terminating"
    if vmi is None:
        return "Starting" if wish(vm, vmi) is Wish.START else "Stopped"
    if vmi.deleting:
        return "Stopping"
    if vmi.phase == constants.PHASE_RUNNING:
        return "Migrating" if _migrating(vmi) else "Running"
    if vmi.phase in constants.FINAL_PHASES:
        return "Stopped"
    return "ErrorUnschedulable" if _refused(vmi) else "Starting"


def _migrating(vmi: VirtualMachineInstance) -> bool:
    state = vmi.status.migration_state
    return state is not None and state.start_timestamp is not None and not state.completed


def _refused(vmi: VirtualMachineInstance) -> bool:
    return any(c.type == SYNCHRONIZED and c.status == "False" for c in vmi.status.conditions or ())


def _conditions(vm: VirtualMachine, vmi: VirtualMachineInstance | None, now: str) -> list[Any] | None:
    """The VMI's conditions, as they stand; one Ready=False without a VMI."""
    if vmi is not None and vmi.status.conditions:
        wanted = list(vmi.status.conditions)
    else:
        wanted = [
            Condition(
                type="Ready",
                status="False",
                reason="VMINotExists",
                message="VMI does not exist",
                last_transition_time=now,
            )
        ]
    before = vm.status.conditions or []
    kept = [condition for condition in before if condition.type in {c.type for c in wanted}]
    merged = conditions_with(kept, *wanted)
    if merged is None and len(kept) == len(before):
        return None
    return merged if merged is not None else msgspec.to_builtins(kept)
