"""Whatever stands in the way, a lock ends in time, and what is raised is restored as soon as that is possible: also
where the process ends after any write, and where an earlier release was in the middle of its work."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubeloop.client.errors import ApiError, Forbidden, NotServed, ServerError
from kubeloop.testing.virtual_time import now
from pkg.util.managedtenantquota.model import WindowPolicy
from tests.decisions import by_value, sentences
from tests.pkg.controller.managedtenantquota.server import (
    Process,
    ProcessEnded,
    WindowCluster,
    close_window,
    open_window,
)
from tests.pkg.util.managedtenantquota.objects import ENOUGH, FULL, GRANTED, budget, quota

pytestmark = pytest.mark.virtual_time

END = WindowPolicy().lock_limit + WindowPolicy().grace
REFUSED = Forbidden("another policy says no", status=403, reason="Forbidden")
BROKEN = ServerError("etcd is full", status=500)
PAGE = NotServed("the server answered 404: <html>no such backend</html>", status=404)


def _fails(kind: str, verb: str, error: ApiError) -> Callable[[WindowCluster], None]:
    def spoil(cluster: WindowCluster) -> None:
        getattr(cluster, kind).errors[verb] = [error] * 1000

    return spoil


def _garbage(cluster: WindowCluster) -> None:
    saved = [{"name": "quota", "spec": {"hard": {"limits.cpu": "banana"}}}]
    cluster.budgets.edited("ns1/budget", {"status": {"originalBlockingResourceQuotas": saved}})


def _budget_gone(cluster: WindowCluster) -> None:
    cluster.budgets.gone("ns1/budget")


IN_THE_WAY: dict[str, list[Callable[[WindowCluster], object]]] = {
    "the restore is refused": [_fails("quotas", "patch", REFUSED)],
    "the status cannot be written": [_fails("budgets", "patch", REFUSED)],
    "the API server fails to list budgets": [_fails("budgets", "list", BROKEN)],
    "a proxy answers 404 for the API server": [_fails("budgets", "list", PAGE)],
    "the API server fails to list quotas": [_fails("quotas", "list", BROKEN)],
    "the API server does not say where the webhooks are": [_fails("addresses", "get", BROKEN)],
    "the probe's object is refused": [_fails("probes", "create", REFUSED)],
    "the status is garbage": [_garbage],
    "the status is garbage and cannot be written": [_garbage, _fails("budgets", "patch", REFUSED)],
    "the VMMRQ is gone": [_budget_gone],
    "the CRD is gone": [lambda cluster: cluster.server.install(cluster.budgets.resource, installed=False)],
    "the VMMRQ is gone and the restore is refused": [_budget_gone, _fails("quotas", "patch", REFUSED)],
}


async def _pass(cluster: WindowCluster, process: Process, seconds: float) -> float:
    """Time goes by, and the namespace is looked at whenever it wants to be; how long it was locked."""
    end, locked = now() + seconds, 0.0
    while True:
        began = now()
        again = await process.look()
        cluster.enforce()
        assert again is None or again <= 30.0 or cluster.at_rest
        if again is None or now() + again > end:
            break
        await asyncio.sleep(max(again, 0.01))
        locked += now() - began if cluster.locked else 0.0
    await asyncio.sleep(end - now())
    return locked


@sentences(IN_THE_WAY)
async def test_the_lock_ends_and_the_quota_is_restored_afterwards(
    case: list[Callable[[WindowCluster], object]], cluster: WindowCluster
) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    cluster.admit()
    for spoil in case:
        spoil(cluster)
    await _pass(cluster, process, END + 0.1)
    await process.look()
    assert not cluster.locked
    for kind in (cluster.quotas, cluster.budgets):
        kind.errors.clear()
    process = Process(cluster)
    await _pass(cluster, process, 31.0)
    await process.look()
    assert by_value(cluster.hard) == by_value(FULL)
    assert not cluster.quotas.now("ns1/quota").annotations


@pytest.mark.parametrize("seconds", [5.0, 60.0, 120.0, 3600.0, -60.0])
async def test_a_clock_that_is_set_back_does_not_keep_a_lock(cluster: WindowCluster, seconds: float) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    await _pass(cluster, process, 40.0)
    cluster.set_back = seconds
    cluster.quotas.errors["patch"] = [REFUSED] * 1000
    await _pass(cluster, process, END - 40.0 + 0.1)
    await process.look()
    assert not cluster.locked
    cluster.quotas.errors.clear()
    await process.look()
    assert by_value(cluster.hard) == by_value(FULL)


@pytest.mark.parametrize("skew", [-7200.0, -200.0, 200.0, 7200.0])
async def test_a_wrong_clock_neither_keeps_a_lock_nor_ends_it(cluster: WindowCluster, skew: float) -> None:
    """A process that is restarted every ten seconds does not, either; the next one's clock is wrong the other way."""
    start = now()
    await open_window(cluster, Process(cluster, skew=skew))
    while now() < start + WindowPolicy().lock_limit - 12.0:
        skew = -skew
        await _pass(cluster, Process(cluster, skew=skew), 10.0)
        assert cluster.locked
    cluster.quotas.errors["patch"] = [REFUSED] * 1000
    while now() < start + END + 2.0:
        skew = -skew
        await _pass(cluster, Process(cluster, skew=skew), 10.0)
    await Process(cluster, skew=skew).look()
    assert not cluster.locked


async def test_an_overdue_lock_ends_before_anything_is_asked(cluster: WindowCluster) -> None:
    await open_window(cluster, Process(cluster))
    await asyncio.sleep(END)
    cluster.quotas.answering.clear()
    looking = asyncio.create_task(Process(cluster).look())
    await asyncio.sleep(0.1)
    assert not looking.done()
    assert not cluster.locked
    looking.cancel()


async def test_nothing_that_gives_no_answer_is_waited_for_past_the_end(cluster: WindowCluster) -> None:
    process, locked_at = Process(cluster), now()
    await open_window(cluster, process)
    cluster.admit()
    cluster.quotas.answering.clear()
    await asyncio.sleep(locked_at + END - 0.5 - now())
    assert await process.look() == 0.05
    assert now() == pytest.approx(locked_at + END)
    assert cluster.locked
    await asyncio.sleep(0.05)
    looking = asyncio.create_task(process.look())
    await asyncio.sleep(0.1)
    assert not looking.done()
    assert not cluster.locked
    looking.cancel()


async def test_a_raise_without_an_answer_does_not_keep_the_lock(cluster: WindowCluster) -> None:
    process = Process(cluster)
    await process.look()
    assert cluster.locked
    await asyncio.sleep(0.2)
    cluster.quotas.before.append(lambda: asyncio.sleep(60.0))
    began = now()
    assert await process.look() == 0.05
    assert now() == pytest.approx(began + 12.0)
    await process.look()
    assert not cluster.locked
    assert "no answer within 12 s" in process.events.recorded[-2][3]


async def test_a_restore_that_is_refused_is_said_and_tried_again(cluster: WindowCluster) -> None:
    process = Process(cluster)
    await open_window(cluster, process)
    cluster.admit()
    cluster.quotas.errors["patch"] = [REFUSED] * 1000
    await _pass(cluster, process, END + 1.0)
    assert by_value(cluster.hard) == by_value(GRANTED)
    messages = {reason: message for _, _, reason, message in process.events.recorded}
    assert "quota is still raised" in messages["ResourceQuotaNotRestored"]
    assert "still to be restored: quota" in messages["NamespaceUnlocked"]
    cluster.quotas.errors.clear()
    await _pass(cluster, process, 31.0)
    assert cluster.at_rest


@pytest.mark.parametrize("error", [REFUSED, BROKEN])
@pytest.mark.parametrize("kind", ["locks", "budgets", "quotas"])
async def test_a_failed_raise_does_not_keep_the_namespace_locked(
    cluster: WindowCluster, kind: str, error: ApiError
) -> None:
    process = Process(cluster)
    getattr(cluster, kind).errors = {verb: [error] * 1000 for verb in ("create", "patch")}
    assert await _pass(cluster, process, 600.0) < 30.0
    messages = [message for _, _, reason, message in process.events.recorded if reason == "LockUnavailable"]
    assert messages == [f"the quotas of namespace ns1 cannot be raised, the migrations are retried in 0.5 s: {error}"]
    getattr(cluster, kind).errors.clear()
    await _pass(cluster, process, 31.0)
    assert by_value(cluster.hard) == by_value(GRANTED)


@pytest.mark.parametrize("kind", ["locks", "budgets", "quotas"])
async def test_the_refusal_is_known_as_long_as_the_migration_waits(cluster: WindowCluster, kind: str) -> None:
    process = Process(cluster)
    getattr(cluster, kind).errors = {verb: [REFUSED] * 1000 for verb in ("create", "patch")}
    for _ in range(100):
        await asyncio.sleep(await process.look() or 0.1)
        assert process.cause in (REFUSED, None)
    await process.look()
    assert process.cause is REFUSED, "also between two tries"
    getattr(cluster, kind).errors.clear()
    await _pass(cluster, process, 31.0)
    assert by_value(cluster.hard) == by_value(GRANTED)
    await process.look()
    assert process.cause is None


async def test_who_refuses_is_forgotten_with_the_migration(cluster: WindowCluster) -> None:
    process = Process(cluster)
    cluster.quotas.errors["patch"] = [REFUSED] * 1000
    await _pass(cluster, process, 60.0)
    assert process.cause is REFUSED
    for key in list(cluster.migrations.objects):
        cluster.migrations.gone(key)
    await _pass(cluster, process, 31.0)
    assert process.cause is None


@pytest.mark.parametrize("kind", ["budgets", "quotas"])
async def test_what_never_answers_locks_the_namespace_ever_more_rarely(cluster: WindowCluster, kind: str) -> None:
    process, silent = Process(cluster), getattr(cluster, kind)
    silent.before, silent.errors["patch"] = [lambda: asyncio.sleep(11.0)] * 1000, [BROKEN] * 1000
    await _pass(cluster, process, 3600.0)
    assert 5 < cluster.server.made.count(("create", "validatingwebhookconfigurations")) < 15
    silent.before.clear()
    silent.errors.clear()
    assert "ResourceQuotaRaised" not in process.events.reasons
    await _pass(cluster, process, 601.0)
    assert "ResourceQuotaRaised" in process.events.reasons


async def test_a_write_that_fails_once_delays_a_migration_for_a_moment(cluster: WindowCluster) -> None:
    cluster.budgets.errors["patch"], process = [BROKEN], Process(cluster)
    await _pass(cluster, process, 2.0)
    assert by_value(cluster.hard) == by_value(GRANTED)
    cluster.admit()
    cluster.quotas.errors["patch"] = [REFUSED]
    await _pass(cluster, process, 2.0)
    assert cluster.at_rest


async def test_an_answer_that_takes_seconds_is_waited_for(cluster: WindowCluster) -> None:
    cluster.locks.before.append(lambda: asyncio.sleep(5.0))
    await open_window(cluster, Process(cluster))
    assert len(cluster.locks.asked("create")) == 1


async def test_an_undeletable_lock_does_not_keep_the_quota_raised(cluster: WindowCluster) -> None:
    await open_window(cluster, Process(cluster))
    cluster.locks.errors["delete"] = [REFUSED] * 1000
    await asyncio.sleep(END)
    process = Process(cluster)
    await _pass(cluster, process, 1.0)
    assert by_value(cluster.hard) == by_value(FULL)
    messages = {reason: message for _, _, reason, message in process.events.recorded}
    assert "lock.ns1.com still stands" in messages["NamespaceNotUnlocked"]
    cluster.locks.errors.clear()
    cluster.admit()
    await _pass(cluster, process, 31.0)
    assert cluster.at_rest


@pytest.mark.parametrize(
    "namespace", ["kube-system", "kubevirt", "cattle-system", "rancher-operator-system", "own", "virt-elsewhere"]
)
async def test_system_namespaces_are_never_locked(namespace: str) -> None:
    cluster = WindowCluster()
    cluster.refuse()
    cluster.kubevirts.given({"metadata": {"name": "kubevirt", "namespace": "virt-elsewhere"}})
    process = Process(cluster, never_lock=["own"])
    for kind in (cluster.budgets, cluster.quotas, cluster.migrations, cluster.instances, cluster.pods):
        for raw in list(kind.objects.values()):
            kind.given({**raw, "metadata": {**raw["metadata"], "namespace": namespace}})
    cluster.namespaces.given({"metadata": {"name": namespace, "uid": "uid"}})
    await process.look(namespace)
    assert not cluster.locked
    (event,) = [record for record in process.events.recorded if record[2] == "LockUnavailable"]
    assert "system namespace" in event[3]


async def test_a_lease_in_upstreams_name_keeps_no_window_closed(cluster: WindowCluster) -> None:
    """Any user who may create a Lease could stop a namespace's migrations by it, were it read."""
    process = Process(cluster)
    spec = {"holderIdentity": "it", "leaseDurationSeconds": 3600, "renewTime": "2027-01-15T08:00:00.000000Z"}
    cluster.leases.given({"metadata": {"name": "mtq-controller", "namespace": "tenant"}, "spec": spec})
    await open_window(cluster, process)
    assert cluster.locked


# ---- the process ends after every single write, and is started again -----------------------------------------

WRITES = 8
"""Of the whole way with two blocking quotas; `test_the_writes_are_enumerated` counts them."""
PODS = {"pods": "1"}


def full_namespace() -> WindowCluster:
    """Makes a namespace with two quotas that its VM fills."""
    cluster = WindowCluster()
    cluster.quotas.given(quota(PODS, PODS, name="pods"))
    cluster.budgets.given(budget({**ENOUGH, **PODS}))
    cluster.refuse()
    return cluster


async def run(cluster: WindowCluster, process: Process, upto: int | None) -> None:
    """Go the whole way, and end after `upto` writes."""
    cluster.server.left = upto
    await open_window(cluster, process)
    await close_window(cluster, process)


async def test_the_writes_are_enumerated() -> None:
    cluster = full_namespace()
    await run(cluster, Process(cluster), None)
    assert len(cluster.server.made) == WRITES


@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("fate", ["the target came", "the migration is gone", "it waits still"])
@pytest.mark.parametrize("downtime", [0.0, 40.0, 500.0])
async def test_ended_after_any_write_and_started_again(number: int, fate: str, downtime: float) -> None:
    cluster = full_namespace()
    with pytest.raises(ProcessEnded):
        await run(cluster, Process(cluster), number)
    cluster.server.left = None
    await asyncio.sleep(downtime)
    cluster.enforce()
    admitted = len(cluster.pods.objects) > 1
    if fate == "the target came" and not admitted:
        cluster.admit()
    if fate == "the migration is gone":
        cluster.migrations.gone("ns1/migration-of-vm1")
    process = Process(cluster)
    await process.rest()
    # Raised for longer than a lock may last, and no target came: then it is left alone for a while.
    rests = number == WRITES // 2 and downtime > WindowPolicy().lock_limit
    if fate == "it waits still" and not admitted and not rests:
        assert by_value(cluster.hard) == by_value(GRANTED)
        cluster.admit()
        await process.rest()
    assert cluster.at_rest
    assert by_value(cluster.quotas.now("ns1/pods").hard) == by_value(PODS)


# ---- a window that commit 8ac1f0b left open ------------------------------------------------------------------

WINDOWS = json.loads((Path(__file__).parent / "windows_of_8ac1f0b.json").read_text("utf-8"))


def left_by(window: dict[str, Any]) -> WindowCluster:
    cluster = WindowCluster()
    cluster.refuse()
    cluster.budgets.gone("ns1/budget")
    cluster.quotas.gone("ns1/quota")
    for kind, name in ((cluster.locks, "lock"), (cluster.budgets, "budget"), (cluster.quotas, "quota")):
        if window[name] is not None:
            kind.given(window[name])
    cluster.enforce()
    return cluster


@sentences(WINDOWS)
@pytest.mark.parametrize("fate", ["the target came", "the migration is gone"])
@pytest.mark.parametrize("seconds", [1.0, 60.0, 500.0])
async def test_it_is_closed(case: dict[str, Any], fate: str, seconds: float) -> None:
    cluster = left_by(case)
    await asyncio.sleep(seconds)
    if fate == "the target came":
        cluster.admit()
    else:
        cluster.migrations.gone("ns1/migration-of-vm1")
    process = Process(cluster)
    await process.rest()
    assert not cluster.locked
    assert by_value(cluster.hard) == by_value(FULL)
    assert "headroom.harvesterhci.io/originals" not in cluster.quotas.now("ns1/quota").annotations
    if case["budget"]:
        assert cluster.at_rest
    assert not {"InvalidMigrationResourceQuota", "ResourceQuotaNotRestored"} & set(process.events.reasons)


WAITING = [name for name in WINDOWS if "restored" not in name and "deleted" not in name]
"""In the others the target came, or nothing may be added any more."""


@sentences({name: WINDOWS[name] for name in WAITING})
@pytest.mark.parametrize("seconds", [1.0, 60.0])
async def test_a_migration_that_still_waits_is_released(case: dict[str, Any], seconds: float) -> None:
    cluster = left_by(case)
    await asyncio.sleep(seconds)
    process = Process(cluster)
    await process.rest()
    assert cluster.hard["limits.cpu"] in {"4030m", "5015m"}
    cluster.admit()
    await process.rest()
    assert cluster.at_rest
