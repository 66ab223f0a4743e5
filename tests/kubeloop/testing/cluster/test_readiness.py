from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from math import inf
from pathlib import Path

import pytest

from kubeloop.api.meta import Object
from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS, NODES, Resource
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster import processes, readiness
from kubeloop.testing.cluster.errors import StartError
from kubeloop.testing.cluster.nodes import fake_node
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import eventually
from lab.cluster import CRDS
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS


class ServiceAccount(Object):
    """core/v1 ServiceAccount."""


SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", ServiceAccount)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


Poll = Callable[[Client], Awaitable[bool]]


DEFINITIONS = readiness.load_crds(CRDS)


async def crds_served(client: Client) -> bool:
    return await readiness.crds_served(client, DEFINITIONS)


async def node_made(client: Client) -> bool:
    await readiness.create(client, NODES, [fake_node("node-1")])
    return True


def refuse(request: Request) -> None:
    raise Forbidden("no")


async def test_crds_are_served_once_every_list_works(cluster: FakeCluster) -> None:
    for resource in (SETTINGS, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS):
        cluster.install(resource)
    assert await readiness.crds_served(cluster.client(), DEFINITIONS)
    cluster.install(KUBEVIRTS, installed=False)
    assert not await readiness.crds_served(cluster.client(), DEFINITIONS)


@pytest.mark.parametrize("wait", [crds_served, readiness.controllers_work, node_made])
async def test_an_error_that_waiting_does_not_cure_is_not_waited_for(wait: Poll, cluster: FakeCluster) -> None:
    cluster.install(SERVICE_ACCOUNTS)
    cluster.reactors.append(refuse)
    with pytest.raises(Forbidden):
        await wait(cluster.client())


async def test_what_is_there_already_is_no_error(cluster: FakeCluster) -> None:
    for _ in range(2):
        await readiness.create(cluster.client(), CUSTOM_RESOURCE_DEFINITIONS, DEFINITIONS)
        await readiness.create(cluster.client(), NODES, [fake_node("node-1"), fake_node("node-2")])
    assert [node.name for node in cluster.all(NODES)] == ["node-1", "node-2"]
    names = {definition["metadata"]["name"] for definition in DEFINITIONS}
    assert {definition.name for definition in cluster.all(CUSTOM_RESOURCE_DEFINITIONS)} == names


READY: dict[str, tuple[dict[str, str], bool]] = {
    "both are": ({"node-1": "True", "node-2": "True"}, True),
    "one is not": ({"node-1": "True", "node-2": "False"}, False),
    "one is not there yet": ({"node-1": "True"}, False),
    "both are of three": ({"node-1": "True", "node-2": "True", "other": "False"}, True),
}


@pytest.mark.parametrize(("nodes", "ready"), READY.values(), ids=READY.keys())
async def test_two_nodes_are_ready_when(nodes: dict[str, str], ready: bool, cluster: FakeCluster) -> None:
    for name, status in nodes.items():
        conditions = [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]
        cluster.put(NODES, {"metadata": {"name": name}, "status": {"conditions": conditions}})
    assert await readiness.nodes_ready(cluster.client(), ["node-1", "node-2"]) is ready


async def test_controllers_work_once_the_default_service_account_is_there(cluster: FakeCluster) -> None:
    cluster.install(SERVICE_ACCOUNTS)
    assert not await readiness.controllers_work(cluster.client())
    cluster.put(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    assert await readiness.controllers_work(cluster.client())


async def test_a_server_that_does_not_answer_is_not_ready() -> None:
    async with Client(ClientConfig("http://127.0.0.1:9")) as client:
        assert not await readiness.server_ready(client)


def _after(calls: float) -> Callable[[], Awaitable[bool]]:
    """False `calls` times, then True."""
    polls = count()

    async def done() -> bool:
        return next(polls) >= calls

    return done


async def test_patience_waits_until_it_is_done() -> None:
    await readiness.Patience().until("never", _after(3))


async def test_the_end_of_a_watched_process_ends_the_wait_with_its_last_word(tmp_path: Path) -> None:
    process = processes.spawn("etcd", ["/bin/sh", "-c", "echo first; echo disk full"], tmp_path)
    assert eventually(lambda: not process.alive())
    patience = readiness.Patience()
    patience.watch(process)
    with pytest.raises(StartError, match=r"etcd ended while starting: disk full \(whole log: .*/logs/etcd.log\)"):
        await patience.until("never", _after(inf))


async def test_what_is_done_counts_although_a_process_ended(tmp_path: Path) -> None:
    process = processes.spawn("etcd", ["/bin/true"], tmp_path)
    assert eventually(lambda: not process.alive())
    patience = readiness.Patience()
    patience.watch(process)
    await patience.until("already", _after(0))
    with pytest.raises(StartError, match="no message"):
        patience.check()
