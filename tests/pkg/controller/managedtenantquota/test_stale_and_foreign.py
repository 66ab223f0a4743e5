"""Caches that lag behind, and others who write meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from tests.decisions import by_value
from tests.pkg.controller.managedtenantquota.server import (
    KEY,
    OPENING,
    Process,
    WindowCluster,
    close_window,
    open_window,
)
from tests.pkg.util.managedtenantquota.objects import FULL, GRANTED, quota

pytestmark = pytest.mark.virtual_time


class TestStaleCaches:
    """The caches suggest, the API server decides."""

    async def test_caches_that_stand_still_cost_no_write_twice(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        cluster.lag()
        for _ in range(6):
            await process.look()
            await asyncio.sleep(0.2)
        assert cluster.server.made == OPENING
        cluster.enforce()
        cluster.admit()
        for _ in range(3):
            await process.look()
        # By its caches there is nothing to close: nothing was ever opened.
        assert cluster.server.made == OPENING
        cluster.catch_up()
        await process.rest()
        assert cluster.at_rest

    async def test_a_new_lock_that_is_not_cached_yet_costs_no_read(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        cluster.locks.lagging = True
        await process.look()
        reads = cluster.server.read
        await asyncio.sleep(0.2)
        await process.look()
        assert by_value(cluster.hard) == by_value(GRANTED)
        assert cluster.server.read == reads
        cluster.locks.gone("lock.ns1.com")
        await asyncio.sleep(1.0)
        await process.look()
        assert by_value(cluster.hard) == by_value(FULL), "it was deleted before the cache has shown it"

    async def test_a_raised_quota_is_never_saved_as_the_original(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        await process.look()
        cluster.lag()  # shows the lock, but not what follows
        await asyncio.sleep(0.2)
        await process.look()
        assert by_value(cluster.hard) == by_value(GRANTED)
        for _ in range(3):
            await process.look()
        (saved,) = cluster.status["originalBlockingResourceQuotas"]
        assert saved == {"name": "quota", "spec": {"hard": FULL}}

    async def test_a_status_that_is_not_seen_keeps_the_namespace_locked(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        await process.look()
        cluster.lag()
        await asyncio.sleep(0.2)
        await process.look()
        cluster.enforce()
        cluster.migrations.gone("ns1/migration-of-vm1")
        await process.look()  # cached: locked, nothing saved, nothing wanted → unlock. Live: raised.
        assert by_value(cluster.hard) == by_value(FULL)
        assert cluster.locked, "unlocked while admission goes by the raised limits"
        await process.rest()
        await asyncio.sleep(1.0)  # after which the API server is asked, though no event comes
        await process.rest()
        assert cluster.at_rest

    async def test_a_quota_not_seen_raised_is_restored_before_the_clear(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        await process.look()
        cluster.quotas.lagging = True
        await asyncio.sleep(0.2)
        await process.look()
        cluster.migrations.gone("ns1/migration-of-vm1")
        await process.look()
        assert by_value(cluster.hard) == by_value(FULL)
        await process.rest()
        assert cluster.at_rest


class TestForeignWriters:
    async def test_a_quota_that_changes_before_the_raise_is_read_again(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        await process.look()
        await asyncio.sleep(0.2)
        bump = {"metadata": {"labels": {"example.com/touched": "1"}}}
        cluster.quotas.before.append(lambda: cluster.quotas.edited(KEY, bump))
        await open_window(cluster, process)
        assert cluster.quotas.now(KEY).labels["example.com/touched"] == "1"
        assert cluster.server.made == OPENING

    async def test_a_status_that_changes_meanwhile_is_not_overwritten(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        cluster.budgets.before.append(
            lambda: cluster.budgets.edited("ns1/budget", {"metadata": {"labels": {"a": "b"}}})
        )
        await open_window(cluster, process)
        assert cluster.budgets.now("ns1/budget").labels == {"a": "b"}
        assert cluster.server.made == OPENING

    async def test_a_lock_that_is_deleted_closes_the_window(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        await open_window(cluster, process)
        cluster.locks.gone("lock.ns1.com")
        cluster.enforce()
        await process.look()
        assert by_value(cluster.hard) == by_value(FULL)

    async def test_a_quota_that_is_deleted_meanwhile_hinders_nothing(self, cluster: WindowCluster) -> None:
        process = Process(cluster)
        cluster.quotas.given(quota(name="second"))
        await open_window(cluster, process)
        cluster.migrations.gone("ns1/migration-of-vm1")
        cluster.quotas.before.append(lambda: cluster.quotas.gone(KEY))
        await process.look()
        assert by_value(cluster.quotas.now("ns1/second").hard) == by_value(FULL)
        await process.settle()
        assert not cluster.locked
        assert not cluster.status.keys() - {"additionalMigrationResources"}

    async def test_two_processes_do_not_get_into_each_others_way(self, cluster: WindowCluster) -> None:
        first_process, second_process = Process(cluster), Process(cluster)
        await open_window(cluster, first_process)
        await second_process.settle()
        assert cluster.server.made == OPENING
        await close_window(cluster, second_process)
        await first_process.settle()
        assert cluster.at_rest
