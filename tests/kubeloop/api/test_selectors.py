"""Label selectors, as texts, as labels and as structs."""

from typing import Any

import pytest

from kubeloop.api.meta import LabelSelector, LabelSelectorRequirement
from kubeloop.api.selectors import selector

LABELS = {"a": {"app": "web", "tier": "front"}, "b": {"app": "web"}, "c": {"app": "db"}, "d": {}}


def required(key: str, operator: str, *values: str) -> LabelSelector:
    return LabelSelector(match_expressions=[LabelSelectorRequirement(key=key, operator=operator, values=list(values))])


SELECTED: dict[str, tuple[Any, str]] = {
    "nothing is asked for": ("", "abcd"),
    "a value": ("app=web", "ab"),
    "two values": (" app==web , tier=front ", "a"),
    "another value, or none": ("app!=web", "cd"),
    "a label, whatever its value": ("app", "abc"),
    "no label": ("!app", "d"),
    "sets": ("app in (web, db),tier notin (front)", "bc"),
    "no labels are asked for": ({}, "abcd"),
    "labels": ({"app": "web", "tier": "front"}, "a"),
    "an empty selector": (LabelSelector(), "abcd"),
    "match_labels": (LabelSelector(match_labels={"app": "web"}), "ab"),
    "In": (required("app", "In", "web", "db"), "abc"),
    "NotIn": (required("app", "NotIn", "web"), "cd"),
    "Exists": (required("tier", "Exists"), "a"),
    "DoesNotExist": (required("tier", "DoesNotExist"), "bcd"),
    "both": (
        LabelSelector(
            match_labels={"app": "web"},
            match_expressions=[LabelSelectorRequirement(key="tier", operator="DoesNotExist")],
        ),
        "b",
    ),
}


@pytest.mark.parametrize("case", SELECTED)
def test_selected(case: str) -> None:
    requirements, names = SELECTED[case]
    selects = selector(requirements)
    assert "".join(name for name, labels in LABELS.items() if selects(labels)) == names


@pytest.mark.parametrize(
    "wrong",
    [
        "app in web",
        "a b",
        "a>1",
        "=x",
        required("app", "In"),
        required("app", "Exists", "web"),
        required("app", "Like", "web"),
    ],
)
def test_what_is_not_a_selector(wrong: Any) -> None:
    with pytest.raises(ValueError, match="is not a requirement of a label selector"):
        selector(wrong)
