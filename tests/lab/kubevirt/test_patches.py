"""Pieces of merge patches."""

from __future__ import annotations

from lab.kubevirt.patches import replacing, transitions
from pkg.api.kubevirt import PhaseTransition
from tests.lab.kubevirt.samples import NOW


def test_phases_are_added_once() -> None:
    before = [PhaseTransition(phase="Pending", phase_transition_timestamp="then")]
    assert transitions(before, ["Pending", "Scheduling"], NOW) == [
        {"phase": "Pending", "phaseTransitionTimestamp": "then"},
        {"phase": "Scheduling", "phaseTransitionTimestamp": NOW},
    ]


def test_replacing_removes_what_is_gone() -> None:
    assert replacing({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": None, "b": 3, "c": 4}
