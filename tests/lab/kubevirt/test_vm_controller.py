"""A VM's next action, and its status; the handler runs on a cluster (test_on_cluster.py)."""

import pytest

from lab.kubevirt.lookup import is_owned_by
from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from lab.kubevirt.vm_controller import Action, next_action, printable_status, status_patch, vmi_body
from tests.lab.kubevirt.samples import NOW, build_object, running, vm, vmi
from tests.objects import SEED_DOMAIN

FAILED, SUCCEEDED = vmi(status={"phase": "Failed"}), vmi(status={"phase": "Succeeded"})
REFUSED = vmi(status={"phase": "Pending", "conditions": [{"type": "Synchronized", "status": "False"}]})
STARTED = {"startTimestamp": NOW}
DELETED = vm(deletionTimestamp=NOW)
LEAVE, START, STOP = Action


def ran(strategy: str, status: str = "Stopped") -> VirtualMachine:
    return vm(strategy=strategy, status={"printableStatus": status})


def flagged(running: bool | None) -> VirtualMachine:
    return build_object(VirtualMachine, "vm1", {} if running is None else {"running": running})


CASES: dict[str, tuple[VirtualMachine, VirtualMachineInstance | None, Action, str]] = {
    "Always starts": (vm(strategy="Always"), None, START, "Starting"),
    "RerunOnFailure starts": (vm(strategy="RerunOnFailure"), None, START, "Starting"),
    "Once starts a VM that never ran": (vm(strategy="Once"), None, START, "Starting"),
    "Once goes on with a start that was refused": (ran("Once", "ErrorUnschedulable"), None, START, "Starting"),
    "Once keeps a failed VMI": (vm(strategy="Once"), FAILED, LEAVE, "Stopped"),
    "Manual neither starts nor stops": (ran("Manual"), running(), LEAVE, "Running"),
    "Once leaves a VM alone that ran": (ran("Once"), None, LEAVE, "Stopped"),
    "Always starts again what was stopped": (ran("Always"), None, START, "Starting"),
    "Halted does not start": (vm(strategy="Halted"), None, LEAVE, "Stopped"),
    "WaitAsReceiver does not start": (vm(strategy="WaitAsReceiver"), None, LEAVE, "Stopped"),
    "an unknown strategy does not start": (vm(strategy="Sometimes"), None, LEAVE, "Stopped"),
    "an unknown strategy does not stop": (vm(strategy="Sometimes"), running(), LEAVE, "Running"),
    "running: true starts": (flagged(True), None, START, "Starting"),
    "running: false does not": (flagged(False), None, LEAVE, "Stopped"),
    "nothing said is Halted": (flagged(None), running(), STOP, "Running"),
    "what runs is left running": (vm(), running(), LEAVE, "Running"),
    "what migrates as well": (vm(), running(state=STARTED), LEAVE, "Migrating"),
    "what has migrated runs": (vm(), running(state={**STARTED, "completed": True}), LEAVE, "Running"),
    "what waits for its target runs": (vm(), running(state={}), LEAVE, "Running"),
    "a pod is on its way": (vm(), vmi(status={"phase": "Scheduling"}), LEAVE, "Starting"),
    "a pod was refused": (vm(), REFUSED, LEAVE, "ErrorUnschedulable"),
    "Halted stops": (vm(strategy="Halted"), running(), STOP, "Running"),
    "what is stopping is left to it": (vm(strategy="Halted"), running(deletionTimestamp=NOW), LEAVE, "Stopping"),
    "Always clears a failed VMI away": (vm(strategy="Always"), FAILED, STOP, "Stopped"),
    "Always clears a VMI away that shut down": (vm(strategy="Always"), SUCCEEDED, STOP, "Stopped"),
    "RerunOnFailure clears a failed VMI away": (vm(strategy="RerunOnFailure"), FAILED, STOP, "Stopped"),
    "RerunOnFailure keeps a VMI that shut down": (vm(strategy="RerunOnFailure"), SUCCEEDED, LEAVE, "Stopped"),
    "a VM that is being deleted is stopped": (DELETED, running(), STOP, "Terminating"),
    "and not started": (DELETED, None, LEAVE, "Terminating"),
}


@pytest.mark.parametrize(("machine", "instance", "action", "status"), CASES.values(), ids=CASES.keys())
def test_a_vm(machine: VirtualMachine, instance: VirtualMachineInstance | None, action: Action, status: str) -> None:
    assert next_action(machine, instance) is action
    assert printable_status(machine, instance) == status


def test_the_vmi_is_the_template_owned_by_the_vm() -> None:
    template = {
        "metadata": {"labels": {"harvesterhci.io/vmName": "vm1"}, "annotations": {"harvesterhci.io/a": "[]"}},
        "spec": {"domain": SEED_DOMAIN, "somethingNew": {"kept": True}},
    }
    machine = build_object(VirtualMachine, "vm1", {"template": template})
    body = vmi_body(machine)
    assert body["spec"] == template["spec"]
    assert template["metadata"].items() <= body["metadata"].items()
    assert is_owned_by(running(ownerReferences=body["metadata"]["ownerReferences"]), machine)
    assert not is_owned_by(running(), machine)


def test_a_status_that_is_right_is_not_written() -> None:
    patch = status_patch(vm(), running())
    assert patch is not None
    assert status_patch(vm(status=patch["status"]), running()) is None
