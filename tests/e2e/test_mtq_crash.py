"""The process ends after each single write of the sequence, enumerated, and is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import Namespace, made
from tests.e2e.mtq_process import MortalTransport, controllers
from tests.program import Program, headroom

pytestmark = pytest.mark.cluster

WAY = ["mirror", "lock", "save", "raise", "raise", "restore", "restore", "clear", "unlock"]
"""The writes, with two quotas that block; `test_these_are_all_the_writes` counts them."""


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[Program]:
    """What serves the locks lives on: in a process of its own."""
    with headroom(cluster, "webhook") as process:
        yield process


@pytest.fixture
async def admin(cluster: Cluster, webhook: Program) -> AsyncIterator[Admin]:
    async with admin_of(cluster) as found:
        yield found


async def full_namespace(admin: Admin) -> tuple[Namespace, dict[str, dict[str, str]]]:
    """With two quotas that a VM fills, and a budget."""
    namespace = await made(admin)
    await namespace.quota({"limits.cpu": "8", "limits.memory": "8Gi"}, "compute")
    await namespace.quota({"pods": "20"}, "pods")
    await namespace.machine()
    hard = {name: await namespace.fill(name) for name in ("compute", "pods")}
    await namespace.budget()
    return namespace, hard


def kinds(writes: list[str]) -> list[str]:
    """The writes by their names in WAY."""
    names = []
    for number, write in enumerate(writes):
        before = number <= len(WAY) // 2
        if "validatingwebhook" in write:
            names.append("lock" if write.startswith("POST") else "unlock")
        elif "virtualmachinemigration" in write:
            names.append("mirror" if number == 0 else "save" if before else "clear")
        else:
            names.append("raise" if before else "restore")
    return names


async def test_these_are_all_the_writes(cluster: Cluster, admin: Admin) -> None:
    namespace, hard = await full_namespace(admin)
    async with controllers(cluster, namespace.name) as transport:
        await until(lambda: _wrote(transport), "the budget's first status")
        await namespace.succeeded(await namespace.migrate())
        await namespace.at_rest(hard)
    assert kinds(transport.writes) == WAY


@pytest.mark.parametrize("number", range(1, len(WAY) + 1), ids=[f"{n}-{w}" for n, w in enumerate(WAY, 1)])
@pytest.mark.parametrize("deleted", [False, True], ids=["the migration goes on", "the migration is deleted"])
async def test_ended_after_this_write_and_started_again(
    cluster: Cluster, admin: Admin, number: int, deleted: bool
) -> None:
    namespace, hard = await full_namespace(admin)
    migration = ""
    async with controllers(cluster, namespace.name, number) as transport:
        await until(lambda: _wrote(transport), "the budget's first status")
        migration = await namespace.migrate()
        async with asyncio.timeout(20):
            await transport.ended.wait()
    assert kinds(transport.writes) == WAY[:number]
    if deleted:
        await admin.abort(namespace.name, migration)
        await until(lambda: _is_gone(namespace, migration), "the migration's end")
    async with controllers(cluster, namespace.name):
        await namespace.at_rest(hard)
        if not deleted:
            await namespace.succeeded(migration)
            await namespace.at_rest(hard)


async def _wrote(transport: MortalTransport) -> bool:
    return bool(transport.writes)


async def _is_gone(namespace: Namespace, migration: str) -> bool:
    resource = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    found = await namespace.admin.client.resource(resource).list(namespace.name)
    return all(each.name != migration for each in found)
