"""Entries: every form of an entry's key, whichever controller wrote it, and what changes of them."""

from __future__ import annotations

import pytest

from pkg.util.resourcequota.entries import changes, parse_resources, put, read
from pkg.util.resourcequota.errors import InvalidEntry
from tests.decisions import by_value, sentences
from tests.objects import COMPENSATION, ENTRY, RESYNC, SKIP, by_name, by_uid

ENTRY_VALUES = by_value({"limits.cpu": "2", "limits.memory": "4737464313"})


GARBAGE = {"no JSON": "{nope", "a quantity that is none": '{"limits.cpu":"two"}', "nested beyond reason": "[" * 100_000}


@sentences(GARBAGE)
def test_garbage_is_told_with_its_key_in_one_line(case: str) -> None:
    with pytest.raises(InvalidEntry, match="annotation example/key is not a resource list") as caught:
        parse_resources("example/key", case)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@sentences(GARBAGE)
def test_what_cannot_be_read_adds_nothing_and_is_told(case: str) -> None:
    found = read({by_uid(): ENTRY, by_name(): case, RESYNC: "true"})
    assert found.said == {by_uid(): ENTRY_VALUES}
    assert list(found.invalid) == [by_name()]


def test_an_entry_that_says_the_same_keeps_its_spelling() -> None:
    before = {by_uid(): '{ "limits.memory": 4737464313, "limits.cpu": "2e0" }'}
    after = dict(before)
    put(after, by_uid(), ENTRY_VALUES)
    assert after == before


def test_changes_are_what_differs() -> None:
    before = {by_uid(): ENTRY, RESYNC: "true", SKIP: "true"}
    assert changes(before, {RESYNC: "false", SKIP: "true", COMPENSATION: "{}"}) == {
        RESYNC: "false",
        COMPENSATION: "{}",
        by_uid(): None,
    }


def test_a_compensation_that_is_garbage() -> None:
    said, compensation, invalid = read({COMPENSATION: "128Mi", by_uid(): ENTRY})
    assert said == {by_uid(): ENTRY_VALUES}
    assert not compensation
    with pytest.raises(InvalidEntry, match="migratingCompensation"):
        raise invalid[COMPENSATION]
