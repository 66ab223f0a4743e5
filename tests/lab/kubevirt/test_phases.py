"""The phase table: what is done for a migration in every situation."""

from typing import Any

import pytest

from lab.bodies import stand_in
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.options import PACED_PHASES, MigrationOptions, StandInOptions
from lab.kubevirt.phases import Step, View, Wait, Write, decide, fail, rejection
from tests.lab.kubevirt.samples import HOTPLUG_VOLUME, NOW, attachment, launcher, running, vmi, vmim

TARGET = launcher("target", node="node-2", job="m1")
STATE = {"migrationUid": "uid-m1", "sourcePod": "source", "targetPod": "target", "sourceNode": "node-1"}
ADDRESSED = {**STATE, "targetNodeAddress": "10.1.1.1"}
STARTED = {**ADDRESSED, "startTimestamp": NOW}
COMPLETED = {**STARTED, "completed": True, "endTimestamp": NOW}
DELETED: dict[str, Any] = {"deletionTimestamp": NOW}
REJECTED = {"type": "migrationRejectedByResourceQuota", "status": "True"}


def look(phase: str = "", *, age: float = 60.0, **changes: Any) -> View:
    """A view in which nothing is missing and every phase has lasted long enough."""
    migration = changes.pop("migration", None) or vmim(phase=phase, **changes.pop("vmim", {}))
    started = phase in PACED_PHASES
    defaults: dict[str, Any] = {
        "vmi": running(state=changes.pop("state", None)),
        "source": launcher(),
        "target": TARGET if started else None,
        "attachment": None,
        "now": NOW,
        "age": age,
    }
    values = {**defaults, **changes}
    return View(migration=migration, options=MigrationOptions.of(StandInOptions(), migration), **values)


def failing(phase: str) -> dict[str, Any]:
    return {"annotations": stand_in(fail_at_phase=phase)}


def resized(kind: str, value: str) -> VirtualMachineInstance:
    """A VMI whose migration is over, with this condition."""
    return running(state=COMPLETED, status={"conditions": [{"type": kind, "status": value}]})


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


PENDING_TARGET = launcher("target", job="m1", phase="Pending")
PLUGGED = running(spec={"volumes": [HOTPLUG_VOLUME]})
ATTACHED, ATTACHING = attachment("target"), attachment("target", phase="Pending")
ENTERS = {
    "its target exists, whether the pod runs or not": (look("Pending", target=PENDING_TARGET), "Scheduling"),
    "the attachment pod runs": (look("Pending", target=TARGET, vmi=PLUGGED, attachment=ATTACHED), "Scheduling"),
    "another phase is the one that is to fail": (look("Scheduling", vmim=failing("Running")), "Scheduled"),
    "it is cancelled too late": (look("Running", state=COMPLETED, vmim=DELETED), "Succeeded"),
    "its VMI is resized": (look("Running", vmi=resized("HotMemoryChange", "False")), "Succeeded"),
}


@pytest.mark.parametrize(("view", "phase"), ENTERS.values(), ids=ENTERS.keys())
def test_a_phase_is_entered_with_its_time_when(view: View, phase: str) -> None:
    """Steps beside the way that every migration on a cluster goes."""
    written = status(decide(view))
    assert written["phase"] == phase
    assert written["phaseTransitionTimestamps"][-1] == {"phase": phase, "phaseTransitionTimestamp": NOW}


DYING = launcher("target", job="m1", deletionTimestamp=NOW)
AFTER = pytest.approx(0.15)
WAITS: dict[str, tuple[View, Any]] = {
    "the target does not run": (look("Scheduling", target=PENDING_TARGET), None),
    "the target is being deleted": (look("Scheduling", target=DYING), None),
    "a phase is to last longer": (look("Scheduling", age=0.05), AFTER),
    "so is one that is to fail": (look("Running", age=0.05, state=STARTED, vmim=failing("Running")), AFTER),
    "an attachment pod needs a running target": (look("Pending", target=PENDING_TARGET, vmi=PLUGGED), None),
    "the attachment pod does not run": (look("Pending", target=TARGET, vmi=PLUGGED, attachment=ATTACHING), None),
    "the phase is a later KubeVirt's": (look("WaitingForSync"), None),
    "it has ended and has no finalizer": (look(migration=vmim(phase="Succeeded", finalizers=[])), None),
    "CPUs are plugged in": (look("Running", vmi=resized("HotVCPUChange", "False")), None),
    "memory is plugged in": (look("Running", vmi=resized("HotMemoryChange", "True")), None),
    "another migration is required": (look("Running", vmi=resized("MigrationRequired", "True")), None),
}


@pytest.mark.parametrize(("view", "seconds"), WAITS.values(), ids=WAITS.keys())
def test_a_migration_waits_while(view: View, seconds: Any) -> None:
    step = decide(view)
    assert isinstance(step, Wait), step
    assert step.seconds == seconds


def test_a_vmi_name_that_is_no_label_value_is_not_made_one() -> None:
    step = decide(look(migration=vmim(phase="Pending", vmi_name="v" * 64, labels={}, finalizers=[])))
    assert isinstance(step, Write)
    assert "labels" not in step.patch["metadata"]


def test_the_hand_over_names_the_attachment_pod_and_the_overhead() -> None:
    view = look("Scheduled", vmi=PLUGGED, attachment=ATTACHED, report_overhead=True)
    written = state(decide(view))
    assert written["targetAttachmentPodUID"] == "uid-hp-volume-a"
    assert written["targetMemoryOverhead"] == "442497017"


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
    "when it is told to, before the hand-over": look("Scheduling", vmim=failing("Scheduling")),
    "when it is told to, while Pending": look("Pending", vmim=failing("Pending")),
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
    "because it is told to": look("Running", state=STARTED, vmim=failing("Running")),
}


@pytest.mark.parametrize("view", FAILS_ON_VMI.values(), ids=FAILS_ON_VMI.keys())
def test_after_the_hand_over_the_vmi_fails_the_migration_first(view: View) -> None:
    written = state(decide(view))
    assert (written["failed"], written["completed"], written["endTimestamp"]) == (True, True, NOW)


def test_quota_s_refusal_is_marked_once() -> None:
    step = rejection(look("Pending"))
    assert step is not None
    assert step.patch == {"status": {"conditions": [{**REJECTED, "lastProbeTime": NOW}]}}
    assert rejection(look("Pending", vmim={"status": {"conditions": [REJECTED]}})) is None


def test_a_refusal_stays_when_the_migration_fails() -> None:
    step = fail(look("Pending", vmim={"status": {"conditions": [REJECTED]}}), "because")
    assert "conditions" not in step.patch["status"]
