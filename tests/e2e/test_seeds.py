"""The seeds played whole: node maintenance with Rancher's agent on that node (harvester-quota-migration-v121), a
workload update, and a VM that would start again in a quota that has become too small (harvester-quota-overhead-ratio).

Nobody creates these migrations by hand: KubeVirt's evacuation and workload-update controllers do, two at a time from a
node and five in the cluster.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
import pytest_asyncio

from kubeloop.api.registry import EVENTS, NAMESPACES
from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies, nodes
from lab.cluster import RancherAgent
from lab.kubevirt import evacuation_controller, workload_update_controller
from lab.namespace import PODS, QUOTAS, VMIMS, VMIS, VMS, Namespace, becomes, by_value
from lab.questions import late_refusals, reverts
from lab.record import Amounts, Record
from lab.watching import Watching
from pkg.util import constants
from tests.e2e.admin import refused
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.environment import Environment, environment
from tests.program import headroom

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("rancher")]

SMALL = {
    "domain": {
        "cpu": {"cores": 1, "sockets": 1, "threads": 1},
        "devices": {"logSerialConsole": False},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "62m", "memory": "682Mi"}},
    },
    "evictionStrategy": "LiveMigrateIfPossible",
}
LIMITS = {
    "limits.cpu": "3",
    "limits.memory": "4404019200",
    "pods": "50",
    "requests.cpu": "3",
    "requests.memory": "4200Mi",
}
USED = {
    "limits.cpu": "3",
    "limits.memory": "3892310016",
    "pods": "3",
    "requests.cpu": "186m",
    "requests.memory": "2750460Ki",
}
"""By three SMALL VMs on the KubeVirt of Harvester 1.2.1: more than four fifths."""
VMS_OF_SEED = ("vm1", "vm2", "vm3")
RESTARTS = 3
LINGER = "3"
"""Seconds that a source counts after its migration."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(cluster: Cluster) -> AsyncIterator[Environment]:
    """KubeVirt with its own parallel limits."""
    async with environment(cluster, lambda *_: pytest.fail("headroom runs already")) as env:
        await env.configure(migrations=None)
        yield env


@pytest.fixture(scope="module", autouse=True)
def guarded(cluster: Cluster) -> Iterator[None]:
    """headroom with its webhooks, for the module."""
    with headroom(cluster, "controller", "--webhook"):
        yield


@contextlib.asynccontextmanager
async def recorded(namespace: Namespace) -> AsyncIterator[Record]:
    """Records what happens in a namespace, from now on."""
    record = Record()
    async with Watching(namespace.client, {namespace.name: record}, NAMESPACES, QUOTAS, VMIMS, EVENTS, PODS):
        yield record


async def start_all(namespace: Namespace) -> None:
    await asyncio.gather(*(namespace.machine(vm, spec=SMALL, strategy="Always") for vm in VMS_OF_SEED))


async def migrations(namespace: Namespace, prefix: str) -> list[str]:
    """The phases of the migrations that a controller has created."""
    return sorted(vmim.phase for vmim in await namespace.items(VMIMS) if vmim.name.startswith(prefix))


def check_record(record: Record, base: Amounts, per_node: int) -> None:
    """No version of the quota was too low, nobody was kept out of what was raised, no more moved than may."""
    assert not reverts(record, base), reverts(record, base)[:3]
    kept_out = [refusal.detail for refusal in late_refusals(record, base) if refusal.full]
    assert not kept_out, kept_out[:3]
    targets = [record.targets[track.uid] for track in record.migrations.values() if track.uid in record.targets]
    moments = [(track.began.at, 1) for track in targets]
    moments += [(track.ended.at, -1) for track in record.migrations.values() if track.ended]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    assert most <= per_node, f"{most} at once"


async def test_node_maintenance_with_ranchers_agent_on_the_node(site: Environment, rancher: RancherAgent) -> None:
    namespace = await site.admin.home(LIMITS, rancher)
    async with site.release("0.54", "v0.54.0", "--source-linger", LINGER):
        async with nodes.only_open(namespace.client) as node:
            await start_all(namespace)
        await namespace.until_used(USED)
        restarts = rancher.restarts()
        async with recorded(namespace) as record:
            try:
                await nodes.drain(namespace.client, node)
                for number in range(RESTARTS):
                    # Drained with the VMs, it starts on another node, and again with each of the seed's restarts.
                    rancher.restart()
                    await becomes(partial(has_succeeded, namespace, number + 1), True)
                await becomes(lambda: migrations(namespace, evacuation_controller.PREFIX), ["Succeeded"] * 3)
                await namespace.settle(LIMITS)
            finally:
                await nodes.restore(namespace.client, node)
    assert rancher.restarts() - restarts == RESTARTS
    assert node not in [vmi.status.node_name for vmi in await namespace.items(VMIS)]
    vmims = await namespace.items(VMIMS)
    assert {migration.annotations[evacuation_controller.ANNOTATION] for migration in vmims} == {node}
    await namespace.until_used(USED)
    check_record(record, Amounts.within(LIMITS), per_node=2)


async def has_succeeded(namespace: Namespace, count: int) -> bool:
    return (await migrations(namespace, "")).count("Succeeded") >= count


async def test_a_workload_update_moves_every_vm_of_a_full_namespace(site: Environment, rancher: RancherAgent) -> None:
    namespace = await site.admin.home({**LIMITS, "limits.memory": "6Gi", "requests.memory": "6Gi"}, rancher)
    await start_all(namespace)
    used = await namespace.used()
    await namespace.grant(used)
    flags = ("--source-linger", LINGER, "--workload-update-delay", "0.5")
    async with recorded(namespace) as record, site.release("1.9", "v1.9.0", *flags):
        await site.strategy("LiveMigrate")
        rancher.restart()
        await becomes(lambda: migrations(namespace, workload_update_controller.PREFIX), ["Succeeded"] * 3)
        await namespace.settle(used)
        for pod in await namespace.launchers(counting=True):
            assert {container.image for container in pod.spec.containers} == {"virt-launcher:v1.9.0"}
        check_record(record, Amounts(used), per_node=5)


RUNNING = {"limits.cpu": "2", "limits.memory": "3Gi"}
SHRUNK = {"limits.cpu": "2", "limits.memory": "1Gi"}
TOO_LITTLE = "memory insufficient resources due to resource quota"


async def test_a_vm_whose_quota_shrank_is_halted_until_there_is_room(site: Environment, rancher: RancherAgent) -> None:
    namespace = await site.admin.home(RUNNING, rancher)
    await namespace.machine(spec=SMALL, strategy="Always")
    # While it runs its quota may not shrink below what it uses.
    refusal = await refused(namespace.by(site.admin.by("alice")).annotate(bodies.granting(SHRUNK)))
    assert "new Memory limit 1Gi is lower than the current used Memory limit 1497364928" in refusal
    await namespace.patch(VMS, "vm1", {"spec": {"runStrategy": "Halted"}})
    await namespace.until_launchers(0)
    await namespace.annotate(bodies.granting(SHRUNK))
    await namespace.until_hard(SHRUNK)
    await namespace.patch(VMS, "vm1", {"spec": {"runStrategy": "Always"}})
    await namespace.until_is(VMS, "vm1", lambda vm: vm.spec.run_strategy, "Halted")
    vm = await namespace.get(VMS, "vm1")
    assert vm.annotations[constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA] == TOO_LITTLE
    event = await namespace.told("InsufficientResourceQuota")
    assert event.message == f"Set runStrategy to Halted: {TOO_LITTLE}"
    await namespace.annotate(bodies.granting(RUNNING))
    await namespace.until_hard(RUNNING)
    await namespace.patch(VMS, "vm1", {"spec": {"runStrategy": "Always"}})
    await namespace.until_is(VMS, "vm1", lambda vm: vm.status.printable_status, "Running")
    await namespace.until_is(
        VMS, "vm1", lambda vm: constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA in vm.annotations, False
    )
    assert await namespace.hard() == by_value(RUNNING)
