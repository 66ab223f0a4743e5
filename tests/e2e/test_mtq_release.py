"""`headroom release` after the controller and its webhooks were killed in the middle of a window."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from tests.e2e.admin import admin_of
from tests.e2e.conftest import frozen
from tests.e2e.mtq_namespace import made
from tests.program import headroom, run

pytestmark = pytest.mark.cluster


async def test_a_namespace_that_was_left_locked_is_open_again(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        namespace = await made(admin)
        await namespace.make_quota("quota", {"limits.cpu": "8", "pods": "9"})
        await namespace.machine()
        hard = await namespace.fill()
        await namespace.until_refused(await namespace.migrate())
        with headroom(cluster, "controller", "--webhook") as process, frozen(cluster, "kubevirt"):
            await namespace.budget()
            await namespace.until_raised(hard)
            process.kill()
            released = await asyncio.to_thread(run, "release", "--kubeconfig", str(cluster.kubeconfig))
            assert released.returncode == 0, released.stderr
            assert f"unlocked {namespace.name}" in released.stdout
            await namespace.at_rest(hard)
