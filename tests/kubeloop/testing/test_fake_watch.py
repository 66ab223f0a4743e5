"""The fake's watches: a reader that is slow misses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kubeloop.api.registry import NAMESPACES
from kubeloop.testing.fake.server import FakeCluster

pytestmark = pytest.mark.virtual_time


async def started_watch(cluster: FakeCluster) -> Any:
    """A watch that has brought its first object."""
    namespace = cluster.put(NAMESPACES, {"metadata": {"name": "there"}})
    since = namespace.metadata.resource_version
    events = cluster.events(NAMESPACES, lambda _: True, {"watch": "true", "resourceVersion": since})
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    cluster.put(NAMESPACES, {"metadata": {"name": "new"}})
    assert (await coming)["object"]["metadata"]["name"] == "new"
    return events


async def test_a_slow_reader_gets_every_write() -> None:
    cluster = FakeCluster()
    events = await started_watch(cluster)
    cluster.remove(NAMESPACES, "new")
    async with asyncio.timeout(1.0):
        assert (await anext(events))["type"] == "DELETED"


async def test_a_reader_whose_next_change_is_compacted_is_told_so() -> None:
    cluster = FakeCluster()
    events = await started_watch(cluster)
    cluster.remove(NAMESPACES, "new")
    cluster.compact()
    cluster.put(NAMESPACES, {"metadata": {"name": "later"}})
    async with asyncio.timeout(1.0):
        expired = await anext(events)
    assert (expired["type"], expired["object"]["code"]) == ("ERROR", 410)
