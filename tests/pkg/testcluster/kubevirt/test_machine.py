"""A VM's run strategies, its VMI and its status."""

from __future__ import annotations

import pytest

from pkg.testcluster.kubevirt.machine import (
    Wish,
    instance_body,
    owned_by,
    printable_status,
    status_patch,
    wish,
)
from pkg.testcluster.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from tests.pkg.testcluster.kubevirt.samples import NOW, SEED_DOMAIN, convert, metadata, running, vm, vmi

FAILED, SUCCEEDED = vmi(status={"phase": "Failed"}), vmi(status={"phase": "Succeeded"})
STOPPED = {"printableStatus": "Stopped"}
STARTED = {"startTimestamp": NOW}


def legacy(running_flag: bool | None) -> VirtualMachine:
    spec = {} if running_flag is None else {"running": running_flag}
    return convert({"metadata": metadata("vm1"), "spec": spec}, VirtualMachine)


WISHES: dict[str, tuple[VirtualMachine, VirtualMachineInstance | None, Wish]] = {
    "Always starts": (vm(strategy="Always"), None, Wish.START),
    "RerunOnFailure starts": (vm(strategy="RerunOnFailure"), None, Wish.START),
    "Manual starts a VM that never ran": (vm(strategy="Manual"), None, Wish.START),
    "Manual goes on with a start that was refused": (
        vm(strategy="Manual", status={"printableStatus": "ErrorUnschedulable"}),
        None,
        Wish.START,
    ),
    "Manual leaves a VM alone that was stopped": (vm(strategy="Manual", status=STOPPED), None, Wish.LEAVE),
    "Once leaves a VM alone that ran": (vm(strategy="Once", status=STOPPED), None, Wish.LEAVE),
    "Always starts again what was stopped": (vm(strategy="Always", status=STOPPED), None, Wish.START),
    "Halted does not start": (vm(strategy="Halted"), None, Wish.LEAVE),
    "WaitAsReceiver does not start": (vm(strategy="WaitAsReceiver"), None, Wish.LEAVE),
    "an unknown strategy does not start": (vm(strategy="Sometimes"), None, Wish.LEAVE),
    "an unknown strategy does not stop": (vm(strategy="Sometimes"), running(), Wish.LEAVE),
    "running: true starts": (legacy(True), None, Wish.START),
    "running: false does not": (legacy(False), None, Wish.LEAVE),
    "nothing said is Halted": (legacy(None), running(), Wish.STOP),
    "what runs is left running": (vm(strategy="Always"), running(), Wish.LEAVE),
    "Halted stops": (vm(strategy="Halted"), running(), Wish.STOP),
    "what is stopping is left to it": (vm(strategy="Halted"), running(deletionTimestamp=NOW), Wish.LEAVE),
    "Always clears a failed VMI away": (vm(strategy="Always"), FAILED, Wish.STOP),
    "Always clears a VMI away that shut down": (vm(strategy="Always"), SUCCEEDED, Wish.STOP),
    "RerunOnFailure clears a failed VMI away": (vm(strategy="RerunOnFailure"), FAILED, Wish.STOP),
    "RerunOnFailure keeps a VMI that shut down": (vm(strategy="RerunOnFailure"), SUCCEEDED, Wish.LEAVE),
    "Manual keeps a failed VMI": (vm(strategy="Manual"), FAILED, Wish.LEAVE),
    "a VM that is being deleted is stopped": (vm(deletionTimestamp=NOW), running(), Wish.STOP),
    "and not started": (vm(deletionTimestamp=NOW), None, Wish.LEAVE),
}


@pytest.mark.parametrize(("machine", "instance", "wanted"), WISHES.values(), ids=WISHES.keys())
def test_wish(machine: VirtualMachine, instance: VirtualMachineInstance | None, wanted: Wish) -> None:
    assert wish(machine, instance) is wanted


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
def test_printable_status(
    machine: VirtualMachine, instance: VirtualMachineInstance | None, text: str
) -> None:
    assert printable_status(machine, instance) == text


def test_the_vmi_is_the_template_owned_by_the_vm() -> None:
    template = {
        "metadata": {
            "labels": {"harvesterhci.io/vmName": "vm1"},
            "annotations": {"harvesterhci.io/sshNames": "[]"},
        },
        "spec": {"domain": SEED_DOMAIN, "somethingNew": {"kept": True}},
    }
    machine = convert({"metadata": metadata("vm1"), "spec": {"template": template}}, VirtualMachine)
    assert instance_body(machine) == {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "vm1",
            "namespace": "t1",
            **template["metadata"],
            "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"],
            "ownerReferences": [
                {
                    "apiVersion": "kubevirt.io/v1",
                    "kind": "VirtualMachine",
                    "name": "vm1",
                    "uid": "uid-vm1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": template["spec"],
    }


def test_a_vmi_of_the_same_name_need_not_be_the_vm_s() -> None:
    assert not owned_by(running(), vm())
    assert owned_by(running(ownerReferences=[{"kind": "VirtualMachine", "uid": "uid-vm1"}]), vm())


def test_the_status_follows_the_vmi() -> None:
    assert status_patch(vm(), running(), NOW) == {
        "status": {
            "printableStatus": "Running",
            "created": True,
            "ready": True,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "LiveMigratable", "status": "True"}],
        }
    }


def test_a_vm_without_vmi_is_not_ready_and_says_why() -> None:
    old = {"type": "LiveMigratable", "status": "True"}
    machine = vm(
        strategy="Halted", status={"printableStatus": "Stopping", "created": True, "conditions": [old]}
    )
    assert status_patch(machine, None, NOW) == {
        "status": {
            "printableStatus": "Stopped",
            "created": False,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "False",
                    "reason": "VMINotExists",
                    "message": "VMI does not exist",
                    "lastTransitionTime": NOW,
                }
            ],
        }
    }


def test_a_condition_that_the_vmi_no_longer_has_goes_from_the_vm_as_well() -> None:
    conditions = [
        {"type": "Synchronized", "status": "False"},
        {"type": "Ready", "status": "True"},
        {"type": "LiveMigratable", "status": "True"},
    ]
    machine = vm(
        status={"printableStatus": "Running", "created": True, "ready": True, "conditions": conditions}
    )
    assert status_patch(machine, running(), NOW) == {"status": {"conditions": conditions[1:]}}


def test_a_status_that_is_right_is_not_written() -> None:
    first = status_patch(vm(), running(), NOW)
    assert first is not None
    assert status_patch(vm(status=first["status"]), running(), NOW) is None
