"""What the migrations of a VM ask of its quota: phases × abort × refusal, and several migrations of one VM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.resourcequota.demand import (
    Standing,
    abort_requested,
    demands,
    is_finished,
    is_refused,
    standing_of,
)
from tests.pkg.util.resourcequota.world import sentences, vmi, vmim

FINISHED, ANNOUNCED, WANTED = Standing.FINISHED, Standing.ANNOUNCED, Standing.WANTED
PHASES: dict[str | None, tuple[Standing, Standing]] = {
    None: (ANNOUNCED, ANNOUNCED),
    "": (ANNOUNCED, ANNOUNCED),
    "Pending": (WANTED, ANNOUNCED),
    "Scheduling": (WANTED, ANNOUNCED),
    "Scheduled": (WANTED, ANNOUNCED),
    "PreparingTarget": (WANTED, ANNOUNCED),
    "TargetReady": (WANTED, ANNOUNCED),
    "Running": (WANTED, ANNOUNCED),
    "WaitingForSync": (WANTED, ANNOUNCED),
    "Synchronizing": (WANTED, ANNOUNCED),
    "SomethingNew": (WANTED, ANNOUNCED),
    "Succeeded": (FINISHED, FINISHED),
    "Failed": (FINISHED, FINISHED),
}
"""Phase to the standing without and with an abort asked for."""


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("abort", [False, True])
def test_standing(phase: str | None, abort: bool) -> None:
    migration = vmim(phase, abort=abort)
    assert standing_of(migration) is PHASES[phase][abort]
    assert is_finished(migration) is (PHASES[phase][0] is FINISHED)
    assert abort_requested(migration) is abort


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("abort", [False, True])
def test_only_a_pending_migration_that_goes_on_counts_as_refused(phase: str | None, abort: bool) -> None:
    assert is_refused(vmim(phase, refused=True, abort=abort)) is (phase == "Pending" and not abort)
    assert not is_refused(vmim(phase, abort=abort))


@pytest.mark.parametrize("status", ["False", "Unknown", "", "true"])
def test_a_condition_that_is_not_true_is_none(status: str) -> None:
    from msgspec.structs import replace

    from pkg.api.meta import Condition

    migration = vmim("Pending")
    conditions = [
        Condition(type="migrationRejectedByResourceQuota", status=status),
        Condition(type="migrationAbortRequested", status=status),
    ]
    migration = replace(migration, status=replace(migration.status, conditions=conditions))
    assert not is_refused(migration)
    assert not abort_requested(migration)


@dataclass(frozen=True)
class OneVM:
    """The migrations of one VM, and its claim."""

    migrations: Sequence[VirtualMachineInstanceMigration]
    standing: Standing
    refused: bool = False


ONE_VM = {
    "one that runs outweighs finished ones": OneVM(
        [vmim("Failed"), vmim("Running"), vmim("Succeeded")], WANTED
    ),
    "one that is announced outweighs finished ones": OneVM([vmim("Failed"), vmim(None)], ANNOUNCED),
    "one that is aborted does not outweigh one that is wanted": OneVM([vmim(abort=True), vmim()], WANTED),
    "all finished is finished": OneVM([vmim("Failed"), vmim("Succeeded")], FINISHED),
    "a refusal of any counts": OneVM([vmim("Running"), vmim(refused=True)], WANTED, refused=True),
    "a refusal of a finished one does not": OneVM([vmim("Failed", refused=True), vmim()], WANTED),
}


@sentences(ONE_VM)
def test_several_migrations_of_one_vm_are_one_demand(case: OneVM) -> None:
    asked = demands(case.migrations, {"vm1": vmi()})
    assert list(asked) == ["vm1"]
    assert (asked["vm1"].standing, asked["vm1"].refused) == (case.standing, case.refused)
    assert asked["vm1"].vmi_uid == "uid-vm1"


def test_demands_are_by_vm_in_sorted_order_with_or_without_vmi() -> None:
    asked = demands([vmim(vm="b"), vmim(vm="c"), vmim(vm="a")], {"a": vmi("a"), "unasked": vmi("unasked")})
    assert list(asked) == ["a", "b", "c"]
    assert [demand.vmi is not None for demand in asked.values()] == [True, False, False]
    assert [demand.vmi_uid for demand in asked.values()] == ["uid-a", "", ""]


def test_no_migrations_no_demands() -> None:
    assert demands([], {"vm1": vmi()}) == {}
