"""Pieces of merge patches."""

from __future__ import annotations

import pytest

from pkg.api.meta import Condition
from pkg.testcluster.kubevirt.objects import PhaseTransition
from pkg.testcluster.kubevirt.patches import (
    conditions_with,
    conditions_without,
    guarded,
    parse_timestamp,
    replacing,
    timestamp,
    transitions,
)
from tests.pkg.testcluster.kubevirt.samples import NOW, vmim

READY = Condition(type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z")
OTHER = Condition(type="Other", status="False", reason="Because")


def test_times_are_written_as_kubernetes_does_and_read_back() -> None:
    assert timestamp(0.9) == "1970-01-01T00:00:00Z"
    assert parse_timestamp(timestamp(1_700_000_000)) == 1_700_000_000


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_what_is_no_time_is_none(text: str | None) -> None:
    assert parse_timestamp(text) is None


def test_a_guarded_patch_carries_the_version_that_it_was_made_from() -> None:
    assert guarded(vmim(), {"metadata": {"labels": {"a": "b"}}, "status": {}}) == {
        "metadata": {"labels": {"a": "b"}, "resourceVersion": "7"},
        "status": {},
    }


def test_a_condition_takes_the_place_of_the_one_of_its_type() -> None:
    change = Condition(type="Ready", status="False", last_transition_time=NOW)
    assert conditions_with([READY, OTHER], change) == [
        {"type": "Ready", "status": "False", "lastTransitionTime": NOW},
        {"type": "Other", "status": "False", "reason": "Because"},
    ]


def test_a_condition_that_stays_keeps_its_time() -> None:
    assert conditions_with([READY], Condition(type="Ready", status="True", last_transition_time=NOW)) is None


def test_a_new_condition_is_appended() -> None:
    assert conditions_with(None, OTHER) == [{"type": "Other", "status": "False", "reason": "Because"}]


def test_conditions_go_by_type() -> None:
    assert conditions_without([READY, OTHER], "Ready") == [
        {"type": "Other", "status": "False", "reason": "Because"}
    ]
    assert conditions_without([READY], "Other") is None
    assert conditions_without(None, "Other") is None


def test_phases_are_added_once() -> None:
    before = [PhaseTransition(phase="Pending", phase_transition_timestamp="then")]
    assert transitions(before, ["Pending", "Scheduling"], NOW) == [
        {"phase": "Pending", "phaseTransitionTimestamp": "then"},
        {"phase": "Scheduling", "phaseTransitionTimestamp": NOW},
    ]


def test_replacing_removes_what_is_gone() -> None:
    assert replacing({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": None, "b": 3, "c": 4}
