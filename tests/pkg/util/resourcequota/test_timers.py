"""The delay of the next patch."""

from __future__ import annotations

import pytest

from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.resourcequota.lowering import UNTIL_COUNTED, UNTIL_TRIED, may_lower_after
from pkg.util.resourcequota.timers import LONGEST, MOMENT, batch_until, is_urgent
from tests.decisions import sentences
from tests.objects import COMPENSATION, ENTRY, RESYNC, SKIP, by_name, by_uid, vmi, vmim


@pytest.mark.parametrize(("entries", "wait"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (4, LONGEST), (500, LONGEST)])
def test_the_more_are_under_way_the_longer(entries: int, wait: float) -> None:
    for form in (by_uid, by_name):
        annotations = {form(f"vm{n}"): ENTRY for n in range(entries)}
        assert batch_until(annotations, 100.0) == pytest.approx(100.0 + wait)


def test_annotations_that_are_no_entries_do_not_count() -> None:
    annotations = {COMPENSATION: "{}", RESYNC: "true", SKIP: "true", "example.com/other": "x", by_uid(): ENTRY}
    assert batch_until(annotations, 100.0) == 100.0


def test_the_first_write_waits_for_nothing() -> None:
    assert batch_until({by_uid(f"vm{n}"): ENTRY for n in range(50)}, float("-inf")) == float("-inf")


@pytest.mark.parametrize(("entries", "wait"), [(1, 0.0), (2, MOMENT), (500, MOMENT)])
def test_what_is_urgent_waits_a_moment_only(entries: int, wait: float) -> None:
    annotations = {by_uid(f"vm{n}"): ENTRY for n in range(entries)}
    assert batch_until(annotations, 100.0, urgent=True) == pytest.approx(100.0 + wait)


@sentences(
    {
        "nothing migrates": ([], False),
        "just created, and has no entry": ([vmim(None, vm="new")], True),
        "just created, with an entry, perhaps for an old side": ([vmim(None, vm="vm1")], True),
        "Pending, and has no entry": ([vmim(vm="new")], True),
        "Pending, of a VM that is not known yet": ([vmim(vm="unknown")], True),
        "Pending with an entry by uid": ([vmim(vm="vm1")], False),
        "Pending with an entry by name": ([vmim(vm="vm2")], False),
        "refused although it has an entry": ([vmim(vm="vm1", refused=True)], True),
        "all have their target": ([vmim("Scheduling", vm="new"), vmim("Running", vm="vm1")], False),
        "all are over": ([vmim("Succeeded", vm="new")], False),
    }
)
def test_who_is_in_a_hurry(case: tuple[list[VirtualMachineInstanceMigration], bool]) -> None:
    migrations, urgent = case
    instances = {name: vmi(name) for name in ("new", "vm1", "vm2")}
    annotations = {by_uid("vm1"): ENTRY, by_name("vm2"): ENTRY}
    assert is_urgent(annotations, migrations, instances.get) is urgent


@sentences(
    {
        "nothing migrates": ([], 0.0),
        "just created": ([vmim(None)], UNTIL_TRIED),
        "Pending": ([vmim(), vmim("Running", vm="other")], UNTIL_TRIED),
        "refused: the patch has it tried again": ([vmim(refused=True)], 0.0),
        "being deleted": ([vmim(deleting=True)], 0.0),
        "all have their target": ([vmim("Scheduling"), vmim("Running", vm="other")], 0.0),
        "all are over": ([vmim("Succeeded"), vmim("Failed", vm="other")], 0.0),
    }
)
def test_giving_back_waits_for_who_is_about_to_be_tried(
    case: tuple[list[VirtualMachineInstanceMigration], float],
) -> None:
    migrations, wait = case
    assert may_lower_after(100.0, 100.0, migrations) == wait
    assert may_lower_after(100.0, 100.0, migrations, still_counted=True) == UNTIL_COUNTED


@pytest.mark.parametrize(("now", "wait"), [(100.2, 0.05), (100.25, 0.0), (200.0, 0.0), (50.0, 0.0)])
def test_giving_back_waits_a_moment_only_and_not_for_a_clock(now: float, wait: float) -> None:
    assert may_lower_after(100.0, now, [vmim()]) == pytest.approx(wait)
