"""Rancher's validation of what namespaces request of their project."""

import pytest

from kubeloop.api.resource_list import parse_resource_list
from lab.rancher.limits import Limit, Unreadable, complete, decode, encode_annotation, limit_of
from lab.rancher.validation import sum_of, validate, validate_together

PROJECT: Limit = {"limitsCpu": "4", "limitsMemory": "10Gi"}
OTHER: Limit = {"limitsCpu": "1", "limitsMemory": "1Gi"}
Case = tuple[Limit, list[Limit], Limit, str]

CASES: dict[str, Case] = {
    "alone within the project": ({"limitsCpu": "4", "limitsMemory": "10Gi"}, [], PROJECT, ""),
    "as much as the others leave": ({"limitsCpu": "2", "limitsMemory": "8Gi"}, [OTHER, OTHER], PROJECT, ""),
    "a little more than the others leave": (
        {"limitsCpu": "2001m", "limitsMemory": "8Gi"},
        [OTHER, OTHER],
        PROJECT,
        "Oversubscribed resource quota [limits.cpu=4001m]",
    ),
    "two limits too much, in alphabetical order": (
        {"limitsMemory": "10Gi", "limitsCpu": "4"},
        [OTHER],
        PROJECT,
        "Oversubscribed resource quota [limits.cpu=5,limits.memory=11Gi]",
    ),
    "a limit that the project has not": ({"requestsCpu": "1000"}, [], PROJECT, ""),
    "a limit that only others request": (
        {"limitsCpu": "1"},
        [{"limitsMemory": "11Gi"}],
        PROJECT,
        "Oversubscribed resource quota [limits.memory=11Gi]",
    ),
    "others below zero count as nothing": (
        {"limitsCpu": "4"},
        [{"limitsCpu": "-3"}, OTHER],
        PROJECT,
        "Oversubscribed resource quota [limits.cpu=5]",
    ),
    "an own limit below zero": ({"limitsCpu": "-1"}, [], PROJECT, "Negative resource quota [limits.cpu=-1]"),
    "both at once": (
        {"limitsCpu": "-1", "limitsMemory": "20Gi"},
        [],
        PROJECT,
        "Oversubscribed resource quota [limits.memory=20Gi]; Negative resource quota [limits.cpu=-1]",
    ),
    "extended resources": (
        {"extended": {"requests.nvidia.com/gpu": "3"}},
        [],
        {"extended": {"requests.nvidia.com/gpu": "2"}},
        "Oversubscribed resource quota [requests.nvidia.com/gpu=3]",
    ),
    "namespaces that request nothing": ({"limitsCpu": "4"}, [{}, {}], PROJECT, ""),
}


@pytest.mark.parametrize(("limit", "other_limits", "project", "message"), CASES.values(), ids=CASES.keys())
def test_validate(limit: Limit, other_limits: list[Limit], project: Limit, message: str) -> None:
    verdict = validate(limit, other_limits, project)
    assert verdict.message == message
    assert verdict.fits is (not message)


TOGETHER: dict[str, Case] = {
    "all fits": ({"limitsCpu": "4"}, [], PROJECT, ""),
    "two limits too much": (
        {"limitsMemory": "10Gi", "limitsCpu": "4"},
        [OTHER],
        PROJECT,
        "Resource quota [limits.cpu=5,limits.memory=11Gi] exceeds project limit",
    ),
    "an own limit below zero, as the project's sum": (
        {"limitsCpu": "-1"},
        [OTHER],
        PROJECT,
        "Resource quota [limits.cpu=0] exceeds project limit",
    ),
    "others below zero make room": ({"limitsCpu": "4"}, [{"limitsCpu": "-3"}, OTHER], PROJECT, ""),
}


@pytest.mark.parametrize(("limit", "other_limits", "project", "message"), TOGETHER.values(), ids=TOGETHER.keys())
def test_validate_together(limit: Limit, other_limits: list[Limit], project: Limit, message: str) -> None:
    verdict = validate_together(limit, other_limits, project)
    assert (verdict.message, verdict.fits) == (message, not message)


def test_a_sibling_that_cannot_be_read_stops_the_project() -> None:
    with pytest.raises(Unreadable, match="limit limitsCpu is 'lots'"):
        validate({"limitsCpu": "1"}, [{"limitsCpu": "lots"}], PROJECT)


GRANTED = {
    "all of what fits": ({"limitsCpu": "4"}, [], {"limits.cpu": "4"}),
    "zero for what is too much, the rest as requested": (
        {"limitsCpu": "5", "limitsMemory": "8Gi"},
        [],
        {"limits.cpu": "0", "limits.memory": "8Gi"},
    ),
    "zero for what is negative": ({"limitsCpu": "-1", "pods": "3"}, [], {"limits.cpu": "0", "pods": "3"}),
    "zero for what others have used up": (
        {"limitsCpu": "1"},
        [{"limitsMemory": "11Gi"}],
        {"limits.cpu": "1", "limits.memory": "0"},
    ),
}


@pytest.mark.parametrize(("limit", "other_limits", "hard"), GRANTED.values(), ids=GRANTED.keys())
def test_a_quota_is_created_with(limit: Limit, other_limits: list[Limit], hard: dict[str, str]) -> None:
    assert validate(limit, other_limits, PROJECT).granted(limit) == parse_resource_list(hard)


COMPLETED = {
    "the request counts": ({"limitsCpu": "3"}, {"limitsCpu": "1"}, {"limitsCpu": "3"}),
    "the default fills in": ({"limitsCpu": "3"}, {"limitsCpu": "1", "pods": "9"}, {"limitsCpu": "3", "pods": "9"}),
    "what the default has not is dropped": ({"limitsCpu": "3", "pods": "9"}, {"limitsCpu": "1"}, {"limitsCpu": "3"}),
    "extended limits are one field": (
        {"extended": {"a/b": "1"}},
        {"extended": {"c/d": "2"}, "pods": "9"},
        {"extended": {"a/b": "1"}, "pods": "9"},
    ),
    "an empty request is none": ({}, {"limitsCpu": "1"}, {"limitsCpu": "1"}),
}


@pytest.mark.parametrize(("requested", "default", "limit"), COMPLETED.values(), ids=COMPLETED.keys())
def test_completed(requested: Limit, default: Limit, limit: Limit) -> None:
    assert complete(requested, default) == limit


def test_an_annotation_is_spelled_as_go_does() -> None:
    limit = decode({"limitsCpu": "3", "extended": {"b": "2", "a": "1"}, "pods": "4", "limitsMemory": ""})
    assert encode_annotation(limit) == '{"limit":{"pods":"4","limitsCpu":"3","extended":{"a":"1","b":"2"}}}'


def test_used_is_the_sum_by_ranchers_names() -> None:
    total = sum_of([{"limitsCpu": "1500m", "extended": {"a/b": "1"}}, {"limitsCpu": "1", "limitsMemory": "1Gi"}])
    assert limit_of(total) == {"limitsCpu": "2500m", "limitsMemory": "1Gi", "extended": {"a/b": "1"}}
