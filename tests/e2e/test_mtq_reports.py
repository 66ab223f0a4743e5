"""`headroom status` and `headroom explain` in a namespace with a migration budget."""

from __future__ import annotations

import asyncio
import json

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import by_value
from tests.e2e.admin import Admin, admin_of
from tests.e2e.conftest import frozen
from tests.e2e.mtq_namespace import BUDGETS, made
from tests.program import headroom, run

pytestmark = pytest.mark.cluster


async def test_status_and_explain_cover_it(cluster: Cluster) -> None:
    with headroom(cluster, "controller", "--webhook"):
        async with admin_of(cluster) as admin:
            await _reported(cluster, admin)


async def _reported(cluster: Cluster, admin: Admin) -> None:
    namespace = await made(admin)
    await namespace.make_quota("quota", {"limits.cpu": "8", "pods": "9"})
    await namespace.machine()
    hard = await namespace.fill()
    await namespace.budget({"limits.cpu": "1"})
    migration = await namespace.migrate()
    await namespace.until_refused(migration)
    asked = ("explain", f"{namespace.name}/vm1", "-o", "json", "--kubeconfig", str(cluster.kubeconfig))
    explained = json.loads((await asyncio.to_thread(run, *asked)).stdout)
    assert explained["verdict"] == "waits for quota"
    assert "pods of quota quota: requested 1, used 1, limited 1" in explained["summary"]
    with frozen(cluster, "kubevirt"):
        enough = {"spec": {"additionalMigrationResources": {"pods": "1"}}}
        await namespace.patch(BUDGETS, "budget", enough)

        async def raised() -> bool:
            return await namespace.hard("quota") != by_value(hard)

        await until(raised, "the raise")
        following = ("status", "-n", namespace.name, "-o", "json", "--kubeconfig", str(cluster.kubeconfig))
        (shown,) = json.loads((await asyncio.to_thread(run, *following)).stdout)["budgets"]
    assert shown["lock"]["for"] == "vm1"
    assert [(each["quota"], each["original"]) for each in shown["raised"]] == [("quota", hard)]
    await namespace.at_rest(hard)
