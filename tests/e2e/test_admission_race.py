"""The seed's race: Rancher's agent restarts, again and again, while VMs migrate (harvester-rancher-quota-race)."""

import asyncio
import time
from collections.abc import Callable, Mapping

import pytest

from kubeloop.api.registry import EVENTS, NAMESPACES
from kubeloop.testing.cluster.cluster import Cluster
from lab.cluster import RancherAgent
from lab.namespace import PODS, QUOTAS, VMIMS, Namespace
from lab.questions import late_refusals, reverts
from lab.record import Amounts, Record
from lab.watching import Watching
from tests.e2e.admin import Admin
from tests.program import headroom, of_a_soak

pytestmark = pytest.mark.cluster

RESTARTS = of_a_soak(500)
MIGRATIONS = of_a_soak(30)
VERSIONS = 10
"""Of each quota, at least."""
SECONDS = 240.0
HARD = {"limits.cpu": "4030m", "limits.memory": "9400Mi"}
"""Two VMs of 2015m fill it: every target needs room."""
BASE = Amounts.within(HARD)


async def restart_for_ever(agent: RancherAgent) -> None:
    while True:
        agent.restart()
        await asyncio.sleep(0.01)


async def migrate_for_ever(namespace: Namespace, vm: str, migrations: list[str]) -> None:
    while True:
        migration = await namespace.migrate(vm, running=0.2, linger=0.2)
        await namespace.succeed(migration, seconds=30)
        migrations.append(migration)


async def race(
    rancher: RancherAgent, admin: Admin, enough: Callable[[int, list[str], Mapping[str, Record]], bool]
) -> tuple[dict[str, Record], str]:
    """Two namespaces of two VMs each that migrate without a pause, until it is enough."""
    namespaces = [await admin.home(HARD, rancher), await admin.home(HARD, rancher)]
    vms = [(namespace, vm) for namespace in namespaces for vm in ("vm1", "vm2")]
    await asyncio.gather(*(namespace.machine(vm) for namespace, vm in vms))
    migrations: list[str] = []
    restarts_at_start = rancher.restarts()
    records = {site.name: Record() for site in namespaces}
    async with Watching(admin.client, records, NAMESPACES, QUOTAS, VMIMS, EVENTS, PODS):
        tasks = [asyncio.create_task(restart_for_ever(rancher))]
        tasks += [asyncio.create_task(migrate_for_ever(*site, migrations)) for site in vms]
        deadline = time.monotonic() + SECONDS
        try:
            while (
                not enough(rancher.restarts() - restarts_at_start, migrations, records) and time.monotonic() < deadline
            ):
                finished, _ = await asyncio.wait(tasks, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        versions, low = (
            [len(site.quotas) for site in records.values()],
            sum(len(reverts(r, BASE)) for r in records.values()),
        )
        restarts = rancher.restarts() - restarts_at_start
        return records, f"{restarts} restarts, {len(migrations)} migrations, {versions} versions, {low} too low"


async def test_with_the_guard_no_version_of_a_quota_is_ever_too_low(
    cluster: Cluster, rancher: RancherAgent, admin: Admin
) -> None:
    def enough(restarts: int, migrations: list[str], records: Mapping[str, Record]) -> bool:
        changed = all(len(record.quotas) > VERSIONS for record in records.values())
        return changed and restarts >= RESTARTS and len(migrations) >= MIGRATIONS

    with headroom(cluster, "controller", "--webhook"):
        records, summary = await race(rancher, admin, enough)
    print(summary)
    assert int(summary.split()[0]) >= RESTARTS, summary
    assert int(summary.split()[2]) >= MIGRATIONS, summary
    for record in records.values():
        assert len(record.quotas) > VERSIONS, summary
        assert not reverts(record, BASE), (summary, reverts(record, BASE)[:3])
        kept_out = [refusal.detail for refusal in late_refusals(record, BASE) if refusal.full]
        assert not kept_out, (summary, kept_out[:3])


async def test_without_the_guard_the_window_shows(cluster: Cluster, admin: Admin) -> None:
    rancher = RancherAgent(cluster.directory)

    def enough(restarts: int, migrations: list[str], records: Mapping[str, Record]) -> bool:
        return any(reverts(record, BASE) for record in records.values()) and restarts >= 20

    with headroom(cluster, "controller", "--webhook", "--quota-guard=off"):
        records, summary = await race(rancher, admin, enough)
    print(summary)
    assert any(reverts(record, BASE) for record in records.values()), summary
