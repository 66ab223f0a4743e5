"""The client against a real kube-apiserver: what a scripted server can only pretend."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kubeloop.api import registry
from kubeloop.api.meta import Object, Struct
from kubeloop.api.objects import edit
from kubeloop.api.registry import Resource
from kubeloop.client import errors
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.controllers.events import EventRecorder
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from kubeloop.testing.schemas import check_served
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.kubeloop.client.kubeconfigs import Plugin
from tests.kubeloop.client.rig import Quotas

pytestmark = pytest.mark.cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(load_config(str(cluster.kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    namespaces = client.resource(registry.NAMESPACES)
    return (await namespaces.create({"metadata": {"generateName": "client-"}})).name


@pytest.fixture
def quotas(client: Client) -> Quotas:
    return client.resource(registry.RESOURCE_QUOTAS)


def quota(name: str, cpu: str = "3") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"hard": {"limits.cpu": cpu}}}


async def test_subresources_of_other_kinds(client: Client, namespace: str) -> None:
    ref = {"name": "default", "namespace": namespace}
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    accounts = client.resource(ACCOUNTS)

    async def token_exists() -> bool:
        """The service account comes a moment after its namespace."""
        with contextlib.suppress(errors.NotFound):
            return bool((await accounts.create_subresource("token", token, TokenRequest, **ref)).status)
        return False

    await until(token_exists)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    sets = client.resource(REPLICA_SETS)
    await sets.create({"metadata": {"name": "default"}, "spec": spec}, namespace=namespace)
    scale = await sets.get_subresource("scale", Scale, **ref)
    assert (scale.kind, scale.spec.replicas) == ("Scale", 0)
    await sets.merge_patch({"spec": {"replicas": 2}}, **ref, subresource="scale")
    assert (await sets.get_subresource("scale", Scale, **ref)).spec.replicas == 2


class TokenRequest(Object):
    status: dict[str, str] | None = None


class ScaleSpec(Struct):
    replicas: int = 0


class Scale(Object):
    """The scale of a ReplicaSet, as far as it is declared here."""

    spec: ScaleSpec = ScaleSpec()


ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", TokenRequest, status_subresource=False)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", Scale, status_subresource=True)


class MisspeltSpec(Struct):
    hard: dict[str, str] | None = msgspec.field(name="hrad", default=None)


class MisspeltQuota(Object):
    spec: MisspeltSpec = MisspeltSpec()


async def test_a_strict_client_refuses_a_misspelt_name(
    cluster: Cluster, quotas: Quotas, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    await quotas.create(quota("q"), namespace=namespace)
    kind = registry.Resource("", "v1", "resourcequotas", "ResourceQuota", MisspeltQuota)
    async with Client(load_config(str(cluster.kubeconfig)), strict=True) as strict:
        obj = await strict.resource(kind).get(name="q", namespace=namespace)
        with pytest.raises(errors.ApiError, match=r'unknown field "spec\.hrad"'):
            await strict.resource(kind).update(obj, edit(obj, spec={"hard": {"pods": "1"}}))
        with pytest.raises(errors.ApiError, match=r'unknown field "spec\.hrd"'):
            await strict.resource(registry.RESOURCE_QUOTAS).merge_patch(
                {"spec": {"hrd": {}}}, name="q", namespace=namespace
            )
    await quotas.merge_patch({"spec": {"hrd": {}}}, name="q", namespace=namespace)
    assert 'the API server warns: unknown field "spec.hrd"' in caplog.text


async def test_a_version_of_long_ago_is_gone(client: Client) -> None:
    machines = client.resource(VIRTUAL_MACHINE_INSTANCES)
    # 1 is from before this kind was installed, and with it the server's memory of its changes.
    async with asyncio.timeout(20), machines.watch(resource_version="1") as events:
        with pytest.raises(errors.Gone):
            await anext(events)


async def test_impersonation_is_subject_to_rbac(cluster: Cluster, namespace: str) -> None:
    config = load_config(str(cluster.kubeconfig))
    async with Client(config.impersonate("jane", ["dev"])) as jane:
        with pytest.raises(errors.Forbidden, match='User "jane" cannot list'):
            await jane.resource(registry.RESOURCE_QUOTAS).list(namespace)
    async with Client(config.impersonate("jane", ["dev", "system:masters"])) as master:
        assert (await master.resource(registry.RESOURCE_QUOTAS).list(namespace)) == []


async def test_a_plugins_certificate_is_accepted(cluster: Cluster, tmp_path: Path) -> None:
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    pair = {
        field: base64.b64decode(content["users"][0]["user"][name]).decode()
        for field, name in (("clientCertificateData", "client-certificate-data"), ("clientKeyData", "client-key-data"))
    }
    plugin = Plugin(tmp_path)
    plugin.answers(pair)
    content["users"][0]["user"] = plugin.user()
    path = tmp_path / "config"
    path.write_text(json.dumps(content))
    async with Client(load_config(str(path))) as client:
        assert await client.resource(registry.NAMESPACES).get(name="default")


OF_BETAS = {
    "ResourceClaim": [
        f"spec.devices.requests[].{field} is not in the schema"
        for field in ("deviceClassName", "allocationMode", "count")
    ]
}
"""What earlier versions of a kind have elsewhere: one struct reads them all."""


async def test_events_of_both_apis_are_written_and_counted(client: Client, namespace: str) -> None:
    namespace_obj = await client.resource(registry.NAMESPACES).get(name=namespace)
    recorder = EventRecorder(client, "test")
    for _ in range(3):
        recorder.event(namespace_obj, "Normal", "Seen", "of core/v1")
        recorder.event(namespace_obj, "Warning", "Moved", "n" * 2000, action="Move", related=namespace_obj)
        await until(lambda: not recorder._writers)
    old, new = client.resource(registry.EVENTS), client.resource(registry.EVENTS_V1)
    selector = f"involvedObject.name={namespace}"
    assert sorted((event.reason, event.count) for event in await old.list("default", field_selector=selector)) == [
        ("Moved", None),
        ("Seen", 3),
    ]
    (warning,) = [
        event for event in await new.list("default") if event.regarding.uid == namespace_obj.uid and event.action
    ]
    assert warning.series is not None
    assert (warning.series.count, warning.type, len(warning.note)) == (3, "Warning", 1024)


async def test_the_structs_of_kubernetes_kinds_are_those_of_the_server(client: Client) -> None:
    kinds = [value for value in vars(registry).values() if isinstance(value, registry.Resource)]
    problems = {resource.kind: await check_served(client, resource) for resource in kinds}
    assert {kind: lines for kind, lines in problems.items() if lines} == OF_BETAS
