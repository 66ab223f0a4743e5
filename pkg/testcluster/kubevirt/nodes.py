"""Which node a pod goes to: there is no scheduler in the embedded cluster, so nodeName is set at birth."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from pkg.api.meta import condition_is_true
from pkg.testcluster.kubevirt.objects import Node

HOSTNAME_LABEL = "kubernetes.io/hostname"


def pick_node(
    nodes: Iterable[Node],
    *,
    load: Mapping[str, int],
    avoid: Collection[str] = (),
    selector: Mapping[str, str] | None = None,
) -> str | None:
    """The least loaded node that may be used, the first by name among equals; None when there is none."""
    fitting = [
        node for node in nodes if node.name not in avoid and _usable(node) and _selected(node, selector or {})
    ]
    best = min(fitting, key=lambda node: (load.get(node.name, 0), natural_order(node.name)), default=None)
    return best.name if best else None


def natural_order(name: str) -> list[tuple[bool, int, str]]:
    """A sort key by which node-2 comes before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _usable(node: Node) -> bool:
    conditions = node.status.conditions or []
    known = any(condition.type == "Ready" for condition in conditions)
    ready = condition_is_true(conditions, "Ready") or not known
    return ready and not node.spec.unschedulable and not node.deleting


def _selected(node: Node, selector: Mapping[str, str]) -> bool:
    labels = {HOSTNAME_LABEL: node.name, **node.labels}
    return all(labels.get(key) == value for key, value in selector.items())
