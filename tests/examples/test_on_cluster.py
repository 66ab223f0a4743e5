"""Every ported controller on the fake cluster, and all on one embedded cluster."""

import contextlib
from typing import Any

import pytest

from examples.schedulevmbackup.controller import NAMESPACE
from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists
from kubeloop.client.loading import load_config
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from lab.cluster import EmbeddedCluster, Options
from tests.examples import test_keypair, test_nodedrain, test_schedulevmbackup, test_storageclass, test_template

PORTS = (test_template, test_keypair, test_storageclass, test_schedulevmbackup, test_nodedrain)
KINDS = [kind for port in PORTS for kind in port.KINDS]


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
async def test_on_the_fake_cluster(port: Any) -> None:
    await port.scenario(FakeCluster(*port.KINDS).client())


BUILT_IN = ("", "batch", "storage.k8s.io")


def definition(kind: Resource[Any]) -> dict[str, Any]:
    """A CustomResourceDefinition that keeps every field."""
    names = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind, "listKind": f"{kind.kind}List"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": kind.version, "served": True, "storage": True, "schema": schema}
    if kind.status_subresource:
        served["subresources"] = {"status": {}}
    scope = "Namespaced" if kind.namespaced else "Cluster"
    metadata: dict[str, Any] = {"name": kind.group_resource}
    if kind.group.endswith("k8s.io"):
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {"metadata": metadata, "spec": {"group": kind.group, "scope": scope, "names": names, "versions": [served]}}


async def install(client: Client) -> None:
    for kind in KINDS:
        if kind.group in BUILT_IN:
            continue
        with contextlib.suppress(AlreadyExists):  # the lab has two of them
            await client.resource(registry.CUSTOM_RESOURCE_DEFINITIONS).create(definition(kind))

    async def served() -> bool:
        return all([await client.resource(kind).is_served() for kind in KINDS])

    await until(served)
    await client.resource(registry.NAMESPACES).create({"metadata": {"name": NAMESPACE}})


@pytest.mark.cluster
async def test_every_port() -> None:
    with EmbeddedCluster(options=Options(kwok=False, kubevirt=False, rancher=False)) as running:
        async with Client(load_config(str(running.kubeconfig)), strict=True) as client:
            await install(client)
            for port in PORTS:
                await port.scenario(client)
