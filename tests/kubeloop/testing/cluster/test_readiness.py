"""Faults while a cluster starts; that a start succeeds is what every test on a cluster shows."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kubeloop.api.registry import NODES, SERVICE_ACCOUNTS
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster import processes, readiness
from kubeloop.testing.cluster.control_plane import fake_node
from kubeloop.testing.cluster.reporting import StartError
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import eventually
from lab.cluster import CRDS
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS

DEFINITIONS = readiness.load_crds(CRDS)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for resource in (SERVICE_ACCOUNTS, SETTINGS, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS):
        cluster.install(resource)
    return cluster


async def crds_served(client: Client) -> bool:
    return await readiness.crds_served(client, DEFINITIONS)


async def node_made(client: Client) -> bool:
    await readiness.create(client, NODES, [fake_node("node-1")])
    return True


def refuse(request: Request) -> None:
    raise Forbidden("no")


async def test_crds_are_served_once_every_list_works(cluster: FakeCluster) -> None:
    assert await crds_served(cluster.client())
    cluster.install(KUBEVIRTS, installed=False)
    assert not await crds_served(cluster.client())


@pytest.mark.parametrize("wait", [crds_served, readiness.controllers_work, node_made])
async def test_an_error_that_waiting_does_not_cure_is_not_waited_for(
    wait: Callable[[Client], Awaitable[bool]], cluster: FakeCluster
) -> None:
    cluster.reactors.append(refuse)
    with pytest.raises(Forbidden):
        await wait(cluster.client())


async def test_a_node_that_is_there_already_is_no_error(cluster: FakeCluster) -> None:
    for _ in range(2):
        assert await node_made(cluster.client())


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


async def test_a_server_without_answer_or_accounts_is_not_ready(cluster: FakeCluster) -> None:
    async with Client(ClientConfig("http://127.0.0.1:9")) as client:
        assert not await readiness.server_ready(client)
    assert not await readiness.controllers_work(cluster.client())


async def test_what_is_done_counts_although_a_process_ended(tmp_path: Path) -> None:
    process = processes.spawn("etcd", ["/bin/true"], tmp_path)
    assert eventually(lambda: not process.alive())
    patience = readiness.Patience()
    patience.watched.append(process)

    async def is_ready() -> bool:
        return True

    await patience.until("already", is_ready)
    with pytest.raises(StartError, match=r"etcd ended unexpectedly: no message \(whole log: .*/logs/etcd.log\)"):
        patience.check()
