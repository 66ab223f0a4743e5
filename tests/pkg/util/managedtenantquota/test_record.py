"""The record of a quota: the limits that it is raised to, restored to, and keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from kubeloop.api.quantity import QuantityError
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.record import Record, is_in_use, is_lowering_enforced, record_of
from tests.decisions import by_value, sentences
from tests.objects import Resources, build
from tests.pkg.util.managedtenantquota.objects import quota


class RecordedQuota(NamedTuple):
    """A quota with the limit 3 before 2 were added: its limit now, and the one that it is changed to; "" if it stays.
    `lowered`: where all that is above the original goes back."""

    now: str
    raised: str
    lowered: str
    restored: str


@sentences(
    {
        "as it was": RecordedQuota("3", "5", "", ""),
        "in another spelling": RecordedQuota("3000m", "5", "", ""),
        "raised": RecordedQuota("5", "", "3", "3"),
        "raised, in another spelling": RecordedQuota("5000m", "", "3", "3"),
        "something between, by another client": RecordedQuota("4", "5", "3", ""),
        "more than that": RecordedQuota("9", "", "3", ""),
        "less than what was recorded": RecordedQuota("2", "", "", ""),
    }
)
def test_one_limit(case: RecordedQuota) -> None:
    record, now = Record({"limits.cpu": "3"}, {"limits.cpu": "2"}), {"limits.cpu": case.now}
    changes = record.to_raise(now), record.to_restore(now, exactly=False), record.to_restore(now, exactly=True)
    assert [change.get("limits.cpu", "") for change in changes] == [case.raised, case.lowered, case.restored]


class Names(NamedTuple):
    hard: Resources
    added: Resources
    now: Resources
    raised: Resources
    restored: Resources


UP = {"limits.cpu": "5", "pods": "5"}


@sentences(
    {
        "what both name is added": Names(
            {"limits.cpu": "3"}, {"limits.cpu": "2"}, {"limits.cpu": 3}, {"limits.cpu": 5}, {}
        ),
        "what only the quota names stays": Names(
            {"pods": "5", "limits.cpu": "3"}, {"limits.cpu": "2"}, UP, {}, {"limits.cpu": 3}
        ),
        "what only the budget names is not put in": Names({"pods": "5"}, {"limits.cpu": "2"}, {"pods": "5"}, {}, {}),
        "another name of the same thing is another name": Names(
            {"cpu": "3"}, {"requests.cpu": "2"}, {"cpu": "3"}, {}, {}
        ),
        "a half raised quota": Names(
            {"limits.cpu": "3", "pods": 5}, {"limits.cpu": "2", "pods": 1}, UP, {"pods": 6}, {"limits.cpu": 3}
        ),
        "what a person took out is not put back": Names(
            {"limits.cpu": "3", "pods": "5"}, {"limits.cpu": "2"}, {"pods": "5"}, {}, {}
        ),
        "what a person put in stays": Names({"limits.cpu": "3"}, {"limits.cpu": "2"}, UP, {}, {"limits.cpu": 3}),
    }
)
def test_several_limits(case: Names) -> None:
    record = Record(case.hard, case.added)
    assert by_value(record.to_raise(case.now)) == by_value(case.raised)
    assert by_value(record.to_restore(case.now, exactly=True)) == by_value(case.restored)


def test_a_record_that_is_no_quantity_names_its_resource() -> None:
    with pytest.raises(QuantityError, match=r"limits\.cpu"):
        Record({"limits.cpu": "3"}, {"limits.cpu": "much"}).to_raise({"limits.cpu": "3"})


SAID = '{"additional":{"limits.cpu":"2"},"quotas":{"quota":{"limits.cpu":"3","pods":5}}}'


@sentences(
    {
        "what was recorded": (SAID, Record({"limits.cpu": "3", "pods": 5}, {"limits.cpu": "2"})),
        "what is no quantity, or less than nothing, is not": (
            '{"additional":{"limits.cpu":"much","pods":"0"},"quotas":{"quota":{"limits.cpu":"-3","pods":5}}}',
            Record({"pods": 5}, {"pods": "0"}),
        ),
        "of another quota": ('{"quotas":{"other":{"pods":5}}}', None),
        "garbage": ("{", None),
        "of another type": ('{"quotas":7}', None),
    }
)
def test_what_a_quota_says_of_itself(case: tuple[str, Record | None]) -> None:
    assert record_of(quota(annotations={ANNOTATION_ORIGINALS: case[0]})) == case[1]


def test_what_is_written() -> None:
    assert Record({"pods": 5, "limits.cpu": "3"}, {"limits.cpu": "2"}).text("quota") == SAID
    assert record_of(quota()) is None


@sentences(
    {
        "status says the same": ({"limits.cpu": "5", "pods": "5"}, True),
        "status is raised still": ({"limits.cpu": "6", "pods": "5"}, False),
        "status is lower": ({"limits.cpu": "5", "pods": "1"}, True),
        "status is of something else": ({"secrets": "1"}, True),
    }
)
def test_admission_goes_by_the_status(case: tuple[Resources, bool]) -> None:
    assert is_lowering_enforced(quota(UP, enforced=case[0])) is case[1]


@sentences(
    {
        "nothing": ({}, False),
        "originals": ({"originalBlockingResourceQuotas": [{"name": "quota"}]}, True),
        "migrations": ({"migrationsToBlockingResourceQuotas": {"one": ["quota"]}}, True),
        "what may be added": ({"additionalMigrationResources": UP}, False),
    }
)
def test_what_a_status_says_is_raised(case: tuple[dict[str, Any], bool]) -> None:
    assert is_in_use(build(VirtualMachineMigrationResourceQuota, "budget", {}, case[0])) is case[1]
