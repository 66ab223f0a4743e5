"""A VMI's phases, its pod, its status, and which launchers have come to their end."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api.core import Pod
from lab.kubevirt.instance import current_pod, ended_as, leftovers, next_phase, status_patch, wants_pod
from lab.kubevirt.objects import VirtualMachineInstance, replacing, transitions
from pkg.api.kubevirt import PhaseTransition
from tests.lab.kubevirt.samples import NOW, launcher, running, vmi

DONE = {"migrationUid": "uid-m1", "sourcePod": "source", "targetPod": "target", "completed": True}
TARGET = launcher("target", node="node-2", job="m1")
PHASES: dict[str, tuple[VirtualMachineInstance, Pod | None, str]] = {
    "a new VMI is Pending": (vmi(), None, "Pending"),
    "without a pod it stays Pending": (vmi(status={"phase": "Pending"}), None, "Pending"),
    "with a pod it is Scheduling": (vmi(status={"phase": "Pending"}), launcher(phase="Pending"), "Scheduling"),
    "a running pod makes it Running": (vmi(status={"phase": "Scheduling"}), launcher(), "Running"),
    "even when the phases between were not seen": (vmi(), launcher(), "Running"),
    "a pod that goes before it ran is a failure": (vmi(status={"phase": "Scheduling"}), None, "Failed"),
    "so is one that ends": (vmi(status={"phase": "Scheduling"}), launcher(phase="Succeeded"), "Failed"),
    "a guest that shuts down is a success": (running(), launcher(phase="Succeeded"), "Succeeded"),
    "a guest that crashes is a failure": (running(), launcher(phase="Failed"), "Failed"),
    "a pod that vanishes is a failure": (running(), None, "Failed"),
    "a pod that is being deleted still runs the guest": (running(), launcher(deletionTimestamp=NOW), "Running"),
    "a VMI that was written down as Running and never had a pod is started": (
        vmi(status={"phase": "Running"}),
        None,
        "Pending",
    ),
    "a final phase stays": (vmi(status={"phase": "Failed"}), launcher(), "Failed"),
}


@pytest.mark.parametrize(("instance", "pod", "phase"), PHASES.values(), ids=PHASES.keys())
def test_next_phase(instance: VirtualMachineInstance, pod: Pod | None, phase: str) -> None:
    assert next_phase(instance, pod) == phase


WANTS = {
    "a Pending VMI": (vmi(status={"phase": "Pending"}), [], True),
    "a VMI that was written down as Running": (vmi(status={"phase": "Running"}), [], True),
    "not a VMI with a launcher": (vmi(status={"phase": "Pending"}), [launcher()], False),
    "not a VMI whose launcher has ended": (vmi(status={"phase": "Pending"}), [launcher(phase="Failed")], False),
    "not a VMI that lost its pod": (running(), [], False),
    "not a VMI that has ended": (vmi(status={"phase": "Failed"}), [], False),
}


@pytest.mark.parametrize(("instance", "pods", "wanted"), WANTS.values(), ids=WANTS.keys())
def test_wants_pod(instance: VirtualMachineInstance, pods: list[Pod], wanted: bool) -> None:
    assert wants_pod(instance, pods) is wanted


CURRENT: dict[str, tuple[VirtualMachineInstance, list[Pod], str | None]] = {
    "none without pods": (running(), [], None),
    "the one on the VMI's node": (running(), [TARGET, launcher()], "source"),
    "never a target while the VMI has no node": (vmi(), [TARGET, launcher(node=None)], "source"),
    "the living one of two on the node": (
        running(),
        [launcher("old", phase="Succeeded", creationTimestamp="2026-11-21T17:00:00Z"), launcher("back", job="m2")],
        "back",
    ),
    "the newest of two that live": (
        running(),
        [launcher("new", creationTimestamp="2026-11-21T17:00:00Z"), launcher("old", creationTimestamp=NOW)],
        "new",
    ),
}


@pytest.mark.parametrize(("instance", "pods", "name"), CURRENT.values(), ids=CURRENT.keys())
def test_current_pod(instance: VirtualMachineInstance, pods: list[Pod], name: str | None) -> None:
    pod = current_pod(instance, pods)
    assert (pod.name if pod else None) == name


NOTHING_TO_SAY = {
    "a VMI that runs": (running(), [launcher()]),
    "a VMI that migrates": (
        running(status={"activePods": {"uid-source": "node-1", "uid-target": "node-2"}}),
        [launcher(), TARGET],
    ),
}


@pytest.mark.parametrize(("instance", "pods"), NOTHING_TO_SAY.values(), ids=NOTHING_TO_SAY.keys())
def test_nothing_is_written_twice(instance: VirtualMachineInstance, pods: list[Pod]) -> None:
    assert status_patch(instance, pods, NOW) is None


def test_the_overhead_is_reported_where_kubevirt_does() -> None:
    assert status_patch(running(), [launcher()], NOW, report_overhead=True) == {
        "status": {"memory": {"memoryOverhead": "442497017"}}
    }
    told = running(status={"memory": {"memoryOverhead": 442497017}})
    assert status_patch(told, [launcher()], NOW, report_overhead=True) is None


def moved(**state: Any) -> VirtualMachineInstance:
    """A VMI that lives on node-2 since migration m1."""
    return running(state={**DONE, **state}, status={"nodeName": "node-2"})


LEFT: dict[str, tuple[VirtualMachineInstance, list[Pod], set[str], list[str]]] = {
    "nothing of a VMI that does not migrate": (running(), [launcher()], set(), []),
    "not the target of a migration that is under way": (running(), [launcher(), TARGET], {"uid-m1"}, []),
    "the source after the migration": (moved(), [launcher(), TARGET], {"uid-m1"}, ["source"]),
    "the source also when the migration object is gone": (moved(), [launcher(), TARGET], set(), ["source"]),
    "not a source that has ended": (moved(), [launcher(phase="Succeeded"), TARGET], set(), []),
    "not a source that is being deleted": (moved(), [launcher(deletionTimestamp=NOW), TARGET], set(), []),
    "a target whose migration has failed": (
        running(state={**DONE, "failed": True}),
        [launcher(), TARGET],
        set(),
        ["target"],
    ),
    "a target whose migration never got to the hand-over": (running(), [launcher(), TARGET], set(), ["target"]),
    "not the source while the migration is under way": (
        running(state={**DONE, "completed": False}),
        [launcher(), TARGET],
        {"uid-m1"},
        [],
    ),
    "a source that was once a target itself": (
        moved(sourcePod="older"),
        [launcher("older", job="m0"), TARGET],
        set(),
        ["older"],
    ),
}


@pytest.mark.parametrize(("instance", "pods", "under_way", "left"), LEFT.values(), ids=LEFT.keys())
def test_leftovers(instance: VirtualMachineInstance, pods: list[Pod], under_way: set[str], left: list[str]) -> None:
    assert [pod.name for pod in leftovers(instance, pods, under_way.__contains__)] == left


ENDS = {
    "a source that was left ends well": (moved(), launcher(), "Succeeded"),
    "also when it was a target once": (moved(sourcePod="older"), launcher("older", job="m0"), "Succeeded"),
    "a target that was handed over fails": (running(state={**DONE, "failed": True}), TARGET, "Failed"),
    "a target that was not seen is deleted": (running(), TARGET, ""),
    "also after an earlier migration": (moved(), launcher("second", job="m2"), ""),
}


@pytest.mark.parametrize(("instance", "pod", "phase"), ENDS.values(), ids=ENDS.keys())
def test_ended_as(instance: VirtualMachineInstance, pod: Pod, phase: str) -> None:
    assert ended_as(instance, pod) == phase


def test_phases_are_added_once() -> None:
    before = [PhaseTransition(phase="Pending", phase_transition_timestamp="then")]
    assert transitions(before, ["Pending", "Scheduling"], NOW) == [
        {"phase": "Pending", "phaseTransitionTimestamp": "then"},
        {"phase": "Scheduling", "phaseTransitionTimestamp": NOW},
    ]


def test_replacing_removes_what_is_gone() -> None:
    assert replacing({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": None, "b": 3, "c": 4}
