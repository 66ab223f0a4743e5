"""What a VM needs next, and what its status says; the handler runs on a cluster (test_on_cluster.py)."""

from __future__ import annotations

import pytest

from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from lab.kubevirt.vm_controller import Action, instance_body, next_action, owned_by, printable_status, status_patch
from tests.lab.kubevirt.samples import NOW, made, running, vm, vmi
from tests.objects import SEED_DOMAIN

FAILED, SUCCEEDED = vmi(status={"phase": "Failed"}), vmi(status={"phase": "Succeeded"})
STOPPED = {"printableStatus": "Stopped"}
STARTED = {"startTimestamp": NOW}


def legacy(running_flag: bool | None) -> VirtualMachine:
    spec = {} if running_flag is None else {"running": running_flag}
    return made(VirtualMachine, "vm1", spec)


ACTIONS: dict[str, tuple[VirtualMachine, VirtualMachineInstance | None, Action]] = {
    "Always starts": (vm(strategy="Always"), None, Action.START),
    "RerunOnFailure starts": (vm(strategy="RerunOnFailure"), None, Action.START),
    "Manual starts a VM that never ran": (vm(strategy="Manual"), None, Action.START),
    "Manual goes on with a start that was refused": (
        vm(strategy="Manual", status={"printableStatus": "ErrorUnschedulable"}),
        None,
        Action.START,
    ),
    "Manual leaves a VM alone that was stopped": (vm(strategy="Manual", status=STOPPED), None, Action.LEAVE),
    "Once leaves a VM alone that ran": (vm(strategy="Once", status=STOPPED), None, Action.LEAVE),
    "Always starts again what was stopped": (vm(strategy="Always", status=STOPPED), None, Action.START),
    "Halted does not start": (vm(strategy="Halted"), None, Action.LEAVE),
    "WaitAsReceiver does not start": (vm(strategy="WaitAsReceiver"), None, Action.LEAVE),
    "an unknown strategy does not start": (vm(strategy="Sometimes"), None, Action.LEAVE),
    "an unknown strategy does not stop": (vm(strategy="Sometimes"), running(), Action.LEAVE),
    "running: true starts": (legacy(True), None, Action.START),
    "running: false does not": (legacy(False), None, Action.LEAVE),
    "nothing said is Halted": (legacy(None), running(), Action.STOP),
    "what runs is left running": (vm(strategy="Always"), running(), Action.LEAVE),
    "Halted stops": (vm(strategy="Halted"), running(), Action.STOP),
    "what is stopping is left to it": (vm(strategy="Halted"), running(deletionTimestamp=NOW), Action.LEAVE),
    "Always clears a failed VMI away": (vm(strategy="Always"), FAILED, Action.STOP),
    "Always clears a VMI away that shut down": (vm(strategy="Always"), SUCCEEDED, Action.STOP),
    "RerunOnFailure clears a failed VMI away": (vm(strategy="RerunOnFailure"), FAILED, Action.STOP),
    "RerunOnFailure keeps a VMI that shut down": (vm(strategy="RerunOnFailure"), SUCCEEDED, Action.LEAVE),
    "Manual keeps a failed VMI": (vm(strategy="Manual"), FAILED, Action.LEAVE),
    "a VM that is being deleted is stopped": (vm(deletionTimestamp=NOW), running(), Action.STOP),
    "and not started": (vm(deletionTimestamp=NOW), None, Action.LEAVE),
}


@pytest.mark.parametrize(("machine", "instance", "wanted"), ACTIONS.values(), ids=ACTIONS.keys())
def test_next_action(machine: VirtualMachine, instance: VirtualMachineInstance | None, wanted: Action) -> None:
    assert next_action(machine, instance) is wanted


REFUSED = vmi(status={"phase": "Pending", "conditions": [{"type": "Synchronized", "status": "False"}]})
STATUSES: dict[str, tuple[VirtualMachine, VirtualMachineInstance | None, str]] = {
    "a VM that is about to start": (vm(), None, "Starting"),
    "a VM that shall not run": (vm(strategy="Halted"), None, "Stopped"),
    "a VM whose pod is on its way": (vm(), vmi(status={"phase": "Scheduling"}), "Starting"),
    "a VM whose pod was refused": (vm(), REFUSED, "ErrorUnschedulable"),
    "a VM that runs": (vm(), running(), "Running"),
    "a VM that migrates": (vm(), running(state=STARTED), "Migrating"),
    "a VM that has migrated": (vm(), running(state={**STARTED, "completed": True}), "Running"),
    "a VM whose migration waits for its target": (vm(), running(state={}), "Running"),
    "a VM that stops": (vm(strategy="Halted"), running(deletionTimestamp=NOW), "Stopping"),
    "a VM whose guest has shut down": (vm(strategy="Manual"), SUCCEEDED, "Stopped"),
    "a VM that is being deleted": (vm(deletionTimestamp=NOW), running(), "Terminating"),
}


@pytest.mark.parametrize(("machine", "instance", "text"), STATUSES.values(), ids=STATUSES.keys())
def test_printable_status(machine: VirtualMachine, instance: VirtualMachineInstance | None, text: str) -> None:
    assert printable_status(machine, instance) == text


def test_the_vmi_is_the_template_and_one_of_the_same_name_need_not_be_the_vm_s() -> None:
    template = {
        "metadata": {"labels": {"harvesterhci.io/vmName": "vm1"}, "annotations": {"harvesterhci.io/a": "[]"}},
        "spec": {"domain": SEED_DOMAIN, "somethingNew": {"kept": True}},
    }
    machine = made(VirtualMachine, "vm1", {"template": template})
    body = instance_body(machine)
    assert body["spec"] == template["spec"]
    assert template["metadata"].items() <= body["metadata"].items()
    assert owned_by(running(ownerReferences=body["metadata"]["ownerReferences"]), machine)
    assert not owned_by(running(), machine)


def test_a_status_that_is_right_is_not_written() -> None:
    first = status_patch(vm(), running())
    assert first is not None
    assert status_patch(vm(status=first["status"]), running()) is None
