"""A lock never outlives its purpose, and the strategies never meet on one quota."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import QUOTAS, by_value
from pkg.util import constants
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.lock import lock_body, lock_webhook
from pkg.util.managedtenantquota.model import Record
from pkg.util.resourcequota.entries import has_migrating_vm
from tests.e2e.admin import HARD, Admin
from tests.e2e.conftest import frozen
from tests.e2e.mtq_namespace import BUDGETS, LOCKS, Budgeted, hanging, make_budgeted, watched
from tests.program import Program, headroom

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("running")]

BASE = by_value(HARD)


@pytest.fixture(scope="module")
def running(cluster: Cluster, own_kubeconfig: Path) -> Iterator[Program]:
    with headroom(
        cluster, "controller", "--webhook", "--kubeconfig", str(own_kubeconfig), "--lock-limit", "4"
    ) as process:
        yield process


async def test_a_target_that_never_comes_ends_at_the_limit(cluster: Cluster, admin: Admin) -> None:
    namespace = await make_budgeted(admin)
    await namespace.make_quota("quota", {"limits.cpu": "8", "pods": "9"})
    await namespace.machine()
    hard = await namespace.fill()
    migration = await namespace.migrate()
    await namespace.until_refused(migration)
    with frozen(cluster, "kubevirt"):
        async with watched(namespace) as record:
            await namespace.budget()
            event = await namespace.told("LockLimitReached", "VirtualMachineInstanceMigration")
            await namespace.told("LockLimitReached", BUDGETS.kind)
            await namespace.at_rest(hard)
        assert "locked for 4 s" in event.message
        assert len(record.locked) == 1
        assert await namespace.lock() is None


async def test_a_lock_that_was_edited_ends_too(admin: Admin) -> None:
    """An administrator edits it by hand, while no controller runs; and nothing else says that there is one."""
    namespace = await make_budgeted(admin)
    client_config = {"url": "https://127.0.0.1:9/lock", "caBundle": "Q0E="}
    hook = lock_webhook(namespace.name, client_config, owners=["me"], virt_controllers=["virt"])
    body = lock_body(namespace.name, hook, now=time.time(), owner="me", reason="vm1")
    body["metadata"] |= {"labels": {}, "finalizers": ["example.com/stays"]}
    await admin.client.resource(LOCKS).create(body)
    await namespace.until_unlocked()


async def test_a_quota_changes_strategy_during_a_migration_and_back(admin: Admin) -> None:
    namespace = Budgeted(admin.client, (await admin.namespace(HARD)).name)
    await namespace.machine(cpu="2", memory="4Gi")
    migration = await namespace.migrate(running=3.0)
    await namespace.until_phase(migration, "Running")
    quota = await namespace.quota()
    assert has_migrating_vm(quota.annotations)
    assert by_value(quota.hard) != BASE

    await namespace.budget({"limits.cpu": "3", "limits.memory": "5Gi"})
    await until(lambda: _given_back(namespace), "the quota to be given back")
    await namespace.succeed(migration)
    assert await _given_back(namespace)

    second = await namespace.migrate()
    async with watched(namespace) as record:
        await namespace.succeed(second)
        await namespace.at_rest(BASE, quota.name)
    assert len(record.locked) == 1
    assert await _given_back(namespace)

    await namespace.delete(BUDGETS, "budget")
    third = await namespace.migrate(running=0.5)

    async def taken_over() -> bool:
        annotations = await namespace.annotations()
        return constants.ANNOTATION_OWNER in annotations and has_migrating_vm(annotations)

    await until(taken_over, "the quota to be taken over again")
    await namespace.succeed(third)
    await namespace.until_hard(BASE)
    assert await namespace.lock() is None


async def _given_back(namespace: Budgeted) -> bool:
    quota = await namespace.quota()
    keys = [key for key in quota.annotations if "headroom" in key or "migrating" in key or "skip" in key]
    return not keys and by_value(quota.hard) == BASE


async def test_no_lock_waits_for_the_restores_of_others(admin: Admin) -> None:
    """Three times as many namespaces as are worked on at a time, and no restore gets an answer within 10 s: a lock that
    waited for its turn among them would end a good 20 s too late."""
    client = admin.client
    client_config = {"url": "https://127.0.0.1:9/lock", "caBundle": "Q0E="}
    raised = Record({"pods": "5"}, {"pods": "3"})
    locked = [await make_budgeted(admin) for _ in range(30)]
    async with hanging(client, "resourcequotas", {"hangs": "yes"}, "Fail"):

        async def lock(budgeted: Budgeted) -> None:
            hook = lock_webhook(budgeted.name, client_config, owners=[], virt_controllers=[])
            body = lock_body(budgeted.name, hook, now=began, owner="me", reason="vm1")
            metadata = {"name": "quota", "annotations": {ANNOTATION_ORIGINALS: raised.text("quota")}}
            quota = {"metadata": metadata, "spec": {"hard": {"pods": "8"}}}
            await budgeted.mark(labels={"hangs": "yes"})
            await client.resource(LOCKS).create(body)
            await budgeted.create(QUOTAS, quota)

        began = time.time()
        await asyncio.gather(*map(lock, locked))

        async def all_ended() -> bool:
            return not any([await budgeted.lock() for budgeted in locked])

        await until(all_ended, "the end of every lock", seconds=began + 4 + 10 + 10 - time.time())
    for budgeted in locked:
        await until(partial(_has_five, budgeted), "the restore", seconds=45)


async def _has_five(namespace: Budgeted) -> bool:
    return await namespace.hard("quota") == by_value({"pods": "5"})
