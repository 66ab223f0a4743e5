"""Entries: every form of an entry's key, whichever controller wrote it, and changes as a merge patch."""

from __future__ import annotations

import pytest

from pkg.util.resourcequota.entries import Entries, parse_resources
from pkg.util.resourcequota.errors import InvalidEntry
from tests.decisions import by_value, sentences
from tests.objects import COMPENSATION, ENTRY, RESYNC, SKIP, by_uid

ENTRY_VALUES = by_value({"limits.cpu": "2", "limits.memory": "4737464313"})


GARBAGE = {"no JSON": "{nope", "a quantity that is none": '{"limits.cpu":"two"}', "nested beyond reason": "[" * 100_000}


@sentences(GARBAGE)
def test_garbage_is_told_with_its_key_in_one_line(case: str) -> None:
    with pytest.raises(InvalidEntry, match="annotation example/key is not a resource list") as caught:
        parse_resources("example/key", case)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


class TestEntries:
    def test_what_is_set_and_taken_back_is_no_change(self) -> None:
        entries_ = Entries({RESYNC: "true"})
        entries_.set({RESYNC: "false"})
        entries_.set({RESYNC: "true"})
        entries_.put(by_uid(), ENTRY_VALUES)
        entries_.remove(by_uid())
        assert entries_.changes() == {}

    def test_the_object_itself_is_never_touched(self) -> None:
        annotations = {by_uid(): ENTRY}
        entries_ = Entries(annotations)
        entries_.remove(by_uid())
        entries_.set({SKIP: "true"})
        assert annotations == {by_uid(): ENTRY}

    def test_an_entry_that_says_the_same_keeps_its_spelling(self) -> None:
        entries_ = Entries({by_uid(): '{ "limits.memory": 4737464313, "limits.cpu": "2e0" }'})
        entries_.put(by_uid(), ENTRY_VALUES)
        assert entries_.changes() == {}

    def test_a_compensation_that_is_garbage(self) -> None:
        with pytest.raises(InvalidEntry, match="migratingCompensation"):
            _ = Entries({COMPENSATION: "128Mi"}).compensation
