"""The phase table: what is done for a migration in every situation."""

from __future__ import annotations

from typing import Any

import pytest

from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.options import PACED_PHASES, MigrationOptions, Options
from lab.kubevirt.phases import TABLE, Step, View, Wait, Write, decide, fail, rejected
from tests.lab.kubevirt.samples import HOTPLUG_VOLUME, NOW, attachment, launcher, running, vmi, vmim

TARGET = launcher("target", node="node-2", job="m1")
STATE = {"migrationUid": "uid-m1", "sourcePod": "source", "targetPod": "target", "sourceNode": "node-1"}
ADDRESSED = {**STATE, "targetNodeAddress": "10.1.1.1"}
STARTED = {**ADDRESSED, "startTimestamp": NOW}
COMPLETED = {**STARTED, "completed": True, "endTimestamp": NOW}
DELETED: dict[str, Any] = {"deletionTimestamp": NOW}
FAIL_AT = "testcluster.headroom.harvesterhci.io/fail-at-phase"
REJECTED = {"type": "migrationRejectedByResourceQuota", "status": "True"}


def look(phase: str = "", *, age: float = 60.0, delay: float = 0.2, **more: Any) -> View:
    """A view in which nothing is missing and every phase has lasted long enough."""
    migration = more.pop("migration", None) or vmim(phase=phase, **more.pop("vmim", {}))
    started = phase in PACED_PHASES
    defaults: dict[str, Any] = {
        "vmi": running(state=more.pop("state", None)),
        "source": launcher(),
        "target": TARGET if started else None,
        "attachment": None,
        "now": NOW,
        "age": age,
    }
    values = {**defaults, **more}
    return View(migration=migration, options=MigrationOptions.of(Options(phase_delay=delay), migration), **values)


def status(step: Step) -> dict[str, Any]:
    assert isinstance(step, Write), step
    assert (type(step.obj), step.subresource) == (VirtualMachineInstanceMigration, "status")
    written: dict[str, Any] = step.patch["status"]
    return written


def state(step: Step) -> dict[str, Any]:
    assert isinstance(step, Write), step
    assert isinstance(step.obj, VirtualMachineInstance)
    written: dict[str, Any] = step.patch["status"]["migrationState"]
    return written


def test_every_phase_on_the_way_has_a_row() -> None:
    way = ["", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"]
    assert list(TABLE) == way


ENTERS = {
    "a new migration becomes Pending": (look(""), "Pending"),
    "a Pending migration whose target exists becomes Scheduling, whether the pod runs or not": (
        look("Pending", target=launcher("target", job="m1", phase="Pending")),
        "Scheduling",
    ),
    "a running target makes it Scheduled": (look("Scheduling"), "Scheduled"),
    "what was handed over is being prepared": (look("Scheduled", state=STATE), "PreparingTarget"),
    "an address makes the target ready": (look("PreparingTarget", state=ADDRESSED), "TargetReady"),
    "a start makes it Running": (look("TargetReady", state=STARTED), "Running"),
    "completion is success": (look("Running", state=COMPLETED), "Succeeded"),
    "hotplugged volumes need a running attachment pod before Scheduling": (
        look(
            "Pending", target=TARGET, vmi=running(spec={"volumes": [HOTPLUG_VOLUME]}), attachment=attachment("target")
        ),
        "Scheduling",
    ),
}


@pytest.mark.parametrize(("view", "phase"), ENTERS.values(), ids=ENTERS.keys())
def test_a_phase_is_entered_with_its_time(view: View, phase: str) -> None:
    written = status(decide(view))
    assert written["phase"] == phase
    assert written["phaseTransitionTimestamps"][-1] == {"phase": phase, "phaseTransitionTimestamp": NOW}


WAITS: dict[str, tuple[View, float | None]] = {
    "Scheduling waits for the target to run": (
        look("Scheduling", target=launcher("target", job="m1", phase="Pending")),
        None,
    ),
    "Scheduling does not go on with a target that is being deleted": (
        look("Scheduling", target=launcher("target", job="m1", deletionTimestamp=NOW)),
        None,
    ),
    "a phase lasts as long as it shall": (look("Scheduling", age=0.05), 0.15),
    "an attachment pod is created only beside a running target": (
        look(
            "Pending",
            target=launcher("target", job="m1", phase="Pending"),
            vmi=running(spec={"volumes": [HOTPLUG_VOLUME]}),
        ),
        None,
    ),
    "Pending lasts until the attachment pod runs": (
        look(
            "Pending",
            target=TARGET,
            vmi=running(spec={"volumes": [HOTPLUG_VOLUME]}),
            attachment=attachment("target", phase="Pending"),
        ),
        None,
    ),
    "a phase of a later KubeVirt is left alone": (look("WaitingForSync"), None),
    "a finished migration without finalizer is done with": (
        look(migration=vmim(phase="Succeeded", finalizers=[])),
        None,
    ),
}


@pytest.mark.parametrize(("view", "seconds"), WAITS.values(), ids=WAITS.keys())
def test_a_migration_waits(view: View, seconds: float | None) -> None:
    step = decide(view)
    assert isinstance(step, Wait), step
    assert step.seconds == (None if seconds is None else pytest.approx(seconds))


def test_a_vmi_name_that_is_no_label_value_is_not_made_one() -> None:
    step = decide(look(migration=vmim(phase="Pending", vmi_name="v" * 64, labels={}, finalizers=[])))
    assert isinstance(step, Write)
    assert "labels" not in step.patch["metadata"]


def test_the_hand_over_names_the_attachment_pod_and_the_overhead() -> None:
    view = look(
        "Scheduled",
        vmi=running(spec={"volumes": [HOTPLUG_VOLUME]}),
        attachment=attachment("target"),
        report_overhead=True,
    )
    written = state(decide(view))
    assert written["targetAttachmentPodUID"] == "uid-hp-volume-a"
    assert written["targetMemoryOverhead"] == "442497017"


RESIZING: dict[str, tuple[str, str, bool]] = {
    "CPUs are plugged in": ("HotVCPUChange", "False", True),
    "memory is plugged in": ("HotMemoryChange", "True", True),
    "memory was plugged in": ("HotMemoryChange", "False", False),
    "another migration is required": ("MigrationRequired", "True", True),
}


@pytest.mark.parametrize(("kind", "value", "stays"), RESIZING.values(), ids=RESIZING.keys())
def test_a_completed_migration_stays_running_while_its_vmi_is_resized(kind: str, value: str, stays: bool) -> None:
    vmi = running(state=COMPLETED, status={"conditions": [{"type": kind, "status": value}]})
    step = decide(look("Running", vmi=vmi))
    assert step == Wait() if stays else status(step)["phase"] == "Succeeded"


FAILS = {
    "without a VMI": look("Pending", vmi=None),
    "with a VMI that does not run yet": look("", vmi=vmi(status={"phase": "Scheduling"})),
    "with a VMI that has ended": look("Running", vmi=vmi(status={"phase": "Failed"})),
    "with a VMI that is being deleted": look("Running", vmi=running(**DELETED)),
    "beside another migration of the VMI": look("", rival=True),
    "when its target is gone": look("Scheduling", target=None),
    "when its target has ended": look("Pending", target=launcher("target", job="m1", phase="Failed")),
    "when its attachment pod has ended": look("Scheduling", attachment=attachment("target", phase="Failed")),
    "when another migration has taken the VMI": look("PreparingTarget", state={**STATE, "migrationUid": "uid-m2"}),
    "when virt-handler says so": look("Running", state={**STARTED, "failed": True, "completed": True}),
    "when it is cancelled before it was seen": look("", vmim=DELETED),
    "when it is cancelled while Pending": look("Pending", vmim=DELETED),
    "when it is cancelled before the hand-over": look("Scheduled", vmim=DELETED),
    "when it is told to, before the hand-over": look("Scheduling", vmim={"annotations": {FAIL_AT: "Scheduling"}}),
    "when it is told to, while Pending": look("Pending", vmim={"annotations": {FAIL_AT: "Pending"}}),
}


@pytest.mark.parametrize("view", FAILS.values(), ids=FAILS.keys())
def test_a_migration_fails(view: View) -> None:
    step = decide(view)
    assert status(step)["phase"] == "Failed"
    assert isinstance(step, Write)
    assert step.event is not None
    assert step.event[:2] == ("Warning", "FailedMigration")


FAILS_ON_VMI = {
    "because its target is gone": look("Running", state=STARTED, target=None),
    "because its target has ended": look("TargetReady", state=STATE, target=launcher("t", job="m1", phase="Failed")),
    "because it is told to": look("Running", state=STARTED, vmim={"annotations": {FAIL_AT: "Running"}}),
}


@pytest.mark.parametrize("view", FAILS_ON_VMI.values(), ids=FAILS_ON_VMI.keys())
def test_after_the_hand_over_the_vmi_fails_the_migration_first(view: View) -> None:
    written = state(decide(view))
    assert (written["failed"], written["completed"], written["endTimestamp"]) == (True, True, NOW)


def test_a_failure_that_is_asked_for_comes_after_the_phase_has_lasted() -> None:
    view = look("Running", state=STARTED, age=0.0, vmim={"annotations": {FAIL_AT: "Running"}})
    assert isinstance(decide(view), Wait)


def test_a_migration_fails_only_in_the_phase_that_is_named() -> None:
    view = look("Scheduling", vmim={"annotations": {FAIL_AT: "Running"}})
    assert status(decide(view))["phase"] == "Scheduled"


def test_an_abort_that_comes_too_late_changes_nothing() -> None:
    assert status(decide(look("Running", state=COMPLETED, vmim=DELETED)))["phase"] == "Succeeded"


def test_quota_s_refusal_is_marked_once() -> None:
    step = rejected(look("Pending"))
    assert step is not None
    assert step.patch == {"status": {"conditions": [{**REJECTED, "lastProbeTime": NOW}]}}
    assert rejected(look("Pending", vmim={"status": {"conditions": [REJECTED]}})) is None


def test_a_refusal_stays_when_the_migration_fails() -> None:
    step = fail(look("Pending", vmim={"status": {"conditions": [REJECTED]}}), "because")
    assert "conditions" not in step.patch["status"]
