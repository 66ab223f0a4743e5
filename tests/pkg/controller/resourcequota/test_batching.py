"""How long the next patch waits for company."""

from __future__ import annotations

import pytest

from pkg.controller.resourcequota.batching import LONGEST, next_write_after
from tests.pkg.util.resourcequota.world import COMPENSATION, ENTRY, RESYNC, SKIP, by_name, by_uid


@pytest.mark.parametrize(
    ("entries", "wait"), [(0, 0.0), (1, 0.0), (2, 0.04), (3, 0.08), (7, 0.24), (8, LONGEST), (500, LONGEST)]
)
def test_the_more_are_under_way_the_longer(entries: int, wait: float) -> None:
    for form in (by_uid, by_name):
        annotations = {form(f"vm{n}"): ENTRY for n in range(entries)}
        assert next_write_after(annotations, 100.0) == pytest.approx(100.0 + wait)


def test_annotations_that_are_no_entries_do_not_count() -> None:
    annotations = {
        COMPENSATION: "{}",
        RESYNC: "true",
        SKIP: "true",
        "example.com/other": "x",
        by_uid(): ENTRY,
    }
    assert next_write_after(annotations, 100.0) == 100.0


def test_the_first_write_waits_for_nothing() -> None:
    assert next_write_after({by_uid(f"vm{n}"): ENTRY for n in range(50)}, float("-inf")) == float("-inf")
