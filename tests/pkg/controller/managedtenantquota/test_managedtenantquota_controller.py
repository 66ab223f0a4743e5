"""The handler: the whole way, what people are told, what keeps a namespace unlocked; caches that lag behind, and
others who write meanwhile."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.client.errors import Unreachable
from kubeloop.testing.virtual_time import now
from pkg.config import time_slices
from pkg.config.management import Management
from pkg.util.managedtenantquota.lock import lock_body, recognise
from pkg.util.managedtenantquota.model import WindowPolicy
from tests.decisions import by_value, sentences
from tests.kinds import Events
from tests.pkg.controller.managedtenantquota.server import (
    CLOSING,
    KEY,
    OPENING,
    START,
    Process,
    WindowCluster,
    close_window,
    open_window,
    wire,
)
from tests.pkg.util.managedtenantquota.objects import FULL, GRANTED, HOOK, RAISED, budget, quota

pytestmark = pytest.mark.virtual_time


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headroom_mtq_{name}", labels) or 0.0


def metrics() -> list[float]:
    released_amount = metric("quota_released_total", resource="limits.cpu")
    return [
        metric("lock_seconds_sum"),
        metric("lock_seconds_count"),
        released_amount,
        metric("writes_total", step="MakeLock"),
    ]


async def test_a_migration_is_released_by_six_writes(cluster: WindowCluster) -> None:
    process, old_values = Process(cluster), metrics()
    await process.look()
    lock = recognise(cluster.locks.now("lock.ns1.com"))
    assert lock is not None
    assert lock.owner == f"headroom (system:serviceaccount:headroom:headroom) on {socket.gethostname()}"
    assert (lock.namespace, lock.since, lock.longest, lock.reason) == ("ns1", START + now(), 130.0, "vm1")
    (hook,) = lock.configuration.webhooks or [{}]
    assert hook["clientConfig"] == {"url": "https://127.0.0.1:9443/lock", "caBundle": "Q0E="}
    await open_window(cluster, process)
    assert cluster.server.made == OPENING
    await asyncio.sleep(9.0)
    await close_window(cluster, process)
    assert cluster.server.made == OPENING + CLOSING
    assert cluster.server.read == 5, "three prove the webhook, and of three that look one finds nothing"
    assert cluster.at_rest
    assert [value - was for was, value in zip(old_values, metrics(), strict=True)] == pytest.approx(
        [now(), 1, 2.015, 1]
    )
    events = [(key, kind, reason) for key, kind, reason, _ in process.events.recorded]
    assert events == [
        ("ns1/budget", "Normal", "NamespaceLocked"),
        ("ns1/migration-of-vm1", "Normal", "ResourceQuotaRaised"),
        ("ns1/budget", "Normal", "NamespaceUnlocked"),
    ]


@pytest.mark.parametrize("gone", ["budgets/ns1/budget", "migrations/ns1/migration-of-vm1"])
async def test_without_budget_or_migration_there_is_no_request(cluster: WindowCluster, gone: str) -> None:
    kind, _, key = gone.partition("/")
    getattr(cluster, kind).gone(key)
    assert await Process(cluster).look() is None
    assert [*cluster.server.made, *cluster.quotas.calls, *cluster.budgets.calls] == []


WAITED_FOR = {
    "the budget": ("budgets", "ns1/budget"),
    "a quota": ("quotas", KEY),
    "a migration": ("migrations", "ns1/migration-of-vm1"),
    "a VMI": ("instances", "ns1/vm1"),
}


@sentences(WAITED_FOR)
async def test_what_comes_is_seen_by_the_controller_that_runs(case: tuple[str, str], cluster: WindowCluster) -> None:
    kind = getattr(cluster, case[0])
    present = kind.objects[case[1]]
    kind.gone(case[1])
    management = Management(cluster.server.client())
    wire(management, Events())
    await management.start()
    await asyncio.sleep(1.0)
    assert not cluster.locked
    kind.given(present)
    await asyncio.sleep(1.0)
    assert by_value(cluster.hard) == by_value(GRANTED)
    cluster.enforce()
    cluster.admit()
    await asyncio.sleep(1.0)
    cluster.enforce()
    await asyncio.sleep(1.0)
    assert cluster.at_rest
    await management.stop()


async def test_without_enough_nothing_is_touched_and_it_is_said_once(cluster: WindowCluster) -> None:
    cluster.budgets.given(budget({"limits.cpu": "1"}))
    process = Process(cluster)
    for _ in range(3):
        assert await process.settle() == 30.0
    assert cluster.server.made == []
    assert [(key, reason) for key, _, reason, _ in process.events.recorded] == [
        ("ns1/migration-of-vm1", "NotEnoughResourceToRelease"),
        ("ns1/budget", "NotEnoughResourceToRelease"),
    ]
    cluster.budgets.given(budget())
    await open_window(cluster, process)


def _not_reached(cluster: WindowCluster) -> None:
    cluster.server.reactors.clear()


CANNOT = {
    "no webhook is registered": (lambda it: it.locks.gone("headroom.harvesterhci.io"), "are not registered ("),
    "there is no probe": (lambda it: it.addresses.gone("headroom-probe.harvesterhci.io"), "are not registered ("),
    "the probe is not answered": (_not_reached, "the API server does not reach headroom's webhook: "),
    "another's configuration has the name": (
        lambda it: it.locks.given({"metadata": {"name": "lock.ns1.com", "uid": "theirs"}, "webhooks": []}),
        "there is a ValidatingWebhookConfiguration lock.ns1.com that is not a lock",
    ),
}


@sentences(CANNOT, "spoil, why")
async def test_where_nothing_can_be_locked_nothing_is_raised(
    spoil: Callable[[WindowCluster], object], why: str, cluster: WindowCluster
) -> None:
    spoil(cluster)
    process = Process(cluster)
    assert await process.settle() == 2.0
    assert cluster.server.made == []
    assert [reason for _, _, reason, message in process.events.recorded if why in message] == ["LockUnavailable"]


async def test_the_locks_limit_ends_it_and_is_said(cluster: WindowCluster) -> None:
    process, old_values = Process(cluster), metric("lock_limit_reached_total")
    await open_window(cluster, process)
    cluster.enforce()
    await asyncio.sleep(121)
    await process.rest()
    assert cluster.at_rest
    assert [reason for reason in process.events.reasons if reason == "LockLimitReached"] == ["LockLimitReached"] * 2
    await process.settle()
    assert cluster.at_rest, "locked again at once"
    assert metric("lock_limit_reached_total") == old_values + 1


async def test_a_lock_in_a_namespace_that_is_gone_is_taken_away(cluster: WindowCluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    cluster.namespaces.gone("ns1")
    cluster.budgets.gone("ns1/budget")
    cluster.quotas.gone(KEY)
    assert await process.look() is None
    assert not cluster.locked


async def test_what_another_installation_left_is_put_in_order() -> None:
    """KubeVirt's own controller was stopped in the middle: its lock, its status, its raised quota."""
    cluster = WindowCluster()
    hook = {**HOOK, "clientConfig": {"service": {"name": "mtq-lock", "namespace": "mtq"}}}
    hook.pop("matchConditions")
    body = lock_body("ns1", hook, now=0.0, owner="", reason="")
    body["metadata"] |= {"annotations": {}, "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "theirs"}
    cluster.locks.given(body)
    cluster.budgets.given(budget(saved={"quota": FULL}))
    cluster.quotas.given(quota(RAISED))
    process = Process(cluster)
    await process.rest()
    assert cluster.at_rest


async def test_a_lock_whose_answer_was_lost_is_the_lock(cluster: WindowCluster) -> None:
    process = Process(cluster)
    cluster.locks.lagging = True
    cluster.server.left, cluster.server.then = 1, Unreachable("broke off")
    assert await process.look() == 0.05
    await process.look()
    cluster.catch_up()
    await open_window(cluster, process)


async def test_nothing_is_raised_before_every_api_server_has_the_lock(cluster: WindowCluster) -> None:
    process = Process(cluster)
    assert await process.look() == pytest.approx(WindowPolicy().settle)
    assert cluster.hard == FULL
    await asyncio.sleep(WindowPolicy().settle + 0.01)
    await process.look()
    assert by_value(cluster.hard) == by_value(GRANTED)


async def test_the_webhook_is_proven_again_before_the_next_lock(cluster: WindowCluster) -> None:
    """vm2 comes too late for the window of vm1, and nobody answers the probe any more."""
    cluster.budgets.given(budget({"limits.cpu": "9", "limits.memory": "20Gi"}))
    process = Process(cluster)
    await open_window(cluster, process)
    await asyncio.sleep(WindowPolicy().open_to_others + 1.0)
    cluster.refuse("vm2")
    _not_reached(cluster)
    await close_window(cluster, process)
    assert cluster.server.made == OPENING + CLOSING
    assert "LockUnavailable" in process.events.reasons


async def test_several_migrations_share_one_lock(cluster: WindowCluster) -> None:
    pods: Any = quota({"pods": "2"}, {"pods": "2"})
    cluster.quotas.given(pods)
    cluster.budgets.given(budget({"pods": "2"}))
    cluster.refuse("vm2")
    process = Process(cluster)
    await process.settle()
    assert cluster.server.made == OPENING
    for vm in ("vm1", "vm2"):
        cluster.enforce()
        cluster.admit(vm)
        await process.rest()
    assert cluster.server.made == OPENING + CLOSING


async def test_a_decision_about_many_migrations_lets_others_run(
    cluster: WindowCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step, here: a slice takes no time. A quota with scopes takes as many again."""
    monkeypatch.setattr(time_slices, "SLICE", 0.0)
    cluster.quotas.given(quota(name="scoped", scopes=["NotBestEffort"]))
    for number in range(2, 20):
        cluster.refuse(f"vm{number}")
    other_turns = 0

    async def count() -> None:
        nonlocal other_turns
        while True:
            other_turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await Process(cluster).look()
    counting.cancel()
    assert other_turns > 4 * 19


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
        for _ in range(2):  # cached: locked, nothing saved, nothing wanted → unlock. Live: raised, in a later version.
            await process.look()
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
