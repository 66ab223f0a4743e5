"""The contract of the fake cluster, run on a real API server as well: what a test on the fake shows is true of both."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubeloop.api import registry
from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import edit, owner_reference
from kubeloop.client.client import Client
from kubeloop.client.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotServed,
    PatchConflict,
    ServerError,
)
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import retry_on_conflict
from kubeloop.client.transport import MERGE_PATCH
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from pkg.api.harvesterhci import SETTINGS
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS as BUDGETS
from tests.kubeloop.client.rig import Quotas

QUOTAS = registry.RESOURCE_QUOTAS
THINGS = registry.Resource("nowhere.example", "v1", "things", "Thing", Namespace)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def real(request: pytest.FixtureRequest) -> Path | None:
    """The real API server's kubeconfig; None: the fake."""
    return None if request.param == "fake" else request.getfixturevalue("cluster").kubeconfig


@pytest.fixture
async def client(real: Path | None) -> AsyncIterator[Client]:
    if real is None:
        yield FakeCluster(QUOTAS, registry.NAMESPACES, registry.PODS, registry.SECRETS, SETTINGS, BUDGETS).client()
        return
    async with Client(load_config(str(real)), strict=True) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    namespace_obj = await client.resource(registry.NAMESPACES).create({"metadata": {"generateName": "contract-"}})
    return namespace_obj.name


@pytest.fixture
def quotas(client: Client) -> Quotas:
    return client.resource(QUOTAS)


def quota(name: str = "q", cpu: str = "3", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {"hard": {"limits.cpu": cpu}}}


async def stable(read: Callable[[], Awaitable[ResourceQuota]]) -> ResourceQuota:
    """The object once the quota controller of a real cluster has let it rest."""
    previous = await read()
    while True:
        await asyncio.sleep(0.05)
        now = await read()
        if now == previous:
            return now
        previous = now


async def test_create_get_and_delete(quotas: Quotas, namespace: str) -> None:
    obj = await quotas.create(quota(labels={"a": "b"}), namespace=namespace)
    assert (obj.name, obj.namespace, obj.kind, obj.api_version) == ("q", namespace, "ResourceQuota", "v1")
    assert obj.uid
    assert obj.metadata.creation_timestamp
    assert (await quotas.get(name="q", namespace=namespace)).uid == obj.uid
    await quotas.delete(name="q", namespace=namespace, uid=obj.uid)
    with pytest.raises(NotFound, match=r'^resourcequotas "q" not found$'):
        await quotas.get(name="q", namespace=namespace)


async def test_generate_name(quotas: Quotas, namespace: str) -> None:
    body = {"metadata": {"generateName": "default-"}, "spec": {"hard": {"limits.cpu": "3"}}}
    names = {(await quotas.create(body, namespace=namespace)).name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("default-") and len(name) == len("default-") + 5 for name in names)


REASONS = {
    AlreadyExists: (409, "AlreadyExists"),
    Invalid: (422, "Invalid"),
    PatchConflict: (422, "Invalid"),
    ServerError: (500, ""),
    BadRequest: (400, "BadRequest"),
    ApiError: (405, "MethodNotAllowed"),
    NotFound: (404, "NotFound"),
    Conflict: (409, "Conflict"),
}
"""The status and reason of an answer by the class that it becomes."""
Ref = dict[str, Any]
REFUSED: dict[str, tuple[type[ApiError], Callable[[Quotas, Ref], Any]]] = {
    "a second create": (AlreadyExists, lambda q, ref: q.create(quota(**ref))),
    "a create without a name": (Invalid, lambda q, ref: q.create({}, namespace=ref["namespace"])),
    "a create with a name that is none": (Invalid, lambda q, ref: q.create(quota(**ref | {"name": "Not_A_Name"}))),
    "a create with a resourceVersion": (
        ServerError,
        lambda q, ref: q.create(quota("new", resourceVersion="1", namespace=ref["namespace"])),
    ),
    "a create in another namespace than it says": (
        BadRequest,
        lambda q, ref: q.create(quota("new", namespace="another"), namespace=ref["namespace"]),
    ),
    "a create without a namespace": (BadRequest, lambda q, ref: q.create(quota("new"))),
    "a patch of what is not there": (NotFound, lambda q, ref: q.merge_patch({}, **ref | {"name": "x"})),
    "a delete of what is not there": (NotFound, lambda q, ref: q.delete(**ref | {"name": "x"})),
    "a merge patch of an old version": (Conflict, lambda q, ref: q.merge_patch(meta("resourceVersion"), **ref)),
    "a merge patch of another uid": (Invalid, lambda q, ref: q.merge_patch(meta("uid"), **ref)),
    "a delete of another uid": (Conflict, lambda q, ref: q.delete(**ref, uid="another")),
    "a JSON patch with an operation that is none": (
        PatchConflict,
        lambda q, ref: q.json_patch([op("remov", "/metadata/labels")], **ref),
    ),
    "a JSON patch whose test fails": (PatchConflict, lambda q, ref: q.json_patch([op("test", "/metadata/uid")], **ref)),
    "a JSON patch of a path that is not there": (
        PatchConflict,
        lambda q, ref: q.json_patch([op("remove", "/spec/none")], **ref),
    ),
    "a JSON patch of an old version": (
        Conflict,
        lambda q, ref: q.json_patch([op("replace", "/metadata/resourceVersion")], **ref),
    ),
    "another name": (BadRequest, lambda q, ref: q.merge_patch(meta("name"), **ref)),
    "a field selector that the kind does not have": (
        BadRequest,
        lambda q, ref: q.list(ref["namespace"], field_selector="spec.x=y"),
    ),
    "a label selector that is none": (BadRequest, lambda q, ref: q.list(ref["namespace"], label_selector="a in b")),
    "a watch of a label selector that is none": (
        BadRequest,
        lambda q, ref: first_events(q.watch(ref["namespace"], label_selector="a in b"), 1),
    ),
}


def meta(field: str) -> dict[str, Any]:
    """A patch of it."""
    return {"metadata": {field: "1"}}


def op(name: str, path: str) -> dict[str, Any]:
    return {"op": name, "path": path, "value": "1"}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused(case: str, quotas: Quotas, namespace: str) -> None:
    kind, request = REFUSED[case]
    await quotas.create(quota(), namespace=namespace)
    with pytest.raises(kind) as caught:
        await request(quotas, {"name": "q", "namespace": namespace})
    assert type(caught.value) is kind
    status, reason = REASONS[kind]
    assert (caught.value.status, reason or caught.value.reason) == (status, caught.value.reason)


async def test_a_custom_kind_that_does_not_say_its_kind_is_refused(client: Client) -> None:
    with pytest.raises(BadRequest, match="Object 'Kind' is missing"):
        await client.transport.request("POST", SETTINGS.path(), body=b'{"metadata":{"name":"a"}}')


async def test_a_patch_of_another_type_is_refused(client: Client, namespace: str) -> None:
    await client.resource(QUOTAS).create(quota(), namespace=namespace)
    with pytest.raises(ApiError) as caught:
        await client.resource(QUOTAS).transport.request("PATCH", QUOTAS.path(namespace, "q"), body=b"{}")
    assert (caught.value.status, caught.value.reason) == (415, "UnsupportedMediaType")


async def test_a_kind_that_is_not_installed(client: Client) -> None:
    things = client.resource(THINGS)
    for request in (things.list(), things.get(name="x", namespace="default")):
        with pytest.raises(NotServed):
            await request
    with pytest.raises(NotServed):
        async with things.watch():
            pass
    assert not await things.is_served()
    assert await client.resource(QUOTAS).is_served()
    assert await client.resource(SETTINGS).is_served()


async def test_a_write_that_changes_nothing_is_no_new_version(quotas: Quotas, namespace: str) -> None:
    await quotas.create(quota(labels={"a": "b"}), namespace=namespace)
    original = await stable(lambda: quotas.get(name="q", namespace=namespace))
    patch: dict[str, Any]
    for patch in ({}, {"metadata": {"labels": {"a": "b"}}}, {"metadata": {"annotations": {}}}):
        assert (await quotas.merge_patch(patch, name="q", namespace=namespace)) == original


async def test_patches(quotas: Quotas, namespace: str) -> None:
    await quotas.create(quota(annotations={"a": "1", "b": "2"}), namespace=namespace)
    patch = {"metadata": {"annotations": {"a": None, "c": "3"}}, "spec": {"hard": {"pods": "5"}}}
    patched = await quotas.merge_patch(patch, name="q", namespace=namespace)
    assert patched.annotations == {"b": "2", "c": "3"}
    assert patched.hard == {"limits.cpu": "3", "pods": "5"}
    ops: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/annotations/b", "value": "2"},
        {"op": "add", "path": "/metadata/annotations/x~1y", "value": "4"},
        {"op": "move", "from": "/metadata/annotations/c", "path": "/metadata/annotations/d"},
        {"op": "replace", "path": "/spec/hard", "value": {"limits.cpu": "4"}},
    ]
    patched = await quotas.json_patch(ops, name="q", namespace=namespace)
    assert patched.annotations == {"b": "2", "x/y": "4", "d": "3"}
    assert patched.hard == {"limits.cpu": "4"}


async def test_update_writes_what_differs_of_an_unchanged_object(quotas: Quotas, namespace: str) -> None:
    old = await quotas.create(quota(), namespace=namespace)
    old = await stable(lambda: quotas.get(name="q", namespace=namespace))
    new = await quotas.update(old, edit(old, spec={"hard": {"pods": "1"}}, metadata={"labels": {"a": "b"}}))
    assert (new.hard, new.labels) == ({"pods": "1"}, {"a": "b"})
    with pytest.raises(Conflict, match="the object has been modified"):
        await quotas.update(old, edit(old, spec={"hard": {"pods": "2"}}))

    async def attempt(_again: bool) -> ResourceQuota:
        obj = await quotas.get(name="q", namespace=namespace)
        return await quotas.update(obj, edit(obj, spec={"hard": {"pods": "3"}}))

    assert (await retry_on_conflict(attempt)).hard == {"pods": "3"}


async def test_create_or_update(quotas: Quotas, namespace: str) -> None:
    def labelled(obj: ResourceQuota) -> ResourceQuota:
        return edit(obj, metadata={"labels": {"by": "update"}})

    typed = ResourceQuota(metadata=ObjectMeta(name="q"))
    created = await quotas.create_or_update(typed, labelled, namespace=namespace)
    assert created.labels == {}
    await stable(lambda: quotas.get(name="q", namespace=namespace))
    assert (await quotas.create_or_update(quota(), labelled, namespace=namespace)).labels == {"by": "update"}


async def test_status_is_written_through_its_subresource_alone(client: Client, namespace: str) -> None:
    budgets = client.resource(BUDGETS)
    body = {"metadata": {"name": "b"}, "spec": {"additionalMigrationResources": {"limits.cpu": "1"}}}
    status = {"additionalMigrationResources": {"limits.cpu": "2"}}
    obj = await budgets.create(body | {"status": status}, namespace=namespace)
    assert not obj.status.additional_migration_resources
    assert obj.metadata.generation == 1
    both = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"additionalMigrationResources": {"pods": "1"}},
        "status": {"additionalMigrationResources": {"limits.cpu": "9"}},
    }
    changed = await budgets.merge_patch(
        {"status": status, "metadata": {"labels": {"not": "written"}}},
        name="b",
        namespace=namespace,
        subresource="status",
    )
    assert changed.status.additional_migration_resources == {"limits.cpu": "2"}
    assert (changed.labels, changed.metadata.generation) == ({}, 1)
    await client.transport.request(
        "PATCH", BUDGETS.path(namespace, "b"), body=msgspec.json.encode(both), content_type=MERGE_PATCH
    )
    patched = await budgets.get(name="b", namespace=namespace)
    assert patched.status.additional_migration_resources == {"limits.cpu": "2"}
    assert (patched.labels, patched.metadata.generation) == ({"a": "b"}, 2)


async def test_a_definition_without_a_word_on_status_asks_the_server(client: Client, namespace: str) -> None:
    spec: dict[str, Any] = {"spec": {"additionalMigrationResources": {}}}
    cases: list[tuple[Any, dict[str, Any], bool]] = [(BUDGETS, spec, True), (registry.SECRETS, {}, False)]
    for resource, fields, has in cases:
        unsaid: ResourceClient[Any] = ResourceClient(
            client.transport, dataclasses.replace(resource, status_subresource=None)
        )
        body = {"metadata": {"generateName": "unsaid-"}, **fields}
        obj = await unsaid.create(body, namespace=namespace)
        with pytest.raises(BadRequest, match=f"status of {resource.kind} is written"):
            await unsaid.merge_patch(
                {"status": {}}, name=obj.name, namespace=namespace, subresource="" if has else "status"
            )


async def test_a_kind_without_a_namespace_and_without_a_status(client: Client) -> None:
    settings = client.resource(SETTINGS)
    obj = await settings.create({"metadata": {"generateName": "contract-"}, "value": "1"})
    assert obj.namespace == ""
    assert (await settings.merge_patch({"value": "2"}, name=obj.name)).value == "2"
    raw = settings.transport.request(
        "PATCH", f"{SETTINGS.path('', obj.name)}/status", body=b"{}", content_type=MERGE_PATCH
    )
    with pytest.raises(NotFound):
        await raw
    await settings.delete(name=obj.name)


async def test_finalizers_hold_an_object_that_is_deleted(quotas: Quotas, namespace: str) -> None:
    await quotas.create(quota(finalizers=["example.org/a"]), namespace=namespace)
    await quotas.delete(name="q", namespace=namespace)
    obj = await quotas.get(name="q", namespace=namespace)
    assert obj.deleting
    patch = {"metadata": {"finalizers": ["example.org/a", "example.org/b"]}}
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await quotas.merge_patch(patch, name="q", namespace=namespace)
    await quotas.merge_patch({"metadata": {"finalizers": None}}, name="q", namespace=namespace)
    with pytest.raises(NotFound):
        await quotas.get(name="q", namespace=namespace)


async def test_an_eviction_deletes_a_pod(client: Client, namespace: str) -> None:
    pods = client.resource(registry.PODS)
    with pytest.raises(NotFound):
        await pods.evict(name="p", namespace=namespace)
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    async def created() -> bool:
        """Reports whether the namespace has its service account."""
        with contextlib.suppress(Forbidden):
            return bool(await pods.create(pod, namespace=namespace))
        return False

    await until(created)
    with pytest.raises(Conflict):
        await pods.evict(name="p", namespace=namespace, uid="another")
    await pods.evict(name="p", namespace=namespace, grace_period_seconds=0)
    with pytest.raises(NotFound):
        await pods.get(name="p", namespace=namespace)


async def test_a_dry_run_is_judged_and_not_kept(quotas: Quotas, namespace: str) -> None:
    tried = quotas.dry_run()
    obj = await tried.create(quota("tried"), namespace=namespace)
    assert (obj.name, obj.hard) == ("tried", {"limits.cpu": "3"})
    with pytest.raises(NotFound):
        await tried.get(name="tried", namespace=namespace)
    original = await quotas.create(quota(), namespace=namespace)
    original = await stable(lambda: quotas.get(name="q", namespace=namespace))
    assert (await tried.update(original, edit(original, spec={"hard": {"pods": "1"}}))).hard == {"pods": "1"}
    await tried.delete(name="q", namespace=namespace)
    assert await quotas.get(name="q", namespace=namespace) == original
    with pytest.raises(AlreadyExists):
        await tried.create(quota(), namespace=namespace)


async def test_a_client_of_the_metadata_alone_writes_too(client: Client, namespace: str) -> None:
    metadata = client.resource(QUOTAS.metadata())
    await client.resource(QUOTAS).create(quota(), namespace=namespace)
    patched = await metadata.merge_patch({"metadata": {"labels": {"a": "b"}}}, name="q", namespace=namespace)
    assert patched.labels == {"a": "b"}
    listed = await metadata.list(namespace)
    assert [owner_reference(obj).kind for obj in (patched, *listed)] == ["ResourceQuota"] * 2
    await metadata.delete(name="q", namespace=namespace, uid=patched.uid)
    assert await metadata.list(namespace) == []


SELECTED = {
    "app=web": {"a", "b"},
    "app==web,tier=front": {"a"},
    "app!=web": {"c", "d"},
    "app": {"a", "b", "c"},
    "!app": {"d"},
    "app in (web, db),tier notin (front)": {"b", "c"},
}


@pytest.mark.parametrize("selector", SELECTED)
async def test_label_selector(selector: str, quotas: Quotas, namespace: str) -> None:
    labels = {"a": {"app": "web", "tier": "front"}, "b": {"app": "web"}, "c": {"app": "db"}, "d": {}}
    for name, its in labels.items():
        await quotas.create(quota(name, labels=its), namespace=namespace)
    names = await quotas.list(namespace, label_selector=selector)
    assert {obj.name for obj in names} == SELECTED[selector]


async def test_field_selector_and_pages(quotas: Quotas, namespace: str) -> None:
    for name in "abcde":
        await quotas.create(quota(name), namespace=namespace)
    items = await quotas.list(namespace, field_selector="metadata.name=c")
    assert [obj.name for obj in items] == ["c"]
    items = await quotas.list(namespace, field_selector="metadata.name!=c")
    assert [obj.name for obj in items] == ["a", "b", "d", "e"]
    page = await quotas.list_page(namespace, limit=2)
    names = [[obj.name for obj in page.items]]
    while page.metadata.continue_:
        page = await quotas.list_page(namespace, limit=2, continue_=page.metadata.continue_)
        names.append([obj.name for obj in page.items])
    assert names == [["a", "b"], ["c", "d"], ["e"]]


async def test_items_of_a_list_say_what_they_are(client: Client, namespace: str) -> None:
    await client.resource(QUOTAS).create(quota(), namespace=namespace)
    await client.resource(BUDGETS).create({"metadata": {"name": "b"}, "spec": {"additionalMigrationResources": {}}},
                                          namespace=namespace)  # fmt: skip
    kinds: tuple[registry.Resource[Any], ...] = (QUOTAS, BUDGETS)
    for resource in kinds:
        items = await client.resource(resource).list(namespace)
        assert [(item.api_version, item.kind) for item in items] == [(resource.api_version, resource.kind)]


async def first_events(watch: Any, count: int) -> list[tuple[str, str]]:
    """(type, name) of the first events, bookmarks aside."""
    changes: list[tuple[str, str]] = []
    async with asyncio.timeout(10), watch as events:
        async for event in events:
            if event.type != "BOOKMARK" and event.object is not None:
                changes.append((event.type, event.object.name))
            if len(changes) == count or event.initial_events_end:
                return changes
    return changes


async def test_a_watch_brings_what_happens_after_its_version(client: Client, namespace: str) -> None:
    secrets = client.resource(registry.SECRETS)
    await secrets.create({"metadata": {"name": "before"}}, namespace=namespace)
    version = (await secrets.list(namespace)).resource_version
    watch = secrets.watch(namespace, resource_version=version)
    await client.resource(QUOTAS).create(quota(), namespace=namespace)
    await secrets.create({"metadata": {"name": "s"}}, namespace=namespace)
    await secrets.merge_patch({"data": {"a": "Yg=="}}, name="s", namespace=namespace)
    await secrets.delete(name="s", namespace=namespace)
    assert await first_events(watch, 3) == [("ADDED", "s"), ("MODIFIED", "s"), ("DELETED", "s")]


async def test_a_watch_list_brings_everything_and_says_when(client: Client, namespace: str) -> None:
    secrets = client.resource(registry.SECRETS)
    for name in "ab":
        await secrets.create({"metadata": {"name": name}}, namespace=namespace)
    events = await first_events(secrets.watch(namespace, send_initial_events=True), 100)
    assert sorted(events) == [("ADDED", "a"), ("ADDED", "b")]


async def test_the_data_of_a_secret_is_base64_or_text(client: Client, namespace: str) -> None:
    secrets = client.resource(registry.SECRETS)
    metadata = {"name": "s", "namespace": namespace}
    with pytest.raises(BadRequest, match="cannot be handled as a Secret"):
        await secrets.create({"metadata": metadata, "data": {"a": "not base64"}})
    created = await secrets.create({"metadata": metadata, "stringData": {"a": "b"}})
    copied = await secrets.create(edit(created, metadata={"name": "", "generate_name": "copy-"}))
    assert (created.data, copied.data, copied.name[:5]) == ({"a": "Yg=="}, {"a": "Yg=="}, "copy-")
    ref = {"name": "s", "namespace": namespace}
    with pytest.raises((BadRequest, Invalid)):
        await secrets.merge_patch({"data": {"a": "not base64"}}, **ref)
    assert (await secrets.merge_patch({"stringData": {"c": "b"}}, **ref)).data == {"a": "Yg==", "c": "Yg=="}


async def test_objects_enter_and_leave_a_selective_watch(client: Client, namespace: str) -> None:
    secrets = client.resource(registry.SECRETS)
    version = (await secrets.list(namespace)).resource_version
    watch = secrets.watch(namespace, resource_version=version, label_selector="seen=yes")
    await secrets.create({"metadata": {"name": "s"}}, namespace=namespace)
    for label in ("yes", "no"):
        patch = {"metadata": {"labels": {"seen": label}}}
        await secrets.merge_patch(patch, name="s", namespace=namespace)
    assert await first_events(watch, 2) == [("ADDED", "s"), ("DELETED", "s")]


async def test_a_watch_ends_when_it_was_asked_to(client: Client, namespace: str) -> None:
    started = asyncio.get_running_loop().time()
    async with client.resource(QUOTAS).watch(namespace, timeout_seconds=1) as events:
        assert [event.type for event in [event async for event in events]][:1] == ["BOOKMARK"]
    assert 0.9 < asyncio.get_running_loop().time() - started < 5


async def test_of_writers_that_saw_the_same_version_one_gets_through(quotas: Quotas, namespace: str) -> None:
    await quotas.create(quota(), namespace=namespace)
    obj = await stable(lambda: quotas.get(name="q", namespace=namespace))
    written = 0

    async def write(number: int) -> None:
        nonlocal written
        with contextlib.suppress(Conflict):
            await quotas.patch(obj, {"metadata": {"annotations": {"by": str(number)}}})
            written += 1

    await asyncio.gather(*(write(number) for number in range(5)))
    assert written == 1
