"""Rancher's stand-in on a real control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.cluster import RancherAgent
from lab.namespace import QUOTAS, Namespace, by_value
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.tenant import RAISED

pytestmark = pytest.mark.cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with admin_of(cluster) as found:
        yield found


@pytest.fixture
async def namespace(admin: Admin) -> Namespace:
    """One whose quota Rancher has written."""
    made = await admin.namespace(HARD)
    await made.until_hard(HARD)
    return made


async def raise_quota(namespace: Namespace) -> None:
    """As headroom does, with an annotation of its own."""
    await namespace.set_hard(RAISED, annotations={"harvesterhci.io/migrating-vm1": "{}"})


async def test_a_quota_that_is_deleted_comes_back_with_the_next_restart(cluster: Cluster, namespace: Namespace) -> None:
    await namespace.delete(QUOTAS, (await namespace.quota()).name)
    RancherAgent(cluster.directory).restart()
    await until(lambda: namespace.items(QUOTAS), "the quota")
    await namespace.until_hard(HARD)


async def test_a_raised_quota_stays_until_the_agent_restarts(
    cluster: Cluster, admin: Admin, namespace: Namespace
) -> None:
    await raise_quota(namespace)
    # Whatever else happens to the namespace does not bring Rancher back: this one is rendered after it.
    await namespace.mark(labels={"touched": "true"})
    await (await admin.namespace(HARD)).until_hard(HARD)
    assert await namespace.hard() == by_value(RAISED)
    RancherAgent(cluster.directory).restart()
    await namespace.until_hard(HARD)


async def test_twenty_restarts_in_a_row_are_twenty_restarts(cluster: Cluster, namespace: Namespace) -> None:
    for _ in range(20):
        await raise_quota(namespace)
        RancherAgent(cluster.directory).restart()
        await namespace.until_hard(HARD)
