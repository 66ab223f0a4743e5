"""The handler: the whole way, stale caches, foreign writers, and an end of the process after every single write."""

from __future__ import annotations

from typing import Any

import pytest

from pkg.client.errors import Conflict, Unreachable
from pkg.util.managedtenantquota.lock import lock_body, recognise
from pkg.util.managedtenantquota.model import Policy
from tests.pkg.controller.managedtenantquota.server import KEY, Cluster, Ended, Process
from tests.pkg.util.managedtenantquota.paper import FULL, HOOK, RAISED, TWICE, budget, quota
from tests.pkg.util.resourcequota.world import by_value

OPENING = [
    ("create", "validatingwebhookconfigurations"),
    ("patch status", "virtualmachinemigrationresourcequotas"),
    ("patch", "resourcequotas"),
]
CLOSING = [
    ("patch", "resourcequotas"),
    ("patch status", "virtualmachinemigrationresourcequotas"),
    ("delete", "validatingwebhookconfigurations"),
]


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.refuse()
    return found


async def open_window(cluster: Cluster, process: Process) -> None:
    assert await process.settle() == 30.0
    assert by_value(cluster.hard) == by_value(RAISED)


async def close_window(cluster: Cluster, process: Process) -> None:
    cluster.enforce()
    cluster.admit()
    await process.settle()
    cluster.enforce()
    await process.settle()


async def test_a_migration_is_released_by_six_writes(cluster: Cluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    assert cluster.writes.made == OPENING
    assert set(cluster.status) == {
        "originalBlockingResourceQuotas",
        "migrationsToBlockingResourceQuotas",
        "additionalMigrationResources",
    }
    await close_window(cluster, process)
    assert cluster.writes.made == OPENING + CLOSING
    assert cluster.at_rest


async def test_unlocked_only_when_admission_goes_by_the_restored_limits(cluster: Cluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    cluster.enforce()
    cluster.admit()
    assert await process.look() == 1.0
    assert by_value(cluster.hard) == by_value(FULL)
    assert cluster.locks.objects
    cluster.enforce()
    await process.look()
    assert not cluster.locks.objects


async def test_people_are_told(cluster: Cluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    await close_window(cluster, process)
    told = [(key, reason) for key, _, reason, _ in process.events.recorded]
    assert told == [
        ("ns1/budget", "NamespaceLocked"),
        ("ns1/budget", "ResourceQuotaRaised"),
        ("ns1/migration-of-vm1", "ResourceQuotaRaised"),
        ("ns1/budget", "NamespaceUnlocked"),
    ]


async def test_the_lock_says_who_since_when_and_for_whom(cluster: Cluster) -> None:
    await Process(cluster).look()
    lock = recognise(cluster.locks.now("lock.ns1.com"))
    assert lock is not None
    assert lock.namespace == "ns1"
    assert "system:serviceaccount:headroom:headroom" in lock.holder
    assert lock.since == cluster.clock.now
    assert lock.reason == "vm1"
    assert lock.webhooks[0]["clientConfig"] == {"url": "https://127.0.0.1:9443/lock", "caBundle": "Q0E="}


async def test_a_namespace_without_budget_or_lock_costs_no_request(cluster: Cluster) -> None:
    cluster.budgets.gone("ns1/budget")
    assert await Process(cluster).look() is None
    assert cluster.writes.made == []
    assert cluster.quotas.calls == []


async def test_a_namespace_at_rest_costs_no_request() -> None:
    cluster = Cluster()
    assert await Process(cluster).look() is None
    assert cluster.budgets.calls == []


async def test_without_enough_nothing_is_touched_and_it_is_said_once(cluster: Cluster) -> None:
    cluster.budgets.given(budget({"limits.cpu": "1"}))
    process = Process(cluster)
    for _ in range(3):
        assert await process.settle() == 30.0
    assert cluster.writes.made == []
    assert [(key, reason) for key, _, reason, _ in process.events.recorded] == [
        ("ns1/migration-of-vm1", "NotEnoughResourceToRelease"),
        ("ns1/budget", "NotEnoughResourceToRelease"),
    ]
    cluster.budgets.given(budget())
    await open_window(cluster, process)


async def test_only_the_blocking_quotas_are_raised(cluster: Cluster) -> None:
    cluster.quotas.given(quota(TWICE, name="roomy"))
    cluster.quotas.given(quota({"pods": "0"}, {}, name="other", scopes=["BestEffort"]))
    await open_window(cluster, Process(cluster))
    assert cluster.quotas.now("ns1/roomy").hard == TWICE
    assert cluster.quotas.now("ns1/other").hard == {"pods": "0"}
    assert cluster.writes.made == OPENING


async def test_more_than_one_budget_is_an_error(cluster: Cluster) -> None:
    cluster.budgets.given(budget(name="other"))
    process = Process(cluster)
    assert await process.settle() == 30.0
    assert cluster.writes.made == []
    assert set(process.events.reasons) == {"MultipleMigrationResourceQuotas"}


async def test_where_no_webhook_is_registered_nothing_is_raised(cluster: Cluster) -> None:
    cluster.registrations.gone("headroom.harvesterhci.io")
    process = Process(cluster)
    assert await process.settle() == 30.0
    assert cluster.writes.made == []
    assert process.events.reasons == ["LockUnavailable"]


async def test_a_configuration_of_that_name_that_is_no_lock_is_not_touched(cluster: Cluster) -> None:
    cluster.locks.lagging = True  # the cache holds only what carries the label
    cluster.locks.given({"metadata": {"name": "lock.ns1.com", "uid": "theirs"}, "webhooks": []})
    process = Process(cluster)
    assert await process.settle() == 30.0
    assert cluster.writes.made == []
    assert process.events.reasons == ["LockUnavailable"]


async def test_the_locks_limit_ends_it_and_is_said(cluster: Cluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    cluster.enforce()
    cluster.clock.now += 121
    await process.settle()
    cluster.enforce()
    await process.settle()
    assert cluster.at_rest
    assert [reason for reason in process.events.reasons if reason == "LockLimitReached"] == [
        "LockLimitReached"
    ] * 2
    await process.settle()
    assert cluster.at_rest, "locked again at once"


async def test_a_lock_in_a_namespace_that_is_gone_is_taken_away(cluster: Cluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    cluster.namespaces.gone("ns1")
    cluster.budgets.gone("ns1/budget")
    cluster.quotas.gone(KEY)
    assert await process.look() is None
    assert not cluster.locks.objects


async def test_what_another_installation_left_is_put_in_order() -> None:
    """KubeVirt's own controller was stopped in the middle: its lock, its status, its raised quota."""
    cluster = Cluster()
    hook = {**HOOK, "clientConfig": {"service": {"name": "mtq-lock", "namespace": "mtq"}}}
    hook.pop("matchConditions")
    body = lock_body("ns1", hook, now=0.0, holder="", reason="")
    body["metadata"] |= {"annotations": {}, "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "theirs"}
    cluster.locks.given(body)
    cluster.budgets.given(budget(saved={"quota": FULL}))
    cluster.quotas.given(quota(RAISED))
    process = Process(cluster)
    await process.settle()
    cluster.enforce()
    await process.settle()
    assert cluster.at_rest


class TestStaleCaches:
    """The caches suggest, the API server decides."""

    async def test_caches_that_stand_still_cost_no_write_twice(self, cluster: Cluster) -> None:
        process = Process(cluster)
        cluster.lag()
        for _ in range(6):
            await process.look()
            cluster.clock.now += 0.2
        assert cluster.writes.made == OPENING
        cluster.enforce()
        cluster.admit()
        for _ in range(3):
            await process.look()
        # By its caches there is nothing to close: nothing was ever opened.
        assert cluster.writes.made == OPENING
        cluster.catch_up()
        cluster.enforce()
        await process.settle()
        cluster.enforce()
        await process.settle()
        assert cluster.at_rest

    async def test_a_raised_quota_is_never_saved_as_the_original(self, cluster: Cluster) -> None:
        process = Process(cluster)
        await process.look()
        cluster.lag()  # shows the lock, but not what follows
        cluster.clock.now += 0.2
        await process.look()
        assert by_value(cluster.hard) == by_value(RAISED)
        for _ in range(3):
            await process.look()
        (saved,) = cluster.status["originalBlockingResourceQuotas"]
        assert saved == {"name": "quota", "spec": {"hard": FULL}}

    async def test_a_status_that_is_not_seen_keeps_the_namespace_locked(self, cluster: Cluster) -> None:
        process = Process(cluster)
        await process.look()
        cluster.lag()
        cluster.clock.now += 0.2
        await process.look()
        cluster.enforce()
        cluster.migrations.gone("ns1/migration-of-vm1")
        await process.look()  # cached: locked, nothing saved, nothing wanted → unlock. Live: raised.
        assert by_value(cluster.hard) == by_value(FULL)
        assert cluster.locks.objects, "unlocked while admission goes by the raised limits"
        cluster.enforce()
        await process.settle()
        assert cluster.at_rest

    async def test_a_quota_that_is_not_seen_raised_is_restored_before_the_status_is_cleared(
        self, cluster: Cluster
    ) -> None:
        process = Process(cluster)
        await process.look()
        cluster.quotas.lagging = True
        cluster.clock.now += 0.2
        await process.look()
        cluster.migrations.gone("ns1/migration-of-vm1")
        await process.look()
        assert by_value(cluster.hard) == by_value(FULL)
        cluster.enforce()
        await process.settle()
        assert cluster.at_rest


class TestForeignWriters:
    async def test_a_quota_that_changes_between_look_and_raise_is_looked_at_again(
        self, cluster: Cluster
    ) -> None:
        process = Process(cluster)
        await process.look()
        cluster.clock.now += 0.2
        bump = {"metadata": {"labels": {"of": "somebody"}}}
        cluster.quotas.before.append(lambda: cluster.quotas.edited(KEY, bump))
        with pytest.raises(Conflict):
            await process.look()
        await open_window(cluster, process)

    async def test_a_status_that_changes_under_our_hands_is_not_overwritten(self, cluster: Cluster) -> None:
        process = Process(cluster)
        await process.look()
        cluster.clock.now += 0.2
        cluster.budgets.before.append(
            lambda: cluster.budgets.edited("ns1/budget", {"metadata": {"labels": {"a": "b"}}})
        )
        with pytest.raises(Conflict):
            await process.look()
        assert cluster.hard == FULL
        await open_window(cluster, process)

    async def test_a_lock_that_somebody_deletes_closes_the_window(self, cluster: Cluster) -> None:
        process = Process(cluster)
        await open_window(cluster, process)
        cluster.locks.gone("lock.ns1.com")
        cluster.enforce()
        await process.look()
        assert by_value(cluster.hard) == by_value(FULL)

    async def test_a_quota_that_is_deleted_meanwhile_hinders_nothing(self, cluster: Cluster) -> None:
        process = Process(cluster)
        await open_window(cluster, process)
        cluster.quotas.gone(KEY)
        await process.settle()
        assert not cluster.locks.objects
        assert not cluster.status

    async def test_two_processes_do_not_get_into_each_others_way(self, cluster: Cluster) -> None:
        one, other = Process(cluster), Process(cluster)
        await open_window(cluster, one)
        await other.settle()
        assert cluster.writes.made == OPENING
        await close_window(cluster, other)
        await one.settle()
        assert cluster.at_rest


async def test_a_lock_whose_answer_was_lost_is_the_lock(cluster: Cluster) -> None:
    process = Process(cluster)
    cluster.locks.lagging = True
    cluster.locks.errors["create"] = [Unreachable("broke off")]
    with pytest.raises(Unreachable):
        await process.look()
    await process.look()
    cluster.catch_up()
    await open_window(cluster, process)


WRITES = 6
"""Of the whole way with one blocking quota; `test_the_writes_are_enumerated` counts them."""


async def run(cluster: Cluster, process: Process, upto: int | None) -> None:
    """Go the whole way, and end after `upto` writes."""
    cluster.writes.left = upto
    await open_window(cluster, process)
    await close_window(cluster, process)


async def test_the_writes_are_enumerated(cluster: Cluster) -> None:
    await run(cluster, Process(cluster), None)
    assert len(cluster.writes.made) == WRITES


@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("fate", ["the target came", "the migration is gone", "it waits still"])
@pytest.mark.parametrize("downtime", [0.0, 40.0, 500.0])
async def test_ended_after_any_write_and_started_again(number: int, fate: str, downtime: float) -> None:
    cluster = Cluster()
    cluster.refuse()
    with pytest.raises(Ended):
        await run(cluster, Process(cluster), number)
    cluster.writes.left = None
    cluster.clock.now += downtime
    cluster.enforce()
    admitted = len(cluster.pods.objects) > 1
    if fate == "the target came" and not admitted:
        cluster.admit()
    if fate == "the migration is gone":
        cluster.migrations.gone("ns1/migration-of-vm1")
    process = Process(cluster)
    for _ in range(3):
        await process.settle()
        cluster.enforce()
    # Raised for longer than a lock may last, and no target came: then it is left alone for a while.
    rests = number == len(OPENING) and downtime > Policy().lock_limit
    if fate == "it waits still" and not admitted and not rests:
        assert by_value(cluster.hard) == by_value(RAISED)
        cluster.admit()
        for _ in range(3):
            await process.settle()
            cluster.enforce()
    assert cluster.at_rest


async def test_a_clock_that_stands_still_is_no_reason_to_raise_early(cluster: Cluster) -> None:
    process = Process(cluster, Policy(settle=5.0))
    assert await process.look() == pytest.approx(5.0)
    assert cluster.hard == FULL
    cluster.clock.now += 5.0
    await process.look()
    assert by_value(cluster.hard) == by_value(RAISED)


async def test_several_migrations_share_one_lock(cluster: Cluster) -> None:
    pods: Any = quota({"pods": "2"}, {"pods": "2"})
    cluster.quotas.given(pods)
    cluster.budgets.given(budget({"pods": "2"}))
    cluster.refuse("vm2")
    process = Process(cluster)
    await process.settle()
    assert cluster.writes.made == OPENING
    for vm in ("vm1", "vm2"):
        cluster.enforce()
        cluster.admit(vm)
        await process.settle()
    cluster.enforce()
    await process.settle()
    assert cluster.writes.made == OPENING + CLOSING
