"""KubeVirt's parallel limits: which migrations may have a target pod now."""

from __future__ import annotations

from collections.abc import Iterable

from pkg.testcluster.kubevirt.rendering import Limits


def hindrance(running: Iterable[frozenset[str]], node: str, limits: Limits) -> str:
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
