"""Every resource that a quota counts of a pod is raised, and only on quotas whose scopes match the pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kubeloop.api.meta import Object
from kubeloop.api.registry import PERSISTENT_VOLUME_CLAIMS as CLAIMS
from kubeloop.api.registry import STORAGE_CLASSES, Resource
from kubeloop.client.errors import Forbidden
from lab.namespace import LASTING, PODS, VMIS, Namespace, by_value
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import Amounts, plus, watched
from tests.e2e.headroom.environment import Environment, grant_what_is_used, meter
from tests.e2e.headroom.shapes import SEED, SHAPES, Shape, start

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("cleared")]

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", Object, namespaced=False)
HIGH, LOCAL = "headroom-test-high", "headroom-test-local"
MANAGED = {"headroom.harvesterhci.io/managed": "true"}
RESOURCES = {
    "requests.cpu": SHAPES["the seed's VM"],
    "requests.memory": SHAPES["the seed's VM"],
    "cpu": SHAPES["the seed's VM"],
    "memory": SHAPES["the seed's VM"],
    "requests.ephemeral-storage": SHAPES["the seed's VM"],
    "pods": SHAPES["the seed's VM"],
    "count/pods": SHAPES["the seed's VM"],
    "requests.devices.kubevirt.io/kvm": SHAPES["the seed's VM"],
    "requests.hugepages-2Mi": SHAPES["huge pages"],
    "requests.nvidia.com/TU104GL": SHAPES["a GPU and a host device"],
    "requests.storage": SHAPES["a persistent TPM"],
    "persistentvolumeclaims": SHAPES["a persistent TPM"],
    "count/persistentvolumeclaims": SHAPES["a persistent TPM"],
    "headroom-test-local.storageclass.storage.k8s.io/requests.storage": SHAPES["a persistent TPM"],
    "headroom-test-local.storageclass.storage.k8s.io/persistentvolumeclaims": SHAPES["a persistent TPM"],
}
"""Resource to a VM that uses it. Harvester raises none of them."""


@pytest_asyncio.fixture(loop_scope="module")
async def local(on: Environment) -> AsyncIterator[None]:
    """The cluster's default StorageClass; its volumes are for one node at a time."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": LOCAL, "annotations": default}
    classes = on.admin.client.resource(STORAGE_CLASSES)
    await classes.create({"metadata": metadata, "provisioner": "kubernetes.io/no-provisioner"})
    yield
    await classes.delete(name=LOCAL)


@pytest_asyncio.fixture(loop_scope="module")
async def high(on: Environment) -> AsyncIterator[str]:
    """A PriorityClass."""
    classes = on.admin.client.resource(PRIORITY_CLASSES)
    await classes.create({"metadata": {"name": HIGH}, "value": 1000})
    yield HIGH
    await classes.delete(name=HIGH)


async def full(on: Environment, resource: str) -> tuple[Namespace, Amounts]:
    """A namespace with one VM whose quota on one resource is used up to the last byte."""
    namespace = await on.admin.namespace()
    await meter(namespace, resource)
    await start(namespace, "vm1", shape=RESOURCES[resource])
    return namespace, await grant_what_is_used(namespace, resource)


@pytest.mark.usefixtures("local")
async def test_each_counted_resource_is_refused_for_good_by_harvesters_estimate_and_not_by_ours(
    on: Environment,
) -> None:
    """The same namespaces, the same VMs: only the estimate changes."""
    on.run("--estimate", "harvester")
    filled = await asyncio.gather(*(full(on, name) for name in RESOURCES))
    refused = [await namespace.migrate() for namespace, _ in filled]
    await asyncio.gather(*(each.stays_refused(move) for (each, _), move in zip(filled, refused, strict=True)))
    for namespace, base in filled:
        assert await namespace.hard() == base
    await asyncio.gather(*(each.abort(move) for (each, _), move in zip(filled, refused, strict=True)))
    on.run("--no-compensate")

    async def goes_through(name: str, namespace: Namespace, base: Amounts) -> None:
        await namespace.succeed(await namespace.migrate(linger=0.5))
        if SHAPES["a persistent TPM"] is RESOURCES[name]:
            await remove_ended(namespace)  # as KubeVirt 1.9 does: until then its claim is there and counts
        await namespace.settle(base)

    async with watched(*(namespace for namespace, _ in filled)) as seen:
        await asyncio.gather(*(goes_through(name, *each) for name, each in zip(RESOURCES, filled, strict=True)))
        for name, (_, base), versions in zip(RESOURCES, filled, seen, strict=True):
            assert await versions.hards() == [base, plus(base, base), base], name


async def remove_ended(namespace: Namespace) -> None:
    """The launchers that are over, once one is."""
    await namespace.until_launchers(1)
    for pod in await namespace.launchers():
        if pod.terminal:
            await namespace.delete(PODS, pod.name)


async def test_disks_that_move_are_added_where_an_administrator_lets_them(on: Environment) -> None:
    """KubeVirt waits for the claim that the VM names, without a migration."""
    on.run()
    namespace = await on.admin.namespace()
    await namespace.machine(spec=SEED, strategy="Always")
    base = {"requests.storage": "1Gi", "persistentvolumeclaims": "1"}
    await namespace.make_quota("disks", base, labels=MANAGED)
    await _claim(namespace, "old")
    moved = {"volumeName": "root", "sourcePVCInfo": {"claimName": "old"}, "destinationPVCInfo": {"claimName": "new"}}
    await namespace.patch(VMIS, "vm1", {"status": {"migratedVolumes": [moved]}})
    with pytest.raises(Forbidden, match="exceeded quota: disks"):
        await _claim(namespace, "new")
    await namespace.mark(annotations={"headroom.harvesterhci.io/storage-migration": "true"})
    await namespace.until_hard({"requests.storage": "2Gi", "persistentvolumeclaims": "2"}, "disks", 10.0)
    await namespace.until_counted("disks")
    await _claim(namespace, "new")
    await namespace.delete(CLAIMS, "old")
    await namespace.settle(by_value(base), "disks")


async def _claim(namespace: Namespace, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await namespace.create(CLAIMS, {"metadata": {"name": name}, "spec": {"storageClassName": "none", **spec}})


async def test_a_second_migration_where_finished_pods_count_too(on: Environment) -> None:
    """count/pods counts what has ended: its base is overrun after the first one, and compensation makes up for it."""
    on.run()
    namespace, base = await full(on, "count/pods")
    for _ in range(2):
        await namespace.succeed(await namespace.migrate())
        await namespace.settle(base)


async def with_two(on: Environment, high: str) -> Namespace:
    """A VM of each priority, and room for them."""
    namespace = await on.running("vm1", limits={"limits.cpu": "20", "limits.memory": "40Gi"})
    await start(namespace, "vm2", shape=Shape(spec={"priorityClassName": high}))
    return namespace


async def test_scoped_quotas_are_raised_for_the_pods_they_count(on: Environment, high: str) -> None:
    on.run("--no-compensate")
    namespace = await with_two(on, high)
    one = by_value({"requests.memory": "3340109497", "pods": "1"})
    quotas: dict[str, tuple[dict[str, Any], Amounts]] = {
        "high": (_priority("In", high), one),
        "others": (_priority("DoesNotExist"), one),
        "burstable": ({"scopes": ["NotBestEffort"]}, plus(one, one)),
        "forever": ({"scopes": ["NotTerminating"]}, plus(one, one)),
        "besteffort": ({"scopes": ["BestEffort"]}, by_value({"pods": "1"})),
        "jobs": ({"scopes": ["Terminating"]}, one),
    }
    for name, (spec, base) in quotas.items():
        await namespace.make_quota(name, base, spec, labels=MANAGED)
    for name in ("high", "others"):
        assert await namespace.used(name) == one, "the numbers of this test"
    matching = {"vm1": {"others", "burstable", "forever"}, "vm2": {"high", "burstable", "forever"}}
    for vm, raised in matching.items():
        migration = await namespace.migrate(vm, running=LASTING)
        await namespace.until_phase(migration, "Running")
        for name, (_, base) in quotas.items():
            assert await namespace.hard(name) == (plus(base, one) if name in raised else base), (vm, name)
            assert len(await namespace.entries(name)) == (name in raised), (vm, name)
        await namespace.hurry(migration)
        await namespace.succeed(migration)
        for name, (_, base) in quotas.items():
            await namespace.settle(base, name)


def _priority(operator: str, *names: str) -> dict[str, Any]:
    wanted = {"scopeName": "PriorityClass", "operator": operator} | ({"values": list(names)} if names else {})
    return {"scopeSelector": {"matchExpressions": [wanted]}}
