"""The client against a real kube-apiserver: what a scripted server can only pretend."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pkg.api import registry
from pkg.api.core import Namespace, ResourceQuota
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from pkg.api.meta import Object, Struct
from pkg.api.objects import edit
from pkg.client import errors
from pkg.client.client import Client
from pkg.client.config import load_config
from pkg.client.resource_client import ResourceClient
from pkg.testcluster.cluster import Cluster, EmbeddedCluster, Options
from tests.pkg.client.kubeconfigs import Plugin

pytestmark = pytest.mark.cluster

NOTHING_OF_THIS_KIND = registry.Resource("nowhere.example", "v1", "things", "Thing", Namespace)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedCluster(options=Options(kwok=False, kubevirt=False, rancher=False)) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(load_config(str(cluster.kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    namespaces = client.resource(registry.NAMESPACES)
    return (await namespaces.create({"metadata": {"generateName": "client-"}})).name


@pytest.fixture
def quotas(client: Client) -> ResourceClient[ResourceQuota]:
    return client.resource(registry.RESOURCE_QUOTAS)


def quota(name: str, cpu: str = "3") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"hard": {"limits.cpu": cpu}}}


async def test_an_object_from_its_creation_to_its_end(
    quotas: ResourceClient[ResourceQuota], namespace: str
) -> None:
    created = await quotas.create(quota("q"), namespace=namespace)
    with pytest.raises(errors.AlreadyExists):
        await quotas.create(quota("q"), namespace=namespace)
    patched = await quotas.merge_patch(
        {"metadata": {"annotations": {"a": "1", "b": "2"}}}, name="q", namespace=namespace
    )
    assert (patched.annotations, patched.spec.hard) == ({"a": "1", "b": "2"}, {"limits.cpu": "3"})
    stale = {"metadata": {"resourceVersion": created.metadata.resource_version, "annotations": {"a": "9"}}}
    with pytest.raises(errors.Conflict):
        await quotas.merge_patch(stale, name="q", namespace=namespace)
    ops = [
        {"op": "test", "path": "/metadata/annotations/a", "value": "1"},
        {"op": "remove", "path": "/metadata/annotations/a"},
    ]
    assert (await quotas.json_patch(ops, name="q", namespace=namespace)).annotations == {"b": "2"}
    with pytest.raises(errors.Invalid):
        await quotas.json_patch(ops, name="q", namespace=namespace)
    with pytest.raises(errors.Conflict):
        await quotas.delete(name="q", namespace=namespace, uid="another")
    await quotas.delete(name="q", namespace=namespace, uid=created.uid)
    with pytest.raises(errors.NotFound):
        await quotas.get(name="q", namespace=namespace)


async def test_a_subresource_is_patched_by_itself(
    quotas: ResourceClient[ResourceQuota], namespace: str
) -> None:
    await quotas.create(quota("q"), namespace=namespace)
    patch = {"status": {"used": {"limits.cpu": "1"}}, "spec": {"hard": {"limits.cpu": "9"}}}
    patched = await quotas.merge_patch(patch, name="q", namespace=namespace, subresource="status")
    assert patched.spec.hard == {"limits.cpu": "3"}


class MisspeltSpec(Struct):
    hard: dict[str, str] | None = msgspec.field(name="hrad", default=None)


class MisspeltQuota(Object):
    spec: MisspeltSpec = MisspeltSpec()


async def test_with_a_strict_client_a_misspelt_name_in_a_struct_or_patch_is_refused(
    cluster: Cluster, quotas: ResourceClient[ResourceQuota], namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    await quotas.create(quota("q"), namespace=namespace)
    kind = registry.Resource("", "v1", "resourcequotas", "ResourceQuota", MisspeltQuota)
    async with Client(load_config(str(cluster.kubeconfig)), strict=True) as strict:
        found = await strict.resource(kind).get(name="q", namespace=namespace)
        with pytest.raises(errors.ApiError, match=r'unknown field "spec\.hrad"'):
            await strict.resource(kind).update(found, edit(found, spec={"hard": {"pods": "1"}}))
        with pytest.raises(errors.ApiError, match=r'unknown field "spec\.hrd"'):
            await strict.resource(registry.RESOURCE_QUOTAS).merge_patch(
                {"spec": {"hrd": {}}}, name="q", namespace=namespace
            )
    await quotas.merge_patch({"spec": {"hrd": {}}}, name="q", namespace=namespace)
    assert 'the API server warns: unknown field "spec.hrd"' in caplog.text


async def test_pages_and_selectors(quotas: ResourceClient[ResourceQuota], namespace: str) -> None:
    for number in range(5):
        await quotas.create(quota(f"q{number}"), namespace=namespace)
    names, continue_ = [], ""
    for expected in (2, 2, 1):
        page = await quotas.list_page(namespace, limit=2, continue_=continue_)
        names += [item.name for item in page.items]
        continue_ = page.metadata.continue_
        assert len(page.items) == expected
    assert (names, continue_) == ([f"q{number}" for number in range(5)], "")
    chosen = await quotas.list(namespace, field_selector="metadata.name=q3")
    assert [item.name for item in chosen] == ["q3"]


async def test_a_watch_list_tells_what_is_there_and_then_what_changes(
    quotas: ResourceClient[ResourceQuota], namespace: str
) -> None:
    await quotas.create(quota("q"), namespace=namespace)
    seen = []
    async with asyncio.timeout(20), quotas.watch(namespace, send_initial_events=True) as events:
        async for event in events:
            seen.append((event.type, event.object.name if event.object else event.initial_events_end))
            if event.initial_events_end:
                await quotas.delete(name="q", namespace=namespace)
            if event.type == "DELETED":
                break
    assert [each for each in seen if each[0] != "MODIFIED"] == [
        ("ADDED", "q"),
        ("BOOKMARK", True),
        ("DELETED", "q"),
    ]


async def test_a_version_of_long_ago_is_gone(client: Client) -> None:
    machines = client.resource(VIRTUAL_MACHINE_INSTANCES)
    # 1 is from before this kind was installed, and with it the server's memory of its changes.
    async with asyncio.timeout(20), machines.watch(resource_version="1") as events:
        event = await anext(events)
    assert event.type == "ERROR"
    assert event.status is not None
    assert isinstance(errors.error_from_status(event.status), errors.Gone)


async def test_a_kind_that_is_not_installed_is_not_served(client: Client) -> None:
    things = client.resource(NOTHING_OF_THIS_KIND)
    with pytest.raises(errors.NotServed):
        await things.list()
    with pytest.raises(errors.NotServed):
        async with things.watch():
            pass


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
        to: base64.b64decode(content["users"][0]["user"][name]).decode()
        for to, name in (
            ("clientCertificateData", "client-certificate-data"),
            ("clientKeyData", "client-key-data"),
        )
    }
    plugin = Plugin(tmp_path)
    plugin.answers(pair)
    content["users"][0]["user"] = plugin.user()
    path = tmp_path / "config"
    path.write_text(json.dumps(content))
    async with Client(load_config(str(path))) as client:
        assert await client.resource(registry.NAMESPACES).get(name="default")


async def test_wrong_credentials_are_unauthorized(cluster: Cluster, tmp_path: Path) -> None:
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": "not-a-token"}
    path = tmp_path / "config"
    path.write_text(json.dumps(content))
    async with Client(load_config(str(path))) as client:
        with pytest.raises(errors.Unauthorized):
            await client.resource(registry.NAMESPACES).list()


async def test_a_server_that_is_killed_breaks_a_watch_and_is_found_again(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    namespaces = client.resource(registry.NAMESPACES)
    broken = asyncio.Event()

    async def follow() -> None:
        try:
            async with namespaces.watch() as events:
                async for _ in events:
                    pass
        except errors.Unreachable:
            broken.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.restart, "kube-apiserver")
        await broken.wait()
        while True:
            try:
                assert (await namespaces.get(name=namespace)).name == namespace
                break
            except (errors.Unreachable, errors.ServerError, errors.Forbidden, errors.Unauthorized):
                await asyncio.sleep(0.2)
