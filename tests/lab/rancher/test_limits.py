"""Rancher's rendering of the namespace annotation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.rancher.limits import Unreadable, differs, render


def annotation(**limit: Any) -> str:
    return json.dumps({"limit": limit})


EVERY_NAME = {
    "pods": "1",
    "services": "2",
    "replicationControllers": "3",
    "secrets": "4",
    "configMaps": "5",
    "persistentVolumeClaims": "6",
    "servicesNodePorts": "7",
    "servicesLoadBalancers": "8",
    "requestsCpu": "9",
    "requestsMemory": "10Mi",
    "requestsStorage": "11Gi",
    "limitsCpu": "12",
    "limitsMemory": "13Mi",
}
RENDERED: dict[str, tuple[str, dict[str, str]]] = {
    "the seed's limits": (
        annotation(limitsCpu="3000m", limitsMemory="5000Mi"),
        {"limits.cpu": "3", "limits.memory": "5000Mi"},
    ),
    "every limit that Rancher knows": (
        annotation(**EVERY_NAME),
        {
            "pods": "1",
            "services": "2",
            "replicationcontrollers": "3",
            "secrets": "4",
            "configmaps": "5",
            "persistentvolumeclaims": "6",
            "services.nodeports": "7",
            "services.loadbalancers": "8",
            "requests.cpu": "9",
            "requests.memory": "10Mi",
            "requests.storage": "11Gi",
            "limits.cpu": "12",
            "limits.memory": "13Mi",
        },
    ),
    "extended resources as they are": (
        annotation(limitsCpu="1", extended={"requests.nvidia.com/gpu": "2", "count/pods": "5"}),
        {"limits.cpu": "1", "requests.nvidia.com/gpu": "2", "count/pods": "5"},
    ),
    "quantities as Kubernetes prints them": (
        annotation(limitsCpu="0.5", limitsMemory="1024Ki"),
        {"limits.cpu": "500m", "limits.memory": "1Mi"},
    ),
    "empty and absent limits not at all": (annotation(limitsCpu="", limitsMemory=None, pods="3"), {"pods": "3"}),
    "names that Rancher does not know not at all": (annotation(limitsGpu="1", pods="3"), {"pods": "3"}),
    "nothing from no limit": ("{}", {}),
    "nothing from a null limit": ('{"limit": null}', {}),
    "what stands beside the limit not at all": ('{"limit": {"pods": "1"}, "used": {"pods": "9"}}', {"pods": "1"}),
}


@pytest.mark.parametrize(("text", "hard"), RENDERED.values(), ids=RENDERED.keys())
def test_render(text: str, hard: dict[str, str]) -> None:
    assert render(text) == hard


UNREADABLE = {
    "no JSON": "limitsCpu=3",
    "half of it": '{"limit": {"limitsCpu": "3',
    "no object": "[]",
    "null": "null",
    "a limit that is a number": annotation(limitsCpu=3),
    "a limit that is no object": '{"limit": "3"}',
    "a quantity that is none": annotation(limitsMemory="lots"),
    "an extended quantity that is none": annotation(extended={"gpu": "many"}),
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_rendered_says_why_in_one_line(text: str) -> None:
    with pytest.raises(Unreadable) as raised:
        render(text)
    assert "\n" not in str(raised.value)


def test_a_quantity_that_is_none_is_named() -> None:
    with pytest.raises(Unreadable, match="limit limitsMemory is 'lots'"):
        render(annotation(limitsMemory="lots"))


DIFFERENT: dict[str, tuple[dict[str, Any] | None, dict[str, str], bool]] = {
    "the same": ({"limits.cpu": "3"}, {"limits.cpu": "3"}, False),
    "the same in other words": (
        {"limits.cpu": "3000m", "limits.memory": 1024},
        {"limits.cpu": "3", "limits.memory": "1Ki"},
        False,
    ),
    "raised": ({"limits.cpu": "5"}, {"limits.cpu": "3"}, True),
    "one more": ({"limits.cpu": "3", "pods": "1"}, {"limits.cpu": "3"}, True),
    "one less": ({}, {"limits.cpu": "3"}, True),
    "none at all": (None, {"limits.cpu": "3"}, True),
    "something that is no quantity": ({"limits.cpu": "x"}, {"limits.cpu": "3"}, True),
}


@pytest.mark.parametrize(("hard", "wanted", "expected"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_differs(hard: dict[str, Any] | None, wanted: dict[str, str], expected: bool) -> None:
    assert differs(hard, wanted) is expected
