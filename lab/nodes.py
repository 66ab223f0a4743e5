"""Node maintenance, as Harvester begins it: the node is cordoned, and tainted so that KubeVirt moves its VMs away."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from kubeloop.api.registry import NODES
from kubeloop.client.client import Client
from lab.kubevirt.evacuation_controller import DRAIN_TAINT


async def cordon(client: Client, names: Iterable[str], *, cordoned: bool = True) -> None:
    """Closes these nodes to pods, or opens them again. Raises ApiError."""
    for name in names:
        await _patch(client, name, {"unschedulable": cordoned or None})


@contextlib.asynccontextmanager
async def only_open(client: Client) -> AsyncIterator[str]:
    """Keeps all nodes but one closed to pods inside the block; the name of that one. Raises ApiError."""
    node, *other_nodes = [item.name for item in await client.resource(NODES).list()]
    await cordon(client, other_nodes)
    try:
        yield node
    finally:
        await cordon(client, other_nodes, cordoned=False)


async def drain(client: Client, name: str) -> None:
    """Begins a node's maintenance. Raises ApiError."""
    taint = {"key": DRAIN_TAINT, "value": "scheduling", "effect": "NoSchedule"}
    await _patch(client, name, {"unschedulable": True, "taints": [taint]})


async def restore(client: Client, name: str) -> None:
    """Ends a node's maintenance. Raises ApiError."""
    await _patch(client, name, {"unschedulable": None, "taints": None})


async def _patch(client: Client, name: str, spec: dict[str, Any]) -> None:
    await client.resource(NODES).merge_patch({"spec": spec}, name=name)
