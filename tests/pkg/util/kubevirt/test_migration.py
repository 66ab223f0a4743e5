"""Requirements of a VM's migrations on its quota: phases × abort × refusal, and several migrations of one VM."""

from __future__ import annotations

import msgspec
import pytest

from kubeloop.api.meta import from_rfc3339
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration import Stage, abort_requested, is_finished, is_refused, migration_ended_at, stage_of
from tests.decisions import sentences
from tests.objects import build, vmim

FINISHED, WITHOUT_TARGET, CREATED = Stage.FINISHED, Stage.WITHOUT_TARGET, Stage.CREATED
ACTIVE, REFUSED = Stage.ACTIVE, Stage.REFUSED
PHASES: dict[str | None, tuple[Stage, Stage]] = {
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


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("abort", [False, True])
def test_stage(phase: str | None, abort: bool) -> None:
    migration = vmim(phase, abort=abort)
    assert stage_of(migration) is PHASES[phase][abort]
    assert stage_of(vmim(phase, abort=abort, deleting=True)) is PHASES[phase][True]
    assert is_finished(migration) is (PHASES[phase][0] is FINISHED)
    assert abort_requested(migration) is abort


@pytest.mark.parametrize("phase", ["", "Pending", "Scheduling", "Running", "Synchronizing"])
@pytest.mark.parametrize("end", ["sendTo", "receive"])
def test_a_decentralized_migration_adds_no_pod_here(phase: str, end: str) -> None:
    body = msgspec.to_builtins(vmim(phase, refused=phase == "Pending"))
    body["spec"][end] = {"migrationID": "m"}
    assert stage_of(msgspec.convert(body, VirtualMachineInstanceMigration)) is WITHOUT_TARGET


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("abort", [False, True])
def test_only_a_pending_migration_that_goes_on_counts_as_refused(phase: str | None, abort: bool) -> None:
    assert is_refused(vmim(phase, refused=True, abort=abort)) is (phase == "Pending" and not abort)
    assert not is_refused(vmim(phase, abort=abort))


@pytest.mark.parametrize("status", ["False", "Unknown", "", "true"])
def test_a_condition_that_is_not_true_is_none(status: str) -> None:
    body = msgspec.to_builtins(vmim(refused=True, abort=True))
    body["status"]["conditions"] = [condition | {"status": status} for condition in body["status"]["conditions"]]
    migration = msgspec.convert(body, VirtualMachineInstanceMigration)
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


@sentences(ONE_VM)
def test_of_several_migrations_the_greatest_stage_counts(
    case: tuple[list[VirtualMachineInstanceMigration], Stage],
) -> None:
    migrations, stage = case
    assert max(map(stage_of, migrations)) is stage


@pytest.mark.parametrize(
    ("condition", "stage"), [("migrationBlockedByUtilityVolumes", WITHOUT_TARGET), ("migrationBlockedByBackup", ACTIVE)]
)
def test_what_waits_counts_where_kubevirt_creates_a_target(condition: str, stage: Stage) -> None:
    body = msgspec.to_builtins(vmim())
    body["status"]["conditions"] = [{"type": condition, "status": "True"}]
    assert stage_of(msgspec.convert(body, VirtualMachineInstanceMigration)) is stage


ENDS = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z")
LEFT: dict[str, tuple[list[tuple[str, str]], str | None]] = {
    "the last migration that it was the source of": ([("pod", "b"), ("pod", "c"), ("c", "d")], ENDS[1]),
    "of a target whose migration failed": ([("a", "b"), ("b", "pod"), ("b", "c")], ENDS[1]),
    "of a source that had been a target before": ([("a", "pod"), ("pod", "b")], ENDS[1]),
    "of no migration": ([("a", "b")], None),
}
"""Source and target of a VM's migrations in their order, and when the one that left `pod` behind ended."""


@sentences(LEFT)
def test_when_a_launcher_was_left_behind(case: tuple[list[tuple[str, str]], str | None]) -> None:
    pods, expected = case
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
