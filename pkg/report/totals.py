"""Sums all quotas of a cluster, against what its nodes offer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import field
from msgspec.structs import astuple

from kubeloop.api.core import Node
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import parse_resource_list, total
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import format_amount, format_distinctly

_OF_NODES: Final = {
    "limits.cpu": "cpu",
    "limits.memory": "memory",
    "requests.cpu": "cpu",
    "requests.memory": "memory",
    "pods": "pods",
}
"""The limits of quotas that nodes offer something of, and under which name."""


class Total(Document, frozen=True):
    """The amounts of one resource of all quotas: what they grant without headroom, what is added, both together, what
    is used, what of the bases is not used yet, and what the nodes offer (None if they may not be read). Of several
    quotas of a namespace the smallest base counts."""

    bases: Quantity
    added: Quantity
    hard: Quantity
    used: Quantity
    unused: Quantity
    allocatable: Quantity | None


class Totals(Document, frozen=True):
    """The sums of the whole cluster; `verdicts` say what was granted beyond what there is."""

    namespaces: int
    quotas: int
    resources: Mapping[str, Total]
    verdicts: Sequence[str] = field(default=())


def totals(snapshot: Snapshot, nodes: Sequence[Node] | None) -> Totals:
    """Sums every quota, managed or not."""
    by_namespace: dict[str, dict[str, list[Total]]] = {}
    for quota in snapshot.quotas:
        limits, used = parse_resource_list(quota.hard), parse_resource_list(quota.used)
        base = snapshot.base(quota)
        for name in limits.keys() & _OF_NODES.keys():
            base_amount, used_amount = base[name], used.get(name, ZERO)
            unused = max(ZERO, base_amount - used_amount)
            total_of_quota = Total(base_amount, limits[name] - base_amount, limits[name], used_amount, unused, None)
            by_namespace.setdefault(quota.namespace, {}).setdefault(name, []).append(total_of_quota)
    open_nodes = [node for node in nodes or () if not node.spec.unschedulable]
    allocatable = total(parse_resource_list(node.status.allocatable or {}) for node in open_nodes)
    totals_by_name: dict[str, Total] = {}
    for name in _OF_NODES:
        here = [by_name[name] for by_name in by_namespace.values() if name in by_name]
        smallest = [min(of_namespace, key=lambda total_of_quota: total_of_quota.bases) for of_namespace in here]
        if smallest:
            offered = None if nodes is None else allocatable.get(_OF_NODES[name], ZERO)
            columns = zip(*(astuple(total_of_quota)[:-1] for total_of_quota in smallest), strict=True)
            bases, added, hard, in_use, unused = (sum(column, ZERO) for column in columns)
            totals_by_name[name] = Total(bases, added, hard, in_use, unused, offered)
    return Totals(len(by_namespace), len(snapshot.quotas), totals_by_name, list(_verdicts(totals_by_name)))


def _verdicts(totals_by_name: Mapping[str, Total]) -> Iterator[str]:
    """Yields verdicts: the namespaces that are not full yet find nothing if others, or headroom, have used what was
    planned for."""
    for name, row in totals_by_name.items():
        if row.allocatable is None:
            continue
        free = max(ZERO, row.allocatable - row.used)
        if row.bases > row.allocatable:
            excess = format_amount(row.bases - row.allocatable, name)
            yield f"{name}: the bases grant {excess} more than the nodes offer, before anything is added for migrations"
        elif row.unused > free:
            unused_text, free_text = format_distinctly(name, row.unused, free)
            yield f"{name}: {unused_text} of the bases are not used yet, and the nodes have only {free_text} left"
