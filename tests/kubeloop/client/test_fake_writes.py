"""The same contract for server-side apply, metadata and reviews: on the fake cluster and on a real API server."""

import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import Object, ObjectMeta, OwnerReference, Struct
from kubeloop.api.objects import owner_reference
from kubeloop.api.registry import Resource
from kubeloop.client import errors
from kubeloop.client.apply_set import ApplySet
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from kubeloop.testing.fake.metadata import check_metadata
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.reviews import admission_request


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    if request.param == "fake":
        yield FakeCluster().client()
        return
    kubeconfig: Path = request.getfixturevalue("cluster").kubeconfig
    async with Client(load_config(str(kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    return (await client.resource(registry.NAMESPACES).create({"metadata": {"generateName": "writes-"}})).name


async def test_what_is_applied_no_more_is_removed(client: Client, namespace: str) -> None:
    maps = client.resource(registry.CONFIG_MAPS)
    ref: dict[str, str] = {"name": "a", "namespace": namespace}

    async def applied(manager: str, force: bool = False, **data: str) -> dict[str, str]:
        body = {"metadata": ref, "data": data}
        return (await maps.apply(body, field_manager=manager, force=force)).data

    assert await applied("one", x="1", y="1") == {"x": "1", "y": "1"}
    assert await applied("two", z="2") == {"x": "1", "y": "1", "z": "2"}
    assert await applied("one", x="1") == {"x": "1", "z": "2"}
    with pytest.raises(errors.Conflict, match=r"conflict with \"one\""):
        await applied("two", x="2")
    assert await applied("two", force=True, x="2") == {"x": "2"}
    tried = await maps.dry_run().apply({"metadata": ref, "data": {}}, field_manager="two")
    assert (tried.data, (await maps.get(**ref)).data) == ({}, {"x": "2"})


async def test_a_status_is_applied_through_its_subresource_alone(client: Client, namespace: str) -> None:
    budgets = client.resource(registry.POD_DISRUPTION_BUDGETS)
    metadata = {"name": "b", "namespace": namespace}
    await budgets.create({"metadata": metadata, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}})
    counts = {"currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0, "expectedPods": 2}
    body = {"metadata": metadata, "status": counts}
    with pytest.raises(errors.BadRequest, match="status of PodDisruptionBudget is written through its subresource"):
        await budgets.apply(body, field_manager="one")
    budget = await budgets.apply(body, field_manager="one", subresource="status")
    assert (budget.status.expected_pods, budget.spec.min_available) == (2, 1)


async def test_an_apply_set_deletes_what_it_no_longer_holds(client: Client, namespace: str) -> None:
    maps, secrets = client.resource(registry.CONFIG_MAPS), client.resource(registry.SECRETS)
    owner = await client.resource(registry.NAMESPACES).get(name=namespace)
    kinds = (registry.CONFIG_MAPS, registry.SECRETS)
    other_set, own_set = (
        ApplySet(client, set_id, kinds, field_manager="test", owner=owner, namespace=namespace)
        for set_id in ("other", "ours")
    )

    def bodies(*names: str) -> list[dict[str, Any]]:
        return [{"metadata": {"name": name, "labels": {"by": "test"}}} for name in names]

    async def stored_names() -> list[str]:
        objects = [*await maps.list(namespace, label_selector="by=test"), *await secrets.list(namespace)]
        return [obj.name for obj in objects]

    await other_set.apply({registry.CONFIG_MAPS: bodies("theirs")})
    await own_set.apply({registry.CONFIG_MAPS: bodies("a", "b"), registry.SECRETS: bodies("c")})
    assert await stored_names() == ["a", "b", "theirs", "c"]
    again = ApplySet(client, "ours", kinds, field_manager="test", owner=owner, namespace=namespace)
    typed = ConfigMap(metadata=ObjectMeta(name="b", labels={"by": "test"}))
    assert [obj.name for obj in await again.apply({registry.CONFIG_MAPS: [typed]})] == ["b"]
    assert await stored_names() == ["b", "theirs"]
    with pytest.raises(ValueError, match="pods: not among the kinds of the set"):
        await own_set.apply({registry.PODS: bodies("p")})


@pytest.fixture
def maps(client: Client) -> ResourceClient[ConfigMap]:
    return client.resource(registry.CONFIG_MAPS)


Maps = ResourceClient[ConfigMap]


async def test_a_typed_object_is_applied(maps: Maps, namespace: str) -> None:
    desired = ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace, labels={"x": "y"}), data={"k": "v"})
    obj = await maps.apply(desired, field_manager="one")
    assert (obj.labels, obj.data) == ({"x": "y"}, {"k": "v"})
    # As it was read, with its version and uid: they are not applied.
    again = await maps.apply(ConfigMap(metadata=obj.metadata, data={"k": "w"}), field_manager="one")
    assert (again.data, again.uid) == ({"k": "w"}, obj.uid)


async def test_what_an_update_set_is_taken_over_by_force_alone(maps: Maps, namespace: str) -> None:
    ref = {"name": "a", "namespace": namespace}
    await maps.create({"metadata": ref, "data": {"k": "v", "same": "s"}})
    body = {"metadata": ref, "data": {"k": "w", "same": "s"}}
    with pytest.raises(errors.Conflict, match=r"\.data\.k"):
        await maps.apply(body, field_manager="one")
    assert (await maps.apply(body, field_manager="one", force=True)).data == {"k": "w", "same": "s"}
    # The creator wants `same` too: it stays when the applier no longer does.
    assert (await maps.apply({"metadata": ref}, field_manager="one")).data == {"same": "s"}
    await maps.apply({"metadata": ref, "data": {"mine": "1"}}, field_manager="one")
    await maps.merge_patch({"data": {"mine": "2"}}, **ref)
    with pytest.raises(errors.Conflict, match=r"\.data\.mine"):
        await maps.apply({"metadata": ref, "data": {"mine": "1"}}, field_manager="one")


async def test_finalizers_and_owners_are_applied_item_by_item(maps: Maps, namespace: str) -> None:
    ref = {"name": "a", "namespace": namespace}
    owner = owner_reference(await maps.create({"metadata": {"name": "o"}}, namespace=namespace))
    await maps.create({"metadata": {**ref, "finalizers": ["example.org/theirs"]}})
    metadata = {**ref, "finalizers": ["example.org/ours"], "ownerReferences": [owner]}
    obj = await maps.apply({"metadata": metadata}, field_manager="one")
    assert sorted(obj.metadata.finalizers or []) == ["example.org/ours", "example.org/theirs"]
    assert [reference.name for reference in obj.metadata.owner_references or []] == ["o"]
    obj = await maps.apply({"metadata": ref}, field_manager="one")
    assert (obj.metadata.finalizers, obj.metadata.owner_references) == (["example.org/theirs"], None)
    await maps.merge_patch({"metadata": {"finalizers": None}}, **ref)


async def test_an_apply_that_changes_nothing_is_no_new_version(maps: Maps, namespace: str) -> None:
    body = {"metadata": {"name": "a", "namespace": namespace}, "data": {"k": "v"}}
    obj = await maps.apply(body, field_manager="one")
    assert (await maps.apply(body, field_manager="one")).metadata.resource_version == obj.metadata.resource_version


LONG = "x" * 64
OWNER = OwnerReference(api_version="v1", kind="ConfigMap", name="a", uid="u")
METADATA: dict[str, tuple[dict[str, Any], bool]] = {
    "a label": ({"labels": {"example.org/a": "b.c_d-e"}}, True),
    "an empty label": ({"labels": {"a": ""}}, True),
    "a label's value with a space": ({"labels": {"a": "b c"}}, False),
    "a label's value of 64 characters": ({"labels": {"a": LONG}}, False),
    "a label's key with a space": ({"labels": {"a b": "c"}}, False),
    "a label's key of 64 characters": ({"labels": {LONG: "c"}}, False),
    "a label's prefix that is no domain": ({"labels": {"A_b/c": "d"}}, False),
    "an annotation in capitals": ({"annotations": {"Example.org/A": "b c"}}, True),
    "an annotation's key with two slashes": ({"annotations": {"a/b/c": "d"}}, False),
    "annotations of 300 kB": ({"annotations": {"a": "x" * 300_000}}, False),
    "a finalizer": ({"finalizers": ["example.org/f"]}, True),
    "a finalizer without a domain": ({"finalizers": ["f"]}, False),
    "the garbage collector's finalizer": ({"finalizers": ["orphan"]}, True),
    "an owner": ({"ownerReferences": [OWNER]}, True),
    "an owner without a uid": ({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}]}, False),
    "two owners that manage it": (
        {"ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": n, "uid": n, "controller": True} for n in "ab"]},
        False,
    ),
    "a name of 253 characters": ({"name": "a" * 253}, True),
    "a name of 254 characters": ({"name": "a" * 254}, False),
}


@pytest.mark.parametrize(("group", "is_right"), [("storage.k8s.io", False), ("cluster.x-k8s.io", True)])
def test_only_built_in_kinds_want_a_domain_in_finalizers(group: str, is_right: bool) -> None:
    """Cluster API's finalizers have none; its group ends like Kubernetes' own."""
    kind = Resource(group, "v1", "things", "Thing", Object)
    with contextlib.nullcontext() if is_right else pytest.raises(errors.Invalid):
        check_metadata(kind, {"finalizers": ["cluster.example.org"]}, {})


@pytest.mark.parametrize(("metadata", "is_right"), METADATA.values(), ids=METADATA)
async def test_metadata(metadata: dict[str, Any], is_right: bool, maps: Maps, namespace: str) -> None:
    ref = {"name": "a", "namespace": namespace}
    if is_right:
        await maps.create({"metadata": ref | metadata})
        return
    with pytest.raises(errors.Invalid):
        await maps.create({"metadata": ref | metadata})
    if "name" not in metadata:
        await maps.create({"metadata": ref})
        with pytest.raises(errors.Invalid):
            await maps.merge_patch({"metadata": metadata}, **ref)


async def test_names_of_namespaces_and_services_are_labels(client: Client, namespace: str) -> None:
    for name in ("a" * 64, "a.b"):
        with pytest.raises(errors.Invalid):
            await client.resource(registry.NAMESPACES).create({"metadata": {"name": name}})
        service = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}
        with pytest.raises(errors.Invalid):
            await client.resource(registry.SERVICES).create(service, namespace=namespace)


async def test_a_long_generate_name_is_cut(maps: Maps, namespace: str) -> None:
    obj = await maps.create({"metadata": {"generateName": "b" * 100}}, namespace=namespace)
    assert (obj.name[:58], len(obj.name)) == ("b" * 58, 63)


IMMUTABLE: dict[str, tuple[dict[str, Any], type[errors.ApiError]]] = {
    "the namespace": ({"namespace": "another"}, errors.BadRequest),
    "the deletion's time": ({"deletionTimestamp": "2020-01-01T00:00:00Z"}, errors.Invalid),
}


@pytest.mark.parametrize(("metadata", "error"), IMMUTABLE.values(), ids=IMMUTABLE)
async def test_a_patch_cannot_change(
    metadata: dict[str, Any], error: type[errors.ApiError], maps: Maps, namespace: str
) -> None:
    await maps.create({"metadata": {"name": "a"}}, namespace=namespace)
    with pytest.raises(error):
        await maps.merge_patch({"metadata": metadata}, name="a", namespace=namespace)


async def test_a_json_patch_replaces_a_key_that_is_not_there(maps: Maps, namespace: str) -> None:
    await maps.create({"metadata": {"name": "a"}, "data": {"k": "v"}}, namespace=namespace)
    operation = {"op": "replace", "path": "/data/new", "value": "w"}
    assert (await maps.json_patch([operation], name="a", namespace=namespace)).data == {"k": "v", "new": "w"}


class Answer(Struct):
    allowed: bool | None = None
    authenticated: bool | None = None


class Review(Object):
    status: Answer = Answer()


REVIEWS = {
    "SubjectAccessReview": ("authorization.k8s.io", {"user": "nobody", "resourceAttributes": {"verb": "get"}}),
    "SelfSubjectAccessReview": ("authorization.k8s.io", {"resourceAttributes": {"verb": "get", "resource": "pods"}}),
    "TokenReview": ("authentication.k8s.io", {"token": "none"}),
}


@pytest.mark.parametrize("kind", REVIEWS)
async def test_a_review_is_answered_and_not_kept(kind: str, client: Client) -> None:
    group, spec = REVIEWS[kind]
    resource = Resource(group, "v1", kind.lower() + "s", kind, Review, namespaced=False)
    if isinstance(cluster := getattr(client.transport, "_cluster", None), FakeCluster):
        cluster.install(resource)
    for _ in range(2):
        answer = await client.resource(resource).create({"spec": spec})
        assert (answer.kind, answer.name) == (kind, "")


async def test_labels_of_an_object_are_written_to_another(maps: Maps, namespace: str) -> None:
    owner = await maps.create({"metadata": {"name": "a", "labels": {"x": "y"}}}, namespace=namespace)
    metadata = {"namespace": namespace, "labels": owner.labels}
    written = [
        await maps.create({"metadata": metadata | {"name": "b"}}),
        await maps.apply({"metadata": metadata | {"name": "c"}}, field_manager="one"),
        await maps.create_or_update({"metadata": metadata | {"name": "d"}}, lambda there: there),
    ]
    assert [config_map.labels for config_map in written] == [{"x": "y"}] * 3
    annotated = await maps.patch(owner, {"metadata": {"annotations": owner.labels}})
    operation = {"op": "add", "path": "/data", "value": annotated.annotations}
    assert (await maps.json_patch([operation], name="a", namespace=namespace)).data == {"x": "y"}


def test_a_test_puts_and_reviews_labels_of_another_object() -> None:
    labels = ConfigMap(metadata=ObjectMeta(labels={"x": "y"})).labels
    body = {"metadata": {"name": "b", "namespace": "ns", "labels": labels}}
    assert FakeCluster().put(registry.CONFIG_MAPS, body).labels == {"x": "y"}
    assert admission_request(registry.CONFIG_MAPS, "CREATE", new=body).new(ConfigMap).labels == {"x": "y"}


async def test_a_view_that_looks_like_pairs_is_no_mapping(maps: Maps, namespace: str) -> None:
    finalizers = {"ab": True}.keys()
    body = {"metadata": {"name": "a", "namespace": namespace, "finalizers": finalizers}}
    writes: list[Awaitable[object]] = [maps.create(body), maps.merge_patch(body, name="a", namespace=namespace)]
    for write in writes:
        with pytest.raises(TypeError, match="a dict_keys is no part of a body"):
            await write


async def test_what_the_kinds_struct_cannot_hold_is_refused(maps: Maps, namespace: str) -> None:
    with pytest.raises(errors.BadRequest):
        await maps.create({"metadata": {"name": "a"}, "data": {"k": 1}}, namespace=namespace)
    await maps.create({"metadata": {"name": "b"}}, namespace=namespace)
    with pytest.raises(errors.Invalid):
        await maps.merge_patch({"data": {"k": 1}}, name="b", namespace=namespace)
