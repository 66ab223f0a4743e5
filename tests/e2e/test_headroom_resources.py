"""Every resource that a quota counts of a pod is raised."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kubeloop.api.registry import STORAGE_CLASSES
from lab.namespace import PODS, Namespace
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import Amounts, plus, watched
from tests.e2e.headroom.environment import Environment, grant_what_is_used, meter
from tests.e2e.headroom.shapes import SHAPES, start

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("cleared")]

LOCAL = "headroom-test-local"
RESOURCES = {
    "cpu": SHAPES["the seed's VM"],
    "memory": SHAPES["the seed's VM"],
    "pods": SHAPES["the seed's VM"],
    "requests.nvidia.com/TU104GL": SHAPES["a GPU and a host device"],
    "requests.storage": SHAPES["a persistent TPM"],
    "persistentvolumeclaims": SHAPES["a persistent TPM"],
    "count/persistentvolumeclaims": SHAPES["a persistent TPM"],
    "headroom-test-local.storageclass.storage.k8s.io/requests.storage": SHAPES["a persistent TPM"],
    "headroom-test-local.storageclass.storage.k8s.io/persistentvolumeclaims": SHAPES["a persistent TPM"],
}
"""Resource to a VM that uses it: other names than those of test_headroom_exact.py, and two of them alone in a quota.
Harvester raises none of them."""


@pytest_asyncio.fixture(loop_scope="module")
async def local(on: Environment) -> AsyncIterator[None]:
    """The cluster's default StorageClass; its volumes are for one node at a time."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": LOCAL, "annotations": default}
    classes = on.admin.client.resource(STORAGE_CLASSES)
    await classes.create({"metadata": metadata, "provisioner": "kubernetes.io/no-provisioner"})
    yield
    await classes.delete(name=LOCAL)


async def full(on: Environment, resource: str) -> tuple[Namespace, Amounts]:
    """A namespace with one VM whose quota on one resource is used up to the last byte."""
    namespace = await on.admin.namespace()
    await meter(namespace, resource)
    await start(namespace, "vm1", shape=RESOURCES[resource])
    return namespace, await grant_what_is_used(namespace, resource)


@pytest.mark.usefixtures("local")
async def test_each_counted_resource_is_raised_by_our_estimate_alone(on: Environment) -> None:
    """The same namespaces, the same VMs: only the estimate changes."""
    on.run("--estimate", "harvester")
    filled = await asyncio.gather(*(full(on, name) for name in RESOURCES))
    refused = [await namespace.migrate() for namespace, _ in filled]
    await asyncio.gather(*(namespace.stays_refused(move) for (namespace, _), move in zip(filled, refused, strict=True)))
    for namespace, base in filled:
        assert await namespace.hard() == base
    await asyncio.gather(*(each.abort(move) for (each, _), move in zip(filled, refused, strict=True)))
    on.run("--no-compensate")

    async def goes_through(name: str, namespace: Namespace, base: Amounts) -> None:
        await namespace.succeed(await namespace.migrate(linger=0.5))
        if SHAPES["a persistent TPM"] is RESOURCES[name]:
            await remove_ended(namespace)  # as KubeVirt 1.9 does: until then its claim is there and counts
        await namespace.settle(base)

    async with watched(*(namespace for namespace, _ in filled)) as watches:
        await asyncio.gather(*(goes_through(name, *each) for name, each in zip(RESOURCES, filled, strict=True)))
        for name, (_, base), versions in zip(RESOURCES, filled, watches, strict=True):
            assert await versions.hards() == [base, plus(base, base), base], name


async def remove_ended(namespace: Namespace) -> None:
    """The launchers that are over, once one is."""
    await namespace.until_launchers(1)
    for pod in await namespace.launchers():
        if pod.terminal:
            await namespace.delete(PODS, pod.name)
