"""Beside a Rancher that lets nobody else write its quotas, where headroom may write them under Rancher's own name
(deploy/rancher-impersonation.yaml): everything as by its own writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies
from lab.cluster import RancherAgent
from lab.namespace import LASTING, by_value
from lab.rancher.releases import DEFAULT, NEWEST
from tests.e2e.accounts import NAMESPACE, apply, documents, remove
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.api import CORE, Api
from tests.e2e.headroom.amounts import watched
from tests.e2e.test_rancher import RAISED, ROOM, at_rest, requested, running, until_open
from tests.program import ROOT, Program, program, run

pytestmark = pytest.mark.cluster

RIGHTS = ROOT / "deploy" / "rancher-impersonation.yaml"


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[RancherAgent]:
    """Rancher 2.15.2, for the module."""
    agent = RancherAgent(cluster.directory)
    agent.install(NEWEST)
    yield agent
    agent.install(DEFAULT)


@pytest.fixture(scope="module")
def headroom(cluster: Cluster, agent: RancherAgent, api: Api, own_kubeconfig: Path) -> Iterator[Program]:
    """The controller with its webhooks under its own account, which may impersonate; no flag names the way."""
    if api.find(f"{CORE}/namespaces/cattle-system") is None:
        api.create(f"{CORE}/namespaces", {"metadata": {"name": "cattle-system"}})
    apply(api, documents(RIGHTS))
    flags = ("--webhook", "--kubeconfig", str(own_kubeconfig), "--namespace", NAMESPACE)
    controller = program(cluster, "controller", *flags).start()
    yield controller
    assert "Traceback" not in controller.text()
    controller.stop()
    remove(api, documents(RIGHTS))


@pytest.fixture
async def admin(cluster: Cluster, headroom: Program) -> AsyncIterator[Admin]:
    async with admin_of(cluster) as admin:
        yield admin


async def test_a_migration_is_raised_and_everything_comes_back(cluster: Cluster, admin: Admin) -> None:
    namespace = await running(await admin.project(ROOM, default=HARD))
    request = await requested(namespace)
    async with watched(namespace) as (versions,):
        await namespace.succeed(await namespace.migrate(linger=1.0))
        await at_rest(namespace, request)
        assert await versions.hards() == [by_value(HARD), by_value(RAISED), by_value(HARD)]
    status = await asyncio.to_thread(run, "status", "--kubeconfig", str(cluster.kubeconfig))
    assert "quotas of Rancher are raised by impersonate" in status.stdout


async def test_an_agent_that_restarts_again_and_again_lowers_nothing(admin: Admin, agent: RancherAgent) -> None:
    namespace = await running(await admin.project(ROOM, default=HARD))
    request = await requested(namespace)
    async with watched(namespace) as (versions,):
        migration = await namespace.migrate(running=LASTING, linger=1.0)
        await namespace.until_phase(migration, "Running")
        for _ in range(5):
            agent.restart()
            await asyncio.sleep(0.2)
        await namespace.hurry(migration)
        await namespace.succeed(migration)
        await at_rest(namespace, request)
        assert await versions.hards() == [by_value(HARD), by_value(RAISED), by_value(HARD)]


async def test_what_rancher_has_not_granted_is_no_base(admin: Admin) -> None:
    namespace = await running(await admin.project({"limits.cpu": "9", "limits.memory": "20Gi"}, default=HARD))
    greedy = bodies.granting({"limits.cpu": "60", "limits.memory": "5000Mi"})
    await namespace.annotate(greedy)
    async with watched(namespace) as (versions,):
        await namespace.succeed(await namespace.migrate(linger=1.0))
        await at_rest(namespace, greedy)
        most = max(hard["limits.cpu"] for hard in await versions.hards())
        assert most <= by_value(RAISED)["limits.cpu"], most


@pytest.mark.parametrize("moment", ["Pending", "Running", "Succeeded"])
async def test_a_kill_at_any_moment_is_repaired(admin: Admin, headroom: Program, moment: str) -> None:
    namespace = await running(await admin.project(ROOM, default=HARD))
    request = await requested(namespace)
    migration = await namespace.migrate(phase=0.5, running=0.5, linger=2.0)
    await namespace.until_phase(migration, moment, "Succeeded")
    headroom.kill()
    await headroom.started()
    await namespace.succeed(migration)
    await at_rest(namespace, request)


async def test_a_project_without_room_is_not_asked(admin: Admin) -> None:
    namespace = await running(await admin.project(HARD, default=HARD))
    request = await requested(namespace)
    await namespace.succeed(await namespace.migrate(linger=1.0))
    await at_rest(namespace, request)


async def test_rancher_upgraded_in_the_middle_of_a_migration(admin: Admin, agent: RancherAgent) -> None:
    agent.install(DEFAULT)
    try:
        namespace = await running(await admin.project(ROOM, default=HARD))
        request = await requested(namespace)
        await until_open(namespace)
        migration = await namespace.migrate(running=LASTING, linger=1.0)
        await namespace.until_phase(migration, "Running")
    finally:
        agent.install(NEWEST)
    await namespace.until_hard(RAISED)
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    await at_rest(namespace, request)
