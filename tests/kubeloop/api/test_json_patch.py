"""JSON patches made from `edit`: applied to what was sent, they give what was meant, and lose nothing of it."""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec
import pytest

from kubeloop.api.bodies import json_patch
from kubeloop.api.core import Container, Pod, PodSchedulingGate, Taint
from kubeloop.api.meta import Struct
from kubeloop.api.objects import PartlyDeclared, edit
from kubeloop.testing.fake.patches import json_patched

SENT: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {"a": "b", "x/y": "z"}, "managedFields": []},
    "spec": {
        "containers": [
            {"name": "one", "image": "i", "command": ["run"]},
            {"name": "two", "ports": [1], "resources": {"limits": {"cpu": "1"}}},
        ],
        "dnsPolicy": "Default",
    },
}
POD = msgspec.convert(SENT, Pod)
ONE, TWO = POD.spec.containers
NEW = Container(name="new", image="j")

EDITS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "nothing": ({}, []),
    "a label that is there": (
        {"metadata": {"labels": {"a": "c", "x/y": "z"}}},
        [{"op": "replace", "path": "/metadata/labels/a", "value": "c"}],
    ),
    "a new label with a slash": (
        {"metadata": {"labels": {"a": "b", "x/y": "z", "x/n~": "m"}}},
        [{"op": "add", "path": "/metadata/labels/x~1n~0", "value": "m"}],
    ),
    "a label that goes": ({"metadata": {"labels": {"a": "b"}}}, [{"op": "remove", "path": "/metadata/labels/x~1y"}]),
    "all labels": ({"metadata": {"labels": None}}, [{"op": "remove", "path": "/metadata/labels"}]),
    "annotations where there were none": (
        {"metadata": {"annotations": {"a": "b"}}},
        [{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}],
    ),
    "a field of spec": ({"spec": {"node_name": "n"}}, [{"op": "add", "path": "/spec/nodeName", "value": "n"}]),
    "a struct where there was none": (
        {"status": {"phase": "Running"}},
        [{"op": "add", "path": "/status", "value": {"phase": "Running"}}],
    ),
    "a field of an item": (
        {"spec": {"containers": [ONE, edit(TWO, image="k")]}},
        [{"op": "add", "path": "/spec/containers/1/image", "value": "k"}],
    ),
    "something deep in an item": (
        {"spec": {"containers": [ONE, edit(TWO, resources={"limits": {"cpu": "2"}})]}},
        [{"op": "replace", "path": "/spec/containers/1/resources/limits/cpu", "value": "2"}],
    ),
    "an item at the end": (
        {"spec": {"containers": [ONE, TWO, NEW]}},
        [{"op": "add", "path": "/spec/containers/2", "value": {"name": "new", "image": "j"}}],
    ),
    "an item at the beginning": (
        {"spec": {"containers": [NEW, ONE, TWO]}},
        [{"op": "add", "path": "/spec/containers/0", "value": {"name": "new", "image": "j"}}],
    ),
    "an item that goes": ({"spec": {"containers": [TWO]}}, [{"op": "remove", "path": "/spec/containers/0"}]),
    "every item": (
        {"spec": {"containers": []}},
        [{"op": "remove", "path": "/spec/containers/1"}, {"op": "remove", "path": "/spec/containers/0"}],
    ),
    "a list where there was none": (
        {"spec": {"scheduling_gates": [PodSchedulingGate(name="g")]}},
        [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "g"}]}],
    ),
}


@pytest.mark.parametrize(("changes", "operations"), EDITS.values(), ids=EDITS)
def test_an_edit_of(changes: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    new = edit(POD, **changes)
    patch = json_patch(POD, new, SENT)
    assert patch == operations
    result = json_patched(copy.deepcopy(SENT), patch)
    assert msgspec.convert(result, Pod) == new
    assert result["spec"]["dnsPolicy"] == "Default"
    assert all(item["command"] == ["run"] for item in result["spec"]["containers"] if item["name"] == "one")


@pytest.mark.parametrize("order", [[TWO, ONE], [NEW, ONE], [edit(TWO, image="k")]])
def test_items_that_are_declared_in_part_cannot_be_moved(order: list[Container]) -> None:
    with pytest.raises(PartlyDeclared, match=r"Pod\.spec\.containers"):
        json_patch(POD, edit(POD, spec={"containers": order}), SENT)


def test_two_kinds_are_not_compared() -> None:
    with pytest.raises(TypeError, match="not versions of one object"):
        json_patch(POD, ONE, SENT)


class Words(Struct):
    words: list[str] = msgspec.field(default_factory=list)
    taints: list[Taint] = msgspec.field(default_factory=list)


def test_any_list_of_words_or_of_whole_structs_becomes_any_other() -> None:
    numbers = random.Random(7)
    for _ in range(2000):
        lists = [[numbers.choice("abcd") for _ in range(numbers.randrange(5))] for _ in range(4)]
        old = Words(words=lists[0], taints=[Taint(key=key) for key in lists[1]])
        new = Words(words=lists[2], taints=[Taint(key=key) for key in lists[3]])
        sent = msgspec.to_builtins(old)
        result = json_patched(sent, json_patch(old, new, sent))
        assert msgspec.convert(result, Words) == new, (old, new)
