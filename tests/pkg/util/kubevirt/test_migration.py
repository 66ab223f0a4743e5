"""Migrations: the state that a VMI shows of them, and their stage, phases × abort × refusal, of one and of several."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from kubeloop.api.meta import from_rfc3339
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration import (
    Stage,
    abort_requested,
    annotations_for,
    is_finished,
    is_refused,
    leftover_migration,
    migration_ended_at,
    stage_of,
    state_of,
)
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import build, vmi, vmim

UID = "harvesterhci.io/migrationUID"
STATE = "harvesterhci.io/migrationState"
TARGET = "harvesterhci.io/migrationTargetNodeName"
PENDING, MIGRATING, ABORTING = "Pending migration", "Migrating", "Aborting migration"

PHASES: dict[str | None, str] = {
    None: PENDING,
    "": PENDING,
    "Pending": PENDING,
    "Scheduling": MIGRATING,
    "Scheduled": MIGRATING,
    "PreparingTarget": MIGRATING,
    "TargetReady": MIGRATING,
    "Running": MIGRATING,
    "WaitingForSync": MIGRATING,
    "Synchronizing": MIGRATING,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("abort", [False, True])
def test_a_phase_under_way(phase: str | None, abort: bool) -> None:
    migration = vmim(phase, abort=abort)
    expected = ABORTING if abort else PHASES[phase]
    assert state_of(migration) == expected
    annotations = {UID: migration.uid, STATE: expected}
    assert annotations_for(vmi(), [migration]) == annotations
    assert annotations_for(vmi(annotations=annotations), [migration]) == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("abort", [False, True])
def test_a_final_phase_clears_the_state(phase: str, abort: bool) -> None:
    migration = vmim(phase, abort=abort)
    annotations = {UID: migration.uid, STATE: MIGRATING, TARGET: "node-2", "example.com/other": "kept"}
    assert annotations_for(vmi(annotations=annotations), [migration]) == {UID: None, STATE: None, TARGET: None}
    assert annotations_for(vmi(), [migration]) == {}


@dataclass(frozen=True)
class Shown:
    """The annotations of a VMI, its migrations and its own report, and the change."""

    migrations: Sequence[VirtualMachineInstanceMigration]
    change: dict[str, str | None]
    annotations: dict[str, str] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)


RUNNING = vmim("Running", name="new", created="2026-01-02T00:00:00Z")
OVER = vmim("Succeeded", name="old", created="2026-01-01T00:00:00Z")
ALSO_RUNNING = vmim("Pending", name="older", created="2026-01-01T00:00:00Z")


def reported(migration: str, *, completed: bool = True, **fields: Any) -> dict[str, Any]:
    return {"migrationState": {"migrationUid": f"uid-{migration}", "completed": completed, **fields}}


CASES = {
    "no migration, nothing shown": Shown([], {}),
    "the migration under way wins over finished ones": Shown([OVER, RUNNING], {UID: "uid-new", STATE: MIGRATING}),
    "whichever is listed first": Shown([RUNNING, OVER], {UID: "uid-new", STATE: MIGRATING}),
    "of two under way the newer one is shown": Shown([RUNNING, ALSO_RUNNING], {UID: "uid-new", STATE: MIGRATING}),
    "a next migration takes over the state": Shown(
        [OVER, vmim(None, name="new")], {UID: "uid-new", STATE: PENDING}, {UID: "uid-old", STATE: MIGRATING}
    ),
    "only what differs is written": Shown([RUNNING], {STATE: MIGRATING}, {UID: "uid-new", STATE: PENDING}),
    "a finished one clears a state without uid": Shown([OVER], {STATE: None}, {STATE: PENDING}),
    "the VMI's own report that it is over is enough": Shown(
        [RUNNING], {UID: None, STATE: None}, {UID: "uid-new", STATE: MIGRATING}, reported("new")
    ),
    "even when the migration itself is gone": Shown(
        [], {UID: None, STATE: None}, {UID: "uid-new", STATE: MIGRATING}, reported("new")
    ),
    "a report that is not complete is no end": Shown(
        [RUNNING], {}, {UID: "uid-new", STATE: MIGRATING}, reported("new", completed=False)
    ),
    "a report of an older migration says nothing of this one": Shown(
        [RUNNING], {}, {UID: "uid-new", STATE: MIGRATING}, reported("old")
    ),
    "a report without uid says nothing": Shown(
        [RUNNING], {}, {UID: "uid-new", STATE: MIGRATING}, {"migrationState": {"completed": True}}
    ),
    "a migration that is gone is not shown": Shown(
        [OVER], {UID: None, STATE: None}, {UID: "uid-gone", STATE: PENDING, "example.com/other": "kept"}
    ),
}


@sentences(CASES)
def test_what_a_vmi_shows(case: Shown) -> None:
    assert annotations_for(vmi(annotations=case.annotations, **case.status), case.migrations) == case.change


LEFTOVER = {
    "completed by an abort": (reported("m", abortStatus="Succeeded"), "uid-m"),
    "completed without abort": (reported("m"), None),
    "an abort that failed": (reported("m", abortStatus="Failed"), None),
    "an abort that is not complete yet": (reported("m", completed=False, abortStatus="Succeeded"), None),
    "no uid": ({"migrationState": {"completed": True, "abortStatus": "Succeeded"}}, None),
    "no migration at all": ({}, None),
}


@sentences(LEFTOVER, "status, uid")
def test_leftover_pods_are_those_of_an_aborted_migration(status: dict[str, Any], uid: str | None) -> None:
    assert leftover_migration(vmi(**status)) == uid


# ---- the stage of a migration: phases × abort × refusal, and several migrations of one VM --------------------

FINISHED, WITHOUT_TARGET, CREATED = Stage.FINISHED, Stage.WITHOUT_TARGET, Stage.CREATED
ACTIVE, REFUSED = Stage.ACTIVE, Stage.REFUSED
STAGES: dict[str | None, tuple[Stage, Stage]] = {
    None: (CREATED, WITHOUT_TARGET),
    "": (CREATED, WITHOUT_TARGET),
    "Pending": (ACTIVE, WITHOUT_TARGET),
    "Scheduling": (ACTIVE, WITHOUT_TARGET),
    "Scheduled": (ACTIVE, WITHOUT_TARGET),
    "PreparingTarget": (ACTIVE, WITHOUT_TARGET),
    "TargetReady": (ACTIVE, WITHOUT_TARGET),
    "Running": (ACTIVE, WITHOUT_TARGET),
    "WaitingForSync": (ACTIVE, WITHOUT_TARGET),
    "Synchronizing": (ACTIVE, WITHOUT_TARGET),
    "SomethingNew": (ACTIVE, WITHOUT_TARGET),
    "Succeeded": (FINISHED, FINISHED),
    "Failed": (FINISHED, FINISHED),
}
"""Phase to the stage without and with an abort asked for."""


@pytest.mark.parametrize("phase", STAGES)
@pytest.mark.parametrize("abort", [False, True])
def test_stage(phase: str | None, abort: bool) -> None:
    migration = vmim(phase, abort=abort)
    assert stage_of(migration) is STAGES[phase][abort]
    assert stage_of(vmim(phase, abort=abort, deleting=True)) is STAGES[phase][True]
    assert is_finished(migration) is (STAGES[phase][0] is FINISHED)
    assert abort_requested(migration) is abort
    assert is_refused(vmim(phase, refused=True, abort=abort)) is (phase == "Pending" and not abort)
    assert not is_refused(migration)


@pytest.mark.parametrize("phase", ["", "Pending", "Scheduling", "Running", "Synchronizing"])
@pytest.mark.parametrize("end", ["sendTo", "receive"])
def test_a_decentralized_migration_adds_no_pod_here(phase: str, end: str) -> None:
    migration = edited(vmim(phase, refused=phase == "Pending"), spec={end: {"migrationID": "m"}})
    assert stage_of(migration) is WITHOUT_TARGET


@pytest.mark.parametrize("status", ["False", "Unknown", "", "true"])
def test_a_condition_that_is_not_true_is_none(status: str) -> None:
    conditions = msgspec.to_builtins(vmim(refused=True, abort=True).status.conditions)
    migration = edited(vmim(), status={"conditions": [condition | {"status": status} for condition in conditions]})
    assert not is_refused(migration)
    assert not abort_requested(migration)


ONE_VM = {
    "one that runs outweighs finished ones": ([vmim("Failed"), vmim("Running"), vmim("Succeeded")], ACTIVE),
    "one that was just created outweighs finished ones": ([vmim("Failed"), vmim(None)], CREATED),
    "one that is aborted does not outweigh an active one": ([vmim(abort=True), vmim()], ACTIVE),
    "all finished is finished": ([vmim("Failed"), vmim("Succeeded")], FINISHED),
    "a refusal of any counts": ([vmim("Running"), vmim(refused=True)], REFUSED),
    "a refusal of a finished one does not": ([vmim("Failed", refused=True), vmim()], ACTIVE),
}


@sentences(ONE_VM, "migrations, stage")
def test_of_several_migrations_the_greatest_stage_counts(
    migrations: list[VirtualMachineInstanceMigration], stage: Stage
) -> None:
    assert max(map(stage_of, migrations)) is stage


@pytest.mark.parametrize(
    ("condition", "stage"), [("migrationBlockedByUtilityVolumes", WITHOUT_TARGET), ("migrationBlockedByBackup", ACTIVE)]
)
def test_what_waits_counts_where_kubevirt_creates_a_target(condition: str, stage: Stage) -> None:
    assert stage_of(edited(vmim(), status={"conditions": [{"type": condition, "status": "True"}]})) is stage


ENDS = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z")
LEFT: dict[str, tuple[list[tuple[str, str]], str | None]] = {
    "the last migration that it was the source of": ([("pod", "b"), ("pod", "c"), ("c", "d")], ENDS[1]),
    "of a target whose migration failed": ([("a", "b"), ("b", "pod"), ("b", "c")], ENDS[1]),
    "of a source that had been a target before": ([("a", "pod"), ("pod", "b")], ENDS[1]),
    "of no migration": ([("a", "b")], None),
}
"""Source and target of a VM's migrations in their order, and when the one that left `pod` behind ended."""


@sentences(LEFT, "pods, expected")
def test_when_a_launcher_was_left_behind(pods: list[tuple[str, str]], expected: str | None) -> None:
    migrations = [
        build(
            VirtualMachineInstanceMigration,
            f"m{number}",
            {"vmiName": "vm1"},
            {"migrationState": {"sourcePod": source, "targetPod": target, "endTimestamp": ENDS[number]}},
            creationTimestamp=ENDS[number],
        )
        for number, (source, target) in enumerate(pods)
    ]
    for listed in (migrations, migrations[::-1]):
        assert migration_ended_at("pod", listed) == (expected and from_rfc3339(expected))
