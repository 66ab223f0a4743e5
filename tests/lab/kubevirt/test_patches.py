"""Pieces of merge patches."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api.meta import Condition
from kubeloop.testing.fake.patches import json_patched, merged
from lab.kubevirt.patches import as_json_patch, conditions_with, conditions_without, replacing, transitions
from pkg.api.kubevirt import PhaseTransition
from tests.lab.kubevirt.samples import NOW

READY = Condition(type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z")
OTHER = Condition(type="Other", status="False", reason="Because")


OTHER_WRITTEN = {"type": "Other", "status": "False", "reason": "Because"}
NOT_READY = Condition(type="Ready", status="False", last_transition_time=NOW)
CONDITIONS: dict[str, tuple[list[Any] | None, list[Any] | None]] = {
    "one takes the place of the one of its type": (
        conditions_with([READY, OTHER], NOT_READY),
        [{"type": "Ready", "status": "False", "lastTransitionTime": NOW}, OTHER_WRITTEN],
    ),
    "one that stays keeps its time": (
        conditions_with([READY], Condition(type="Ready", status="True", last_transition_time=NOW)),
        None,
    ),
    "a new one is appended": (conditions_with(None, OTHER), [OTHER_WRITTEN]),
    "one goes by its type": (conditions_without([READY, OTHER], "Ready"), [OTHER_WRITTEN]),
    "one that is not there does not go": (conditions_without([READY], "Other"), None),
    "none at all": (conditions_without(None, "Other"), None),
}


@pytest.mark.parametrize(("found", "written"), CONDITIONS.values(), ids=CONDITIONS.keys())
def test_conditions(found: list[Any] | None, written: list[Any] | None) -> None:
    assert found == written


def test_phases_are_added_once() -> None:
    before = [PhaseTransition(phase="Pending", phase_transition_timestamp="then")]
    assert transitions(before, ["Pending", "Scheduling"], NOW) == [
        {"phase": "Pending", "phaseTransitionTimestamp": "then"},
        {"phase": "Scheduling", "phaseTransitionTimestamp": NOW},
    ]


def test_replacing_removes_what_is_gone() -> None:
    assert replacing({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": None, "b": 3, "c": 4}


TESTED: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[Any, ...]]]] = {
    "a list is tested whole": (
        {"status": {"conditions": [1]}},
        {"status": {"conditions": [1, 2]}},
        [("test", "/status/conditions", [1]), ("add", "/status/conditions", [1, 2])],
    ),
    "null takes a key away": (
        {"status": {"activePods": {"a": "n", "b": "n"}}},
        {"status": {"activePods": {"a": None}}},
        [("test", "/status/activePods/a", "n"), ("remove", "/status/activePods/a", None)],
    ),
    "what is not there tests as null and comes without nulls": (
        {},
        {"status": {"phase": "Pending", "reason": None}},
        [("test", "/status", None), ("add", "/status", {"phase": "Pending"})],
    ),
    "a slash in a key": (
        {"metadata": {"uid": "u", "labels": {"a/b": "1"}}},
        {"metadata": {"labels": {"a/b": "2"}}},
        [("test", "/metadata/labels/a~1b", "1"), ("add", "/metadata/labels/a~1b", "2")],
    ),
}


@pytest.mark.parametrize(("before", "patch", "expected"), TESTED.values(), ids=TESTED.keys())
def test_a_merge_patch_as_a_json_patch_that_tests(
    before: dict[str, Any], patch: dict[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    body = {"metadata": {"uid": "u"}, **before}
    operations = as_json_patch(body, patch)
    assert operations[0] == {"op": "test", "path": "/metadata/uid", "value": "u"}
    assert [(op["op"], op["path"], op.get("value")) for op in operations[1:]] == expected
    assert json_patched(body, operations) == merged(body, patch)
