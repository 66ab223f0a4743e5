"""The migration state that a VMI shows: phases × abort, several migrations, and who has the last word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration_state import (
    annotations_for,
    leftover_migration,
    state_of,
    state_removal,
    unknown_migration,
)
from tests.decisions import sentences
from tests.objects import vmi, vmim

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
    "a finished one clears only its own state": Shown([OVER], {}, {UID: "uid-unheard-of", STATE: PENDING}),
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
    "an unknown migration is left alone": Shown([], {}, {UID: "uid-unheard-of", STATE: PENDING}),
}


@sentences(CASES)
def test_what_a_vmi_shows(case: Shown) -> None:
    assert annotations_for(vmi(annotations=case.annotations, **case.status), case.migrations) == case.change


UNKNOWN = {
    "nothing shown": (Shown([], {}), None),
    "a known one": (Shown([RUNNING], {}, {UID: "uid-new"}), None),
    "one that the VMI reports as completed": (Shown([], {}, {UID: "uid-new"}, reported("new")), None),
    "an empty uid": (Shown([], {}, {UID: ""}), None),
    "one that is gone": (Shown([RUNNING, OVER], {}, {UID: "uid-gone"}), "uid-gone"),
}


@sentences(UNKNOWN)
def test_an_unknown_migration(case: tuple[Shown, str | None]) -> None:
    instance, uid = case
    assert unknown_migration(vmi(annotations=instance.annotations, **instance.status), instance.migrations) == uid


def test_clearing_names_only_what_is_there() -> None:
    assert state_removal(vmi(annotations={TARGET: "node-1", "example.com/other": "kept"})) == {TARGET: None}
    assert state_removal(vmi()) == {}


LEFTOVER = {
    "completed by an abort": (reported("m", abortStatus="Succeeded"), "uid-m"),
    "completed without abort": (reported("m"), None),
    "an abort that failed": (reported("m", abortStatus="Failed"), None),
    "an abort that is not complete yet": (reported("m", completed=False, abortStatus="Succeeded"), None),
    "no uid": ({"migrationState": {"completed": True, "abortStatus": "Succeeded"}}, None),
    "no migration at all": ({}, None),
}


@sentences(LEFTOVER)
def test_leftover_pods_are_those_of_an_aborted_migration(case: tuple[dict[str, Any], str | None]) -> None:
    status, uid = case
    assert leftover_migration(vmi(**status)) == uid
