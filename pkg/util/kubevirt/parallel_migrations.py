"""KubeVirt's parallel limits: which migrations may have a target pod now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pkg.api.kubevirt import KubeVirtConfiguration
from pkg.util.constants import DEFAULT_PARALLEL_MIGRATIONS_PER_CLUSTER, DEFAULT_PARALLEL_OUTBOUND_MIGRATIONS_PER_NODE


@dataclass(frozen=True, slots=True)
class Limits:
    """How many migrations may run: in the cluster, and away from one node."""

    per_cluster: int = DEFAULT_PARALLEL_MIGRATIONS_PER_CLUSTER
    per_node: int = DEFAULT_PARALLEL_OUTBOUND_MIGRATIONS_PER_NODE


def limits_of(configuration: KubeVirtConfiguration, default: Limits | None = None) -> Limits:
    """What the KubeVirt CR says; `default`, else KubeVirt's own, where it says nothing."""
    default = default or Limits()
    given = configuration.migrations
    cluster = given.parallel_migrations_per_cluster if given else None
    node = given.parallel_outbound_migrations_per_node if given else None
    return Limits(
        per_cluster=default.per_cluster if cluster is None else cluster,
        per_node=default.per_node if node is None else node,
    )


def hindrance(running: Iterable[Collection[str]], node: str, limits: Limits) -> str:
    """Why a migration away from `node` has to wait, "" when it need not.

    `running` has the source nodes of every migration that runs or has a target pod already; more than one while
    a VMI's nodeName has moved on and its migration has not ended.
    """
    sources = list(running)
    if len(sources) >= limits.per_cluster:
        return f"{len(sources)} migrations run, {limits.per_cluster} may"
    outbound = sum(node in nodes for nodes in sources)
    if outbound >= limits.per_node:
        return f"{outbound} migrations leave {node}, {limits.per_node} may"
    return ""
