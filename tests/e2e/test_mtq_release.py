"""`headroom release` after the controller and its webhooks were killed in the middle of a window."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import by_value
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.lock import lock_name
from tests.e2e.admin import Admin, admin_of
from tests.e2e.conftest import frozen
from tests.e2e.mtq_namespace import BUDGETS, LOCKS, Budgeted, made
from tests.program import headroom, run

pytestmark = pytest.mark.cluster


@contextlib.asynccontextmanager
async def left_locked(cluster: Cluster) -> AsyncIterator[tuple[Admin, Budgeted, dict[str, str]]]:
    """A namespace whose quota is raised, its limits before that; what raised it was killed."""
    async with admin_of(cluster) as admin:
        namespace = await made(admin)
        await namespace.make_quota("quota", {"limits.cpu": "8", "pods": "9"})
        await namespace.machine()
        hard = await namespace.fill()
        await namespace.until_refused(await namespace.migrate())
        with headroom(cluster, "controller", "--webhook") as process, frozen(cluster, "kubevirt"):
            await namespace.budget()
            await until(lambda: _is_raised(namespace, hard), "the raise")
            process.kill()
            yield admin, namespace, hard


async def test_a_namespace_that_was_left_locked_is_open_again(cluster: Cluster) -> None:
    async with left_locked(cluster) as (_, namespace, hard):
        released = await asyncio.to_thread(run, "release", "--kubeconfig", str(cluster.kubeconfig))
        assert released.returncode == 0, released.stderr
        assert f"unlocked {namespace.name}" in released.stdout
        await namespace.at_rest(hard)


async def test_what_was_raised_is_restored_although_lock_and_vmmrq_went_meanwhile(cluster: Cluster) -> None:
    async with left_locked(cluster) as (admin, namespace, hard):
        await admin.client.resource(LOCKS).delete(name=lock_name(namespace.name))
        await namespace.delete(BUDGETS, "budget")
        with headroom(cluster, "controller"):
            await namespace.until_hard(hard, "quota")
        assert ANNOTATION_ORIGINALS not in await namespace.annotations("quota")


async def _is_raised(namespace: Budgeted, hard: dict[str, str]) -> bool:
    return await namespace.hard("quota") != by_value(hard)
