"""What is added to a quota, and what it goes back to."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pkg.util.managedtenantquota.record import Record, is_enforced
from pkg.util.quantity import QuantityError
from tests.decisions import by_value, sentences
from tests.objects import Resources
from tests.pkg.util.managedtenantquota.objects import quota


class Raising(NamedTuple):
    original: Resources
    additional: Resources
    now: Resources
    change: Resources


@sentences(
    {
        "what both name is added": Raising(
            {"limits.cpu": "3"}, {"limits.cpu": "2"}, {"limits.cpu": "3"}, {"limits.cpu": "5"}
        ),
        "what only the quota names stays": Raising({"pods": "3"}, {"limits.cpu": "2"}, {"pods": "3"}, {}),
        "what only the budget names is not put in": Raising(
            {"limits.cpu": "3"}, {"limits.memory": "1Gi"}, {"limits.cpu": "3"}, {}
        ),
        "another name of the same thing is another name": Raising(
            {"cpu": "3"}, {"requests.cpu": "2"}, {"cpu": "3"}, {}
        ),
        "what is raised already is not raised again": Raising(
            {"limits.cpu": "3"}, {"limits.cpu": "2"}, {"limits.cpu": "5000m"}, {}
        ),
        "what is said to have been more is not believed": Raising(
            {"limits.cpu": "100"}, {"limits.cpu": "2"}, {"limits.cpu": "3"}, {}
        ),
        "a half raised quota is raised the rest of the way": Raising(
            {"limits.cpu": "3", "pods": "1"},
            {"limits.cpu": "2", "pods": "1"},
            {"limits.cpu": "5", "pods": "1"},
            {"pods": "2"},
        ),
        "under the lock what another client wrote is no limit to start from": Raising(
            {"limits.cpu": "3"}, {"limits.cpu": "2"}, {"limits.cpu": "4"}, {"limits.cpu": "5"}
        ),
        "what says more than that is not lowered": Raising(
            {"limits.cpu": "3"}, {"limits.cpu": "2"}, {"limits.cpu": "9"}, {}
        ),
        "numbers are quantities too": Raising({"pods": 3}, {"pods": 1}, {"pods": 3}, {"pods": "4"}),
        "a resource that a person took out is not put back": Raising(
            {"limits.cpu": "3", "pods": "1"}, {"pods": "1"}, {"limits.cpu": "3"}, {}
        ),
    }
)
def test_raising(case: Raising) -> None:
    assert by_value(Record(case.original, case.additional).to_raise(case.now)) == by_value(case.change)


class Restoring(NamedTuple):
    original: Resources
    additional: Resources
    now: Resources
    locked: Resources
    unlocked: Resources


ORIGINAL, ADDED, UP = {"limits.cpu": "3", "pods": "5"}, {"limits.cpu": "2"}, {"limits.cpu": "5", "pods": "5"}


@sentences(
    {
        "what was raised goes back": Restoring(ORIGINAL, ADDED, UP, {"limits.cpu": "3"}, {"limits.cpu": "3"}),
        "what was not raised stays": Restoring(ORIGINAL, ADDED, ORIGINAL, {}, {}),
        "another spelling is the same": Restoring(ORIGINAL, ADDED, {"limits.cpu": "3000m", "pods": "5"}, {}, {}),
        "what a person wrote in between stays only without a lock": Restoring(
            ORIGINAL, ADDED, {"limits.cpu": "10", "pods": "5"}, {"limits.cpu": "3"}, {}
        ),
        "of two resources the one that is ours goes back": Restoring(
            ORIGINAL, ADDED, {"limits.cpu": "5", "pods": "7"}, {"limits.cpu": "3", "pods": "5"}, {"limits.cpu": "3"}
        ),
        "what a person took out is not put back": Restoring(ORIGINAL, ADDED, {"pods": "5"}, {}, {}),
        "what a person put in stays": Restoring(
            ORIGINAL, ADDED, {**UP, "secrets": "1"}, {"limits.cpu": "3"}, {"limits.cpu": "3"}
        ),
        "what is said to have been more is not believed": Restoring(
            {"limits.cpu": "100"}, {"limits.cpu": "-95"}, UP, {}, {}
        ),
        "another installation's budget has changed since it raised": Restoring(
            ORIGINAL, {"limits.cpu": "1"}, UP, {"limits.cpu": "3"}, {}
        ),
    }
)
def test_restoring(case: Restoring) -> None:
    locked = Record(case.original, case.additional).to_restore(case.now, exactly=False)
    unlocked = Record(case.original, case.additional).to_restore(case.now, exactly=True)
    assert by_value(locked) == by_value(case.locked)
    assert by_value(unlocked) == by_value(case.unlocked)


def test_raised_and_restored_is_as_before() -> None:
    raised = {**ORIGINAL, **Record(ORIGINAL, ADDED).to_raise(ORIGINAL)}
    for exactly in (True, False):
        back = {**raised, **Record(ORIGINAL, ADDED).to_restore(raised, exactly=exactly)}
        assert by_value(back) == by_value(ORIGINAL)


@pytest.mark.parametrize(
    ("enforced", "done"),
    [
        ({"limits.cpu": "3", "pods": "5"}, True),
        ({"limits.cpu": "5", "pods": "5"}, False),
        ({"limits.cpu": "3", "pods": "1"}, True),
        ({"secrets": "1"}, True),
    ],
    ids=["status says the same", "status is raised still", "status is lower", "status is of something else"],
)
def test_admission_goes_by_the_status(enforced: Resources, done: bool) -> None:
    assert is_enforced(quota(ORIGINAL, enforced=enforced)) is done


def test_a_record_that_is_no_quantity_names_its_resource() -> None:
    with pytest.raises(QuantityError, match=r"limits\.cpu"):
        Record({"limits.cpu": "3"}, {"limits.cpu": "much"}).to_raise({"limits.cpu": "3"})
