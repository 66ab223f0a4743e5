"""Rancher's rendering of the namespace annotation."""

import json
from typing import Any

import pytest

from lab.rancher.limits import Unreadable, differs, render


def annotation(**limit: Any) -> str:
    return json.dumps({"limit": limit})


NAMES = {
    "pods": "pods",
    "services": "services",
    "replicationControllers": "replicationcontrollers",
    "secrets": "secrets",
    "configMaps": "configmaps",
    "persistentVolumeClaims": "persistentvolumeclaims",
    "servicesNodePorts": "services.nodeports",
    "servicesLoadBalancers": "services.loadbalancers",
    "requestsCpu": "requests.cpu",
    "requestsMemory": "requests.memory",
    "requestsStorage": "requests.storage",
    "limitsCpu": "limits.cpu",
    "limitsMemory": "limits.memory",
}
RENDERED: dict[str, tuple[str, dict[str, str]]] = {
    "the seed's limits": (
        annotation(limitsCpu="3000m", limitsMemory="5000Mi"),
        {"limits.cpu": "3", "limits.memory": "5000Mi"},
    ),
    "every limit that Rancher knows": (
        annotation(**{name: str(number) for number, name in enumerate(NAMES)}),
        {name: str(number) for number, name in enumerate(NAMES.values())},
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
    "nothing from null": ("null", {}),
    "names in any case": (
        '{"Limit": {"LIMITSCPU": "1", "limitsmemory": "1Gi"}}',
        {"limits.cpu": "1", "limits.memory": "1Gi"},
    ),
    "nothing from a null limit": ('{"limit": null}', {}),
    "what stands beside the limit not at all": ('{"limit": {"pods": "1"}, "used": {"pods": "9"}}', {"pods": "1"}),
}


@pytest.mark.parametrize(("text", "hard"), RENDERED.values(), ids=RENDERED.keys())
def test_render(text: str, hard: dict[str, str]) -> None:
    assert render(text) == hard


UNREADABLE = {
    "no JSON": ("limitsCpu=3", "is not a resource quota"),
    "half of it": ('{"limit": {"limitsCpu": "3', "is not a resource quota"),
    "no object": ("[]", "is not a resource quota"),
    "a limit that is a number": (annotation(limitsCpu=3), "is not a resource quota"),
    "a limit that is no object": ('{"limit": "3"}', "is not a resource quota"),
    "a quantity that is none": (annotation(limitsMemory="lots"), "limit limitsMemory is 'lots'"),
    "an extended quantity that is none": (annotation(extended={"gpu": "many"}), "limit gpu is 'many'"),
}


@pytest.mark.parametrize(("text", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_rendered_says_why_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=rf"\A.*{reason}.*\Z"):
        render(text)


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


@pytest.mark.parametrize(("hard", "limits", "expected"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_differs(hard: dict[str, Any] | None, limits: dict[str, str], expected: bool) -> None:
    assert differs(hard, limits) is expected
