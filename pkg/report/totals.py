"""All quotas of a cluster together, against what its nodes offer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import field

from kubeloop.api.core import Node
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, parse_resource_list, total
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import compared, shown

_OF_NODES: Final = {
    "limits.cpu": "cpu",
    "limits.memory": "memory",
    "requests.cpu": "cpu",
    "requests.memory": "memory",
    "pods": "pods",
}
"""The limits of quotas that nodes offer something of, and under which name."""


class Total(Document, frozen=True):
    """One resource of all quotas: what they grant without headroom, what is added, both together, what is used, what of
    the bases is not used yet, and what the nodes offer (None where they may not be read). Of several quotas of a
    namespace the smallest base counts."""

    bases: Quantity
    added: Quantity
    hard: Quantity
    used: Quantity
    unused: Quantity
    allocatable: Quantity | None


class Totals(Document, frozen=True):
    """Of the whole cluster; `verdicts` say what was granted beyond what there is."""

    namespaces: int
    quotas: int
    resources: Mapping[str, Total]
    verdicts: Sequence[str] = field(default=())


def totals(snapshot: Snapshot, nodes: Sequence[Node] | None) -> Totals:
    """Sum every quota, managed or not."""
    by_namespace: dict[str, dict[str, list[Total]]] = {}
    for quota in snapshot.quotas:
        limits, used = parse_resource_list(quota.hard), parse_resource_list(quota.used)
        base = snapshot.base(quota)
        for name in limits.keys() & _OF_NODES.keys():
            of_base, in_use = base[name], used.get(name, ZERO)
            unused = max(ZERO, of_base - in_use)
            one = Total(of_base, limits[name] - of_base, limits[name], in_use, unused, None)
            by_namespace.setdefault(quota.namespace, {}).setdefault(name, []).append(one)
    offered = None if nodes is None else _offered(nodes)
    found: dict[str, Total] = {}
    for name in _OF_NODES:
        smallest = [min(of[name], key=lambda one: one.bases) for of in by_namespace.values() if name in of]
        if smallest:
            found[name] = Total(
                bases=sum((one.bases for one in smallest), ZERO),
                added=sum((one.added for one in smallest), ZERO),
                hard=sum((one.hard for one in smallest), ZERO),
                used=sum((one.used for one in smallest), ZERO),
                unused=sum((one.unused for one in smallest), ZERO),
                allocatable=None if offered is None else offered.get(_OF_NODES[name], ZERO),
            )
    return Totals(len(by_namespace), len(snapshot.quotas), found, list(_verdicts(found)))


def _offered(nodes: Sequence[Node]) -> ResourceList:
    return total(
        parse_resource_list({n: q for n, q in (node.status.allocatable or {}).items() if n in _OF_NODES.values()})
        for node in nodes
        if not node.spec.unschedulable
    )


def _verdicts(found: Mapping[str, Total]) -> Iterator[str]:
    """The namespaces that are not full yet find nothing where others, or headroom, have used what was planned for."""
    for name, row in found.items():
        if row.allocatable is None:
            continue
        left = max(ZERO, row.allocatable - row.used)
        if row.bases > row.allocatable:
            more = shown(row.bases - row.allocatable, name)
            yield f"{name}: the bases grant {more} more than the nodes offer, before anything is added for migrations"
        elif row.unused > left:
            granted, rest = compared(name, row.unused, left)
            yield f"{name}: {granted} of the bases are not used yet, and the nodes have only {rest} left"
