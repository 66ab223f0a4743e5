"""A lock never outlives its purpose, and the strategies never meet on one quota."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from pkg.util import constants
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.lock import lock_body, lock_webhook
from pkg.util.managedtenantquota.record import Record
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.entries import has_migrating_vm
from tests.e2e.admin import Admin
from tests.e2e.conftest import frozen
from tests.e2e.mtq_namespace import BUDGETS, LOCKS, Namespace, hanging, made, watched
from tests.e2e.tenant import by_value
from tests.program import Program, headroom

pytestmark = pytest.mark.cluster

BASE = {"limits.cpu": Quantity.parse("3"), "limits.memory": Quantity.parse("5000Mi")}


@pytest.fixture(scope="module")
def running(cluster: Cluster, own_kubeconfig: Path) -> Iterator[Program]:
    with headroom(
        cluster, "controller", "--webhook", "--kubeconfig", str(own_kubeconfig), "--lock-limit", "4"
    ) as process:
        yield process


async def test_a_target_that_never_comes_ends_at_the_limit(cluster: Cluster, admin: Admin) -> None:
    namespace = await made(admin)
    await namespace.quota({"limits.cpu": "8", "pods": "9"})
    await namespace.machine()
    hard = await namespace.fill()
    migration = await namespace.migrate()
    await namespace.refused(migration)
    with frozen(cluster, "kubevirt"):
        async with watched(namespace) as seen:
            await namespace.budget()
            event = await namespace.told("LockLimitReached", "VirtualMachineInstanceMigration")
            await namespace.told("LockLimitReached", BUDGETS.kind)
            await namespace.at_rest({"quota": hard})
        assert "locked for 4 s" in event.message
        (lock,) = seen.locked
        assert 3.5 < lock[1] - lock[0] < 8.0
        assert await namespace.lock() is None


@pytest.mark.parametrize("edit", [{"labels": {}}, {"finalizers": ["example.com/stays"]}], ids=str)
async def test_a_lock_that_was_edited_ends_too(admin: Admin, edit: dict[str, Any]) -> None:
    """By hand, while no controller ran; and nothing else says that there is one."""
    namespace = await made(admin)
    where = {"url": "https://127.0.0.1:9/lock", "caBundle": "Q0E="}
    hook = lock_webhook(namespace.name, where, holders=["me"], virt_controllers=["virt"])
    body = lock_body(namespace.name, hook, now=time.time(), holder="me", reason="vm1")
    body["metadata"] |= edit
    await admin.client.resource(LOCKS).create(body)

    async def unlocked() -> bool:
        return await namespace.lock() is None

    await until(unlocked, "the end of the lock")


async def test_no_lock_waits_for_the_restores_of_others(admin: Admin) -> None:
    """Three times as many namespaces as are worked on at a time, and no restore gets an answer within 10 s: a lock that
    waited for its turn among them would end a good 20 s too late."""
    client, begun = admin.client, time.time()
    where = {"url": "https://127.0.0.1:9/lock", "caBundle": "Q0E="}
    raised = Record({"pods": "5"}, {"pods": "3"})
    locked = [Namespace(admin, await admin.namespace(annotated=False)) for _ in range(30)]
    async with hanging(admin, "resourcequotas", {"hangs": "yes"}, "Fail"):
        for each in locked:
            hook = lock_webhook(each.name, where, holders=[], virt_controllers=[])
            lock = lock_body(each.name, hook, now=begun, holder="me", reason="vm1")
            metadata = {"name": "quota", "annotations": {ANNOTATION_ORIGINALS: raised.text("quota")}}
            quota = {"metadata": metadata, "spec": {"hard": {"pods": "8"}}}
            patch = {"metadata": {"labels": {"hangs": "yes"}}}
            await client.resource(registry.NAMESPACES).merge_patch(patch, name=each.name)
            await client.resource(LOCKS).create(lock)
            await client.resource(registry.RESOURCE_QUOTAS).create(quota, namespace=each.name)

        async def all_ended() -> bool:
            return not any([await each.lock() for each in locked])

        await until(all_ended, "the end of every lock", seconds=begun + 4 + 10 + 10 - time.time())
    for each in locked:
        await until(partial(_has_five, each), "the restore", seconds=45)


async def _has_five(namespace: Namespace) -> bool:
    return await namespace.hard() == by_value({"pods": "5"})


async def test_a_quota_changes_sides_in_the_middle_of_a_migration_and_back(admin: Admin) -> None:
    name = await admin.namespace()
    namespace = Namespace(admin, name)
    await admin.machine(name)
    migration = await admin.migrate(name, running=3.0, linger=0.2)
    await admin.until_phase(name, migration, "Running")
    quota = await admin.quota(name)
    assert has_migrating_vm(quota.annotations)
    assert by_value(quota.hard) != BASE

    await namespace.budget({"limits.cpu": "3", "limits.memory": "5Gi"})
    await until(lambda: _given_back(admin, name), "the quota to be given back")
    await admin.until_phase(name, migration, "Succeeded")
    assert await _given_back(admin, name)

    second = await admin.migrate(name, running=0.2, linger=0.2)
    async with watched(namespace) as seen:
        await admin.until_phase(name, second, "Succeeded")
        await namespace.at_rest({quota.name: {n: str(q) for n, q in BASE.items()}})
    assert len(seen.locked) == 1
    assert await _given_back(admin, name)

    await admin.client.resource(BUDGETS).delete(name="budget", namespace=name)
    third = await admin.migrate(name, running=0.5, linger=0.2)
    await until(lambda: _taken_over(admin, name), "the quota to be taken over again")
    await admin.until_phase(name, third, "Succeeded")
    await until(lambda: _is_base(admin, name), "the base")
    assert await namespace.lock() is None


async def _given_back(admin: Admin, name: str) -> bool:
    quota = await admin.quota(name)
    ours = [key for key in quota.annotations if "headroom" in key or "migrating" in key or "skip" in key]
    return not ours and by_value(quota.hard) == BASE


async def _taken_over(admin: Admin, name: str) -> bool:
    quota = await admin.quota(name)
    return constants.ANNOTATION_OWNER in quota.annotations and has_migrating_vm(quota.annotations)


async def _is_base(admin: Admin, name: str) -> bool:
    return by_value((await admin.quota(name)).hard) == BASE


async def test_no_namespace_with_a_budget_is_labelled_for_the_reserve(admin: Admin) -> None:
    name = await admin.namespace()
    namespace = Namespace(admin, name)
    await namespace.budget({"limits.cpu": "3", "limits.memory": "5Gi"})
    await admin.machine(name)
    migration = await admin.migrate(name, running=0.5, linger=0.2)
    await admin.until_phase(name, migration, "Succeeded")
    assert not await admin.is_labelled(name)
    quota = await admin.quota(name)
    assert constants.ANNOTATION_OWNER not in quota.annotations
    assert "harvesterhci" not in json.dumps(dict(quota.annotations))
