"""Which node a pod goes to."""

from __future__ import annotations

from typing import Any

import pytest

from pkg.testcluster.kubevirt.nodes import natural_order, pick_node
from pkg.testcluster.kubevirt.objects import Node
from tests.pkg.testcluster.kubevirt.samples import NOW, convert, node

THREE = [node("node-10"), node("node-2"), node("node-1")]
DELETED = convert({"metadata": {"name": "node-0", "deletionTimestamp": NOW}}, Node)

PICKS: dict[str, tuple[list[Node], dict[str, Any], str | None]] = {
    "none where there is none": ([], {"load": {}}, None),
    "the first by number": (THREE, {"load": {}}, "node-1"),
    "the least loaded": (THREE, {"load": {"node-1": 2, "node-2": 1, "node-10": 1}}, "node-2"),
    "not the source": (THREE, {"load": {}, "avoid": {"node-1"}}, "node-2"),
    "none beside the only one": ([node("node-1")], {"load": {}, "avoid": {"node-1"}}, None),
    "not a cordoned one": ([node("node-1", unschedulable=True), node("node-2")], {"load": {}}, "node-2"),
    "not one that is not ready": ([node("node-1", ready="False"), node("node-2")], {"load": {}}, "node-2"),
    "one that nobody has called ready or not": ([node("node-1", ready=None)], {"load": {}}, "node-1"),
    "not one that is being deleted": ([DELETED, node("node-2")], {"load": {}}, "node-2"),
    "the one that is named": (
        THREE,
        {"load": {}, "selector": {"kubernetes.io/hostname": "node-10"}},
        "node-10",
    ),
    "one with the labels": ([node("a"), node("b", zone="x")], {"load": {}, "selector": {"zone": "x"}}, "b"),
    "none without the labels": (THREE, {"load": {}, "selector": {"zone": "x"}}, None),
}


@pytest.mark.parametrize(("nodes", "how", "name"), PICKS.values(), ids=PICKS.keys())
def test_pick_node(nodes: list[Node], how: dict[str, Any], name: str | None) -> None:
    assert pick_node(nodes, **how) == name


def test_numbers_in_names_count_as_numbers() -> None:
    assert sorted(["node-10", "node-9", "a", "node-9-b2", "node-9-b10"], key=natural_order) == [
        "a",
        "node-9",
        "node-9-b2",
        "node-9-b10",
        "node-10",
    ]
