"""The phase table: what is done for a migration in every situation."""

from __future__ import annotations

from typing import Any

import pytest

from lab.kubevirt import phases
from lab.kubevirt.options import Options, migration_options
from lab.kubevirt.phases import NEXT, TABLE, decide, fail, rejected
from lab.kubevirt.steps import (
    CreateAttachment,
    CreateTarget,
    Step,
    View,
    Wait,
    WriteInstance,
    WriteMigration,
    WriteTarget,
)
from tests.lab.kubevirt.samples import (
    HOTPLUG_VOLUME,
    NOW,
    attachment,
    launcher,
    running,
    vmi,
    vmim,
)

TARGET = launcher("target", node="node-2", job="m1")
STATE = {"migrationUid": "uid-m1", "sourcePod": "source", "targetPod": "target", "sourceNode": "node-1"}
ADDRESSED = {**STATE, "targetNodeAddress": "10.1.1.1"}
STARTED = {**ADDRESSED, "startTimestamp": NOW}
COMPLETED = {**STARTED, "completed": True, "endTimestamp": NOW}
DELETED = {"deletionTimestamp": NOW}
FAIL_AT = "testcluster.headroom.harvesterhci.io/fail-at-phase"
ABORT = {"type": "migrationAbortRequested", "status": "True"}
REJECTED = {"type": "migrationRejectedByResourceQuota", "status": "True"}


def look(phase: str = "", *, age: float = 60.0, delay: float = 0.2, **more: Any) -> View:
    """A view in which nothing is missing and every phase has lasted long enough."""
    migration = more.pop("migration", None) or vmim(phase=phase, **more.pop("vmim", {}))
    started = phase in phases.STARTED
    defaults: dict[str, Any] = {
        "vmi": running(state=more.pop("state", None)),
        "source": launcher(),
        "target": TARGET if started else None,
        "attachment": None,
        "now": NOW,
        "age": age,
    }
    values = {**defaults, **more}
    return View(
        migration=migration,
        options=migration_options(Options(phase_delay=delay), migration, values["vmi"]),
        **values,
    )


def status(step: Step) -> dict[str, Any]:
    assert isinstance(step, WriteMigration), step
    assert step.subresource == "status"
    written: dict[str, Any] = step.patch["status"]
    return written


def state(step: Step) -> dict[str, Any]:
    assert isinstance(step, WriteInstance), step
    written: dict[str, Any] = step.patch["status"]["migrationState"]
    return written


def test_every_phase_on_the_way_has_a_row_and_a_successor() -> None:
    assert TABLE.keys() == NEXT.keys()
    way, phase = [], ""
    while phase in NEXT:
        phase = NEXT[phase]
        way.append(phase)
    assert way == [
        "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded",
    ]  # fmt: skip


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
            "Pending",
            target=TARGET,
            vmi=running(spec={"volumes": [HOTPLUG_VOLUME]}),
            attachment=attachment("target"),
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


def test_a_pending_migration_asks_for_its_target() -> None:
    assert decide(look("Pending")) == CreateTarget()


def test_a_running_target_of_a_vmi_with_hotplugged_volumes_asks_for_an_attachment_pod() -> None:
    view = look("Pending", target=TARGET, vmi=running(spec={"volumes": [HOTPLUG_VOLUME]}))
    assert decide(view) == CreateAttachment()


def test_a_new_migration_becomes_pending_before_it_is_marked() -> None:
    assert status(decide(look(migration=vmim(finalizers=[], labels={}))))["phase"] == "Pending"


def test_a_pending_migration_is_marked_before_anything_is_created_for_it() -> None:
    step = decide(look(migration=vmim(phase="Pending", finalizers=["example.com/s"], labels={})))
    assert step == WriteMigration(
        {
            "metadata": {
                "finalizers": ["example.com/s", "kubevirt.io/migrationJobFinalize"],
                "labels": {"kubevirt.io/vmi-name": "vm1"},
            }
        },
        subresource="",
    )


def test_a_vmi_name_that_is_no_label_value_is_not_made_one() -> None:
    step = decide(look(migration=vmim(phase="Pending", vmi_name="v" * 64, labels={}, finalizers=[])))
    assert isinstance(step, WriteMigration)
    assert "labels" not in step.patch["metadata"]


def test_pending_names_the_source_pod() -> None:
    assert status(decide(look("")))["migrationState"] == {"sourcePod": "source"}


def test_scheduling_takes_the_refusal_away_and_leaves_other_conditions() -> None:
    other = {"type": "Other", "status": "True"}
    view = look("Pending", target=TARGET, vmim={"status": {"conditions": [REJECTED, other]}})
    assert status(decide(view))["conditions"] == [other]


def test_the_last_condition_leaves_no_empty_list() -> None:
    view = look("Pending", target=TARGET, vmim={"status": {"conditions": [REJECTED]}})
    assert status(decide(view))["conditions"] is None


def test_earlier_times_stay() -> None:
    earlier = {"phase": "Pending", "phaseTransitionTimestamp": "2026-11-21T16:00:00Z"}
    view = look("Pending", target=TARGET, vmim={"status": {"phaseTransitionTimestamps": [earlier]}})
    assert status(decide(view))["phaseTransitionTimestamps"][0] == earlier


def test_the_hand_over_names_both_sides_and_forgets_the_migration_before() -> None:
    before = {**COMPLETED, "migrationUid": "uid-m0", "abortStatus": "Succeeded", "failed": True}
    step = decide(look("Scheduled", state=before))
    assert isinstance(step, WriteInstance)
    assert step.patch["metadata"] == {"labels": {"kubevirt.io/migrationTargetNodeName": "node-2"}}
    assert state(step) == {
        "migrationUid": "uid-m1",
        "sourceNode": "node-1",
        "sourcePod": "source",
        "targetNode": "node-2",
        "targetPod": "target",
        **dict.fromkeys(
            ("completed", "failed", "abortStatus", "startTimestamp", "endTimestamp", "targetNodeAddress")
        ),
    }


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


def test_virt_handler_reports_an_address_and_then_a_start() -> None:
    assert state(decide(look("PreparingTarget", state=STATE))) == {"targetNodeAddress": "10.1.1.1"}
    assert state(decide(look("TargetReady", state=ADDRESSED))) == {"startTimestamp": NOW}


def test_before_it_arrives_the_target_is_marked_as_ready() -> None:
    step = decide(look("Running", state=STARTED))
    key = "kubevirt.io/migration-target-ready-timestamp"
    assert step == WriteTarget({"metadata": {"annotations": {key: "2026-11-21 16:31:33 +0000 UTC"}}})


def test_on_arrival_the_vmi_lives_on_the_target_node() -> None:
    ready = {"annotations": {"kubevirt.io/migration-target-ready-timestamp": NOW}}
    step = decide(look("Running", state=STARTED, target=launcher("target", node="node-2", job="m1", **ready)))
    assert isinstance(step, WriteInstance)
    assert step.patch["status"]["nodeName"] == "node-2"
    assert step.patch["metadata"]["labels"] == {"kubevirt.io/nodeName": "node-2"}
    assert state(step)["completed"] is True
    assert state(step)["endTimestamp"] == NOW


def test_success_copies_the_state_and_is_told() -> None:
    step = decide(look("Running", state=COMPLETED))
    assert status(step)["migrationState"] == COMPLETED
    assert isinstance(step, WriteMigration)
    assert step.note is not None
    assert (step.note.type, step.note.reason) == ("Normal", "SuccessfulMigration")


RESIZING: dict[str, tuple[str, str, bool]] = {
    "CPUs are plugged in": ("HotVCPUChange", "False", True),
    "memory is plugged in": ("HotMemoryChange", "True", True),
    "memory was plugged in": ("HotMemoryChange", "False", False),
    "another migration is required": ("MigrationRequired", "True", True),
}


@pytest.mark.parametrize(("kind", "value", "stays"), RESIZING.values(), ids=RESIZING.keys())
def test_a_completed_migration_stays_running_while_its_vmi_is_resized(
    kind: str, value: str, stays: bool
) -> None:
    vmi = running(state=COMPLETED, status={"conditions": [{"type": kind, "status": value}]})
    step = decide(look("Running", vmi=vmi))
    assert step == Wait() if stays else status(step)["phase"] == "Succeeded"


def test_a_finished_migration_loses_its_finalizer_and_no_other() -> None:
    finished = vmim(phase="Failed", finalizers=["a/b", "kubevirt.io/migrationJobFinalize"])
    assert decide(look(migration=finished)) == WriteMigration(
        {"metadata": {"finalizers": ["a/b"]}}, subresource=""
    )


FAILS = {
    "without a VMI": look("Pending", vmi=None),
    "with a VMI that does not run yet": look("", vmi=vmi(status={"phase": "Scheduling"})),
    "with a VMI that has ended": look("Running", vmi=vmi(status={"phase": "Failed"})),
    "with a VMI that is being deleted": look("Running", vmi=running(**DELETED)),
    "beside another migration of the VMI": look("", rival=True),
    "when its target is gone": look("Scheduling", target=None),
    "when its target has ended": look("Pending", target=launcher("target", job="m1", phase="Failed")),
    "when its attachment pod has ended": look("Scheduling", attachment=attachment("target", phase="Failed")),
    "when another migration has taken the VMI": look(
        "TargetReady", state={**STATE, "migrationUid": "uid-m2"}
    ),
    "when virt-handler says so": look("Running", state={**STARTED, "failed": True, "completed": True}),
    "when it is cancelled before it was seen": look("", vmim=DELETED),
    "when it is cancelled while Pending": look("Pending", vmim=DELETED),
    "when it is cancelled before the hand-over": look("Scheduled", vmim=DELETED),
    "when it is told to, before the hand-over": look(
        "Scheduling", vmim={"annotations": {FAIL_AT: "Scheduling"}}
    ),
    "when it is told to, while Pending": look("Pending", vmim={"annotations": {FAIL_AT: "Pending"}}),
}


@pytest.mark.parametrize("view", FAILS.values(), ids=FAILS.keys())
def test_a_migration_fails(view: View) -> None:
    step = decide(view)
    assert status(step)["phase"] == "Failed"
    assert isinstance(step, WriteMigration)
    assert step.note is not None
    assert (step.note.type, step.note.reason) == ("Warning", "FailedMigration")


FAILS_ON_VMI = {
    "because its target is gone": look("Running", state=STARTED, target=None),
    "because its target has ended": look(
        "TargetReady", state=STATE, target=launcher("t", job="m1", phase="Failed")
    ),
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


def test_failing_copies_the_state_that_virt_handler_left() -> None:
    failed = {**STARTED, "failed": True, "completed": True, "endTimestamp": NOW}
    assert status(decide(look("Running", state=failed)))["migrationState"] == failed


def test_a_cancelled_migration_says_that_it_was() -> None:
    written = status(decide(look("Pending", vmim=DELETED)))
    assert written["conditions"] == [{**ABORT, "lastProbeTime": NOW}]


def test_a_migration_that_merely_fails_was_not_cancelled() -> None:
    assert "conditions" not in status(decide(look("Scheduling", target=None)))


def test_an_abort_goes_through_virt_handler_step_by_step() -> None:
    deleted = look("Running", state=STARTED, vmim=DELETED)
    assert status(decide(deleted)) == {"conditions": [{**ABORT, "lastProbeTime": NOW}]}
    told = {**DELETED, "status": {"conditions": [ABORT]}}
    assert state(decide(look("Running", state=STARTED, vmim=told))) == {
        "abortRequested": True,
        "abortStatus": "Aborting",
    }
    aborting = {**STARTED, "abortRequested": True, "abortStatus": "Aborting"}
    ended = state(decide(look("Running", state=aborting, vmim=told)))
    assert (ended["abortStatus"], ended["failed"], ended["completed"]) == ("Succeeded", True, True)
    aborted = {**aborting, "abortStatus": "Succeeded", "failed": True, "completed": True}
    assert status(decide(look("Running", state=aborted, vmim=told)))["phase"] == "Failed"


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
