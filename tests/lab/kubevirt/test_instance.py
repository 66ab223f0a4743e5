"""A VMI's phases, its pod, its status, and which launchers have come to their end. What each start and each migration
shows (tests/e2e) is not said once more."""

from typing import Any

import pytest

from kubeloop.api.core import Pod
from lab.kubevirt.instance import current_pod, final_phase_of, leftovers, next_phase, status_patch, wants_pod
from lab.kubevirt.objects import VirtualMachineInstance
from tests.lab.kubevirt.samples import NOW, launcher, running, vmi

LATER = "2026-11-21T17:00:00Z"
DONE = {"migrationUid": "uid-m1", "sourcePod": "source", "targetPod": "target", "completed": True}
TARGET = launcher("target", node="node-2", job="m1")


def phase(name: str) -> VirtualMachineInstance:
    return vmi(status={"phase": name})


PHASES: dict[str, tuple[VirtualMachineInstance, Pod | None, str, bool]] = {
    "without a pod it stays Pending": (phase("Pending"), None, "Pending", True),
    "it runs even when the phases between were not seen": (vmi(), launcher(), "Running", False),
    "a pod that goes before it ran is a failure": (phase("Scheduling"), None, "Failed", False),
    "so is one that ends": (phase("Scheduling"), launcher(phase="Succeeded"), "Failed", False),
    "a guest that shuts down is a success": (running(), launcher(phase="Succeeded"), "Succeeded", False),
    "a guest that crashes is a failure": (running(), launcher(phase="Failed"), "Failed", False),
    "a pod that vanishes is a failure": (running(), None, "Failed", False),
    "a pod that is being deleted still runs the guest": (running(), launcher(deletionTimestamp=NOW), "Running", False),
    "Running without ever a pod is started": (phase("Running"), None, "Pending", True),
    "a final phase stays": (phase("Failed"), launcher(), "Failed", False),
    "also without a pod": (phase("Failed"), None, "Failed", False),
}


@pytest.mark.parametrize(("instance", "pod", "next_", "needs_pod"), PHASES.values(), ids=PHASES.keys())
def test_next_phase_and_whether_a_pod_is_wanted(
    instance: VirtualMachineInstance, pod: Pod | None, next_: str, needs_pod: bool
) -> None:
    assert next_phase(instance, pod) == next_
    assert wants_pod(instance, [pod] if pod else []) is needs_pod


CURRENT: dict[str, tuple[VirtualMachineInstance, list[Pod], str]] = {
    "the one on the VMI's node": (running(), [TARGET, launcher()], "source"),
    "never a target while the VMI has no node": (vmi(), [TARGET, launcher(node=None)], "source"),
    "the living one of two on the node": (
        running(),
        [launcher("old", phase="Succeeded", creationTimestamp=LATER), launcher("back", job="m2")],
        "back",
    ),
    "the newest of two that live": (
        running(),
        [launcher("new", creationTimestamp=LATER), launcher("old", creationTimestamp=NOW)],
        "new",
    ),
}


@pytest.mark.parametrize(("instance", "pods", "name"), CURRENT.values(), ids=CURRENT.keys())
def test_current_pod(instance: VirtualMachineInstance, pods: list[Pod], name: str) -> None:
    pod = current_pod(instance, pods)
    assert pod is not None
    assert pod.name == name


def test_nothing_is_written_twice() -> None:
    migrates = running(status={"activePods": {"uid-source": "node-1", "uid-target": "node-2"}})
    assert status_patch(migrates, [launcher(), TARGET], NOW) is None
    reported = status_patch(running(), [launcher()], NOW, report_overhead=True)
    assert reported == {"status": {"memory": {"memoryOverhead": "442497017"}}}
    with_overhead = running(status={"memory": {"memoryOverhead": 442497017}})
    assert status_patch(with_overhead, [launcher()], NOW, report_overhead=True) is None


def migrated(**state: Any) -> VirtualMachineInstance:
    """A VMI that lives on node-2 since migration m1."""
    return running(state={**DONE, **state}, status={"nodeName": "node-2"})


FAILED = running(state={**DONE, "failed": True})
UNDER_WAY = running(state={**DONE, "completed": False})
OLDER, SECOND = launcher("older", job="m0"), launcher("second", job="m2")
LEFT: dict[str, tuple[VirtualMachineInstance, list[Pod], set[str], dict[str, str]]] = {
    "nothing of a VMI that does not migrate": (running(), [launcher()], set(), {}),
    "not the target of a migration that is under way": (running(), [launcher(), TARGET], {"uid-m1"}, {}),
    "the source after the migration": (migrated(), [launcher(), TARGET], {"uid-m1"}, {"source": "Succeeded"}),
    "also when the migration object is gone": (migrated(), [launcher(), TARGET], set(), {"source": "Succeeded"}),
    "not a source that has ended": (migrated(), [launcher(phase="Succeeded"), TARGET], set(), {}),
    "not a source that is being deleted": (migrated(), [launcher(deletionTimestamp=NOW), TARGET], set(), {}),
    "a target whose migration has failed": (FAILED, [launcher(), TARGET], set(), {"target": "Failed"}),
    "a target that was never handed over": (running(), [launcher(), TARGET], set(), {"target": ""}),
    "also after an earlier migration": (migrated(), [TARGET, SECOND], set(), {"second": ""}),
    "not the source while the migration is under way": (UNDER_WAY, [launcher(), TARGET], {"uid-m1"}, {}),
    "a source that was once a target": (migrated(sourcePod="older"), [OLDER, TARGET], set(), {"older": "Succeeded"}),
}


@pytest.mark.parametrize(("instance", "pods", "under_way", "final_phases"), LEFT.values(), ids=LEFT.keys())
def test_what_is_left_over_and_how_it_ends(
    instance: VirtualMachineInstance, pods: list[Pod], under_way: set[str], final_phases: dict[str, str]
) -> None:
    pods_left = leftovers(instance, pods, under_way.__contains__)
    assert {pod.name: final_phase_of(instance, pod) for pod in pods_left} == final_phases
