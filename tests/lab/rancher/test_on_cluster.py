"""Rancher's stand-in on a real control plane."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from kubeloop.client.errors import BadRequest, ServerError
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab import bodies
from lab.cluster import RancherAgent
from lab.namespace import NAMESPACES, PODS, QUOTAS, Namespace, becomes, by_value
from lab.rancher import lock
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.tenant import RAISED

pytestmark = pytest.mark.cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with admin_of(cluster) as administrator:
        yield administrator


@pytest.fixture
async def namespace(admin: Admin) -> Namespace:
    """A namespace whose quota Rancher has written."""
    space = await admin.namespace(HARD)
    await space.until_hard(HARD)
    return space


async def raise_quota(namespace: Namespace) -> None:
    """Raises a quota as headroom does, with an annotation of its own."""
    await namespace.set_hard(RAISED, annotations={"harvesterhci.io/migrating-vm1": "{}"})


async def test_a_deleted_quota_comes_back_with_the_next_restart(cluster: Cluster, namespace: Namespace) -> None:
    await namespace.delete(QUOTAS, (await namespace.quota()).name)
    RancherAgent(cluster.directory).restart()
    await until(lambda: namespace.items(QUOTAS), "the quota")
    await namespace.until_hard(HARD)


async def test_a_raised_quota_stays_until_the_agent_restarts(cluster: Cluster, namespace: Namespace) -> None:
    await raise_quota(namespace)
    await asyncio.sleep(0.5)
    assert await namespace.hard() == by_value(RAISED)
    RancherAgent(cluster.directory).restart()
    await namespace.until_hard(HARD)


async def test_a_raised_quota_stays_until_the_namespace_changes(namespace: Namespace) -> None:
    await raise_quota(namespace)
    await namespace.mark(labels={"touched": "true"})
    await namespace.until_hard(HARD)


async def test_twenty_restarts_in_a_row_are_twenty_restarts(cluster: Cluster, namespace: Namespace) -> None:
    for _ in range(20):
        await raise_quota(namespace)
        RancherAgent(cluster.directory).restart()
        await namespace.until_hard(HARD)


# ---- the release in which only Rancher writes its quotas


@pytest.fixture(scope="module")
def locked(cluster: Cluster) -> Iterator[None]:
    """Rancher 2.15.2, for the rest of the module."""
    agent = RancherAgent(cluster.directory)
    agent.install("2.15.2")
    yield
    agent.install("2.13")


async def test_only_rancher_writes_its_quotas(locked: None, admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    writes: dict[str, Callable[[], Awaitable[object]]] = {
        lock.CHANGE: lambda: namespace.set_hard(RAISED),
        lock.DELETE: lambda: delete(namespace),
        lock.CREATE: lambda: namespace.create(QUOTAS, bodies.default_quota("another", HARD)),
    }
    for message, write in writes.items():
        with pytest.raises(
            BadRequest, match=re.escape(f'"rancher.cattle.io.resourcequotas" denied the request: {message}')
        ):
            await write()
    with pytest.raises(BadRequest, match=lock.CHANGE):
        await namespace.patch_quota({"metadata": {"annotations": {"a": "b"}}})
    await namespace.make_quota("own", {"pods": "3"})
    sudo = namespace.by(admin.by(lock.SUDO_USER, lock.SUDO_GROUP))
    assert by_value((await sudo.set_hard(RAISED)).hard) == by_value(RAISED)


async def test_rancher_itself_writes_and_pods_are_counted(locked: None, admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    await namespace.annotate(bodies.granting({**HARD, "limits.cpu": "4"}))
    await namespace.until_hard({**HARD, "limits.cpu": "4"})
    await namespace.create(PODS, bodies.pod("1", "1Gi"))
    await namespace.until_used({"limits.cpu": "1", "limits.memory": "1Gi"})


async def test_a_namespace_goes_with_its_quota(locked: None, admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    await namespace.client.resource(NAMESPACES).delete(name=namespace.name)
    await until_gone(namespace)


async def test_a_project_validates_requests(locked: None, admin: Admin) -> None:
    project = await admin.project({"limits.cpu": "6", "limits.memory": "10000Mi"}, default=HARD)
    namespace, sibling = await project.namespace(HARD), await project.namespace(HARD)
    await namespace.until_hard(HARD)
    await sibling.until_hard(HARD)
    await namespace.annotate(bodies.granting({**HARD, "limits.cpu": "3001m"}))
    await becomes(namespace.verdict, "Oversubscribed resource quota [limits.cpu=6001m]")
    assert await namespace.hard() == by_value(HARD)
    third = await project.namespace({"limits.cpu": "1", "limits.memory": "0"})
    await third.until_hard({"limits.cpu": "0", "limits.memory": "0"})
    await sibling.annotate(bodies.granting({**HARD, "limits.cpu": "1999m"}))
    await third.annotate(bodies.granting({"limits.cpu": "1", "limits.memory": "0"}))
    await third.until_hard({"limits.cpu": "1", "limits.memory": "0"})
    await becomes(third.verdict, "")


async def test_an_upgrade_locks_what_was_open_and_a_downgrade_opens_it(cluster: Cluster, admin: Admin) -> None:
    agent = RancherAgent(cluster.directory)
    agent.install("2.13")
    namespace = await admin.namespace(HARD)

    async def state() -> str:
        try:
            await namespace.set_hard(RAISED)
        except BadRequest:
            return "locked"
        except ServerError:
            return "its webhook does not answer"
        return "open"

    await becomes(state, "open")
    agent.install("2.15.2")
    await becomes(state, "locked")
    await namespace.until_hard(HARD)  # the agent has started anew
    agent.install("2.13")
    await becomes(state, "open")


async def delete(namespace: Namespace) -> None:
    await namespace.delete(QUOTAS, (await namespace.quota()).name)


async def until_gone(namespace: Namespace) -> None:
    async def names() -> list[str]:
        namespaces = await namespace.client.resource(NAMESPACES).list(field_selector=f"metadata.name={namespace}")
        return [item.name for item in namespaces]

    await becomes(names, [])
