"""The indexed store; cached objects that are changed in place are noticed in tests."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from kubeloop.api.core import LimitRange, Pod
from kubeloop.api.registry import LIMIT_RANGES
from kubeloop.cache.processor import SharedProcessor
from kubeloop.cache.store import NAMESPACE_INDEX, ChangedInPlace, CheckedIndexer, Indexer, IndexIncomplete
from kubeloop.client.config import ClientConfig
from kubeloop.client.transport import Transport
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.virtual_time import settle
from tests.kubeloop.cache.informing import Recorder, pod

pytestmark = pytest.mark.virtual_time

Store = Indexer[Pod]


def by_app(obj: Pod) -> list[str]:
    return [value for key, value in obj.labels.items() if key.startswith("app")]


def keys(store: Store, index: str, value: str) -> list[str]:
    return [obj.key for obj in store.by_index(index, value)]


def filled() -> Store:
    store: Store = Indexer(indexers={"app": by_app})
    store.add(pod("a", labels={"app": "x"}))
    store.add(pod("b", labels={"app": "x", "app2": "y"}))
    store.add(pod("c", namespace="other"))
    return store


AS_IT_WAS = {"x": "a b", "y": "b", "ns": "a b", "other": "c"}
CHANGES: dict[str, tuple[Callable[[Store], object], dict[str, str]]] = {
    "what was added stands under each of its values": (lambda store: None, AS_IT_WAS),
    "an update moves an object to its new values": (
        lambda store: store.update(pod("a", "2", labels={"app": "y"})),
        AS_IT_WAS | {"x": "b", "y": "b a"},
    ),
    "an update that loses its last value leaves no empty bucket": (
        lambda store: store.update(pod("b", "2")),
        {"x": "a", "ns": "a b", "other": "c"},
    ),
    "an addition of a known key is an update": (lambda store: store.add(pod("a", "2")), AS_IT_WAS | {"x": "b"}),
    "a deletion empties every index": (
        lambda store: [store.delete(pod("b")), store.delete(pod("c", namespace="other"))],
        {"x": "a", "ns": "a"},
    ),
    "a deletion goes by what was stored, not by what is handed in": (
        lambda store: store.delete(pod("a", "9", labels={"app": "elsewhere"})),
        AS_IT_WAS | {"x": "b", "ns": "b"},
    ),
    "a deletion of an unknown key changes nothing": (lambda store: store.delete(pod("unknown")), AS_IT_WAS),
    "a replacement leaves nothing of before": (
        lambda store: store.replace([pod("z", labels={"app": "q"})], "9"),
        {"q": "z", "ns": "z"},
    ),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_indexes(change: Callable[[Store], object], expected: dict[str, str]) -> None:
    """The names of the objects under each value of the two indexes."""
    store = filled()
    change(store)
    values = {
        value: store.by_index(name, value) for name in ("app", NAMESPACE_INDEX) for value in store.index_values(name)
    }
    assert {value: " ".join(obj.name for obj in objects) for value, objects in values.items()} == expected
    for obj in (obj for objects in values.values() for obj in objects):
        assert store.get_by_key(obj.key) is obj


def test_an_unchanged_value_brings_the_new_object() -> None:
    store = filled()
    store.update(pod("a", "2", labels={"app": "x"}))
    assert [obj.metadata.resource_version for obj in store.by_index("app", "x")] == ["2", "1"]


def test_reads() -> None:
    store = filled()
    assert store.list_keys() == ["ns/a", "ns/b", "other/c"]
    assert [obj.name for obj in store.list()] == ["a", "b", "c"]
    assert len(store) == 3
    assert "ns/a" in store
    assert store.get_by_key("ns/zzz") is None
    assert store.by_index("app", "zzz") == []


def test_a_list_is_a_copy() -> None:
    store = filled()
    store.list().clear()
    store.by_index("app", "x").clear()
    assert len(store.list()) == 3
    assert len(store.by_index("app", "x")) == 2


def test_writes_tell_what_stood_there() -> None:
    store: Store = Indexer()
    old_pod, new_pod = pod("a", "1"), pod("a", "2")
    assert store.add(old_pod) is None
    assert store.update(new_pod) is old_pod
    assert store.delete_key("ns/a") is new_pod
    assert store.delete_key("ns/a") is None


def test_an_index_that_is_added_late_covers_what_is_there() -> None:
    store = filled()
    store.add_indexers({"name": lambda obj: [obj.name]})
    assert keys(store, "name", "b") == ["ns/b"]
    store.delete(pod("b"))
    assert keys(store, "name", "b") == []


def test_an_index_that_is_added_while_a_list_comes_covers_it() -> None:
    store = filled()
    prepared = store.prepare()
    prepared.add(pod("z", labels={"app": "q"}))
    store.add_indexers({"name": lambda obj: [obj.name]})
    assert len(store.swap(prepared)) == 3
    assert keys(store, "name", "z") == keys(store, "app", "q") == keys(store, NAMESPACE_INDEX, "ns") == ["ns/z"]


def test_a_name_that_is_taken_is_refused_and_nothing_is_added() -> None:
    store = filled()
    with pytest.raises(ValueError, match="app"):
        store.add_indexers({"new": lambda obj: [], "app": by_app})
    with pytest.raises(KeyError, match="new"):
        store.by_index("new", "")


def test_cluster_scoped_objects_have_a_plain_key() -> None:
    store: Store = Indexer()
    store.add(pod("node", namespace=""))
    assert store.list_keys() == ["node"]
    assert keys(store, NAMESPACE_INDEX, "") == ["node"]


def fails(obj: Pod) -> list[str]:
    raise RuntimeError("no")


FAULTY: dict[str, Callable[[Pod], Any]] = {
    "raises": fails,
    "returns something unhashable": lambda obj: [["x"]],
    "returns a number": lambda obj: [1],
    "returns nothing": lambda obj: None,
}


@pytest.mark.parametrize("faulty", FAULTY.values(), ids=FAULTY)
def test_a_raising_index_function_spoils_only_its_own_index(
    faulty: Callable[[Pod], Any], caplog: pytest.LogCaptureFixture
) -> None:
    repaired: list[bool] = []
    indexer: Store = Indexer(
        indexers={"by": lambda obj: faulty(obj) if obj.name == "b" and not repaired else [obj.name]}
    )
    recorder = Recorder()
    processor = SharedProcessor("pods", indexer)
    processor.add(recorder)
    listing = processor.listing()
    for name in "abc":
        listing.note("ADDED", pod(name))
    deque(processor.replaced(listing), 0)
    processor.changed(pod("b", "2"))
    processor.deleted(pod("b", "3").metadata, pod("b", "3"))
    processor.changed(pod("b", "4"))
    events = "initial a@1, initial b@1, initial c@1, updated b@1 to b@2, deleted b@3, added b@4"
    assert recorder.take() == events
    assert indexer.list_keys() == ["ns/a", "ns/c", "ns/b"]
    assert "index by: no value for ns/b" in caplog.text
    for read in (lambda: indexer.index_values("by"), lambda: indexer.by_index("by", "a")):
        with pytest.raises(IndexIncomplete, match="by is incomplete, its function raised for ns/b"):
            read()
    assert keys(indexer, NAMESPACE_INDEX, "ns") == ["ns/a", "ns/c", "ns/b"]
    repaired.append(True)
    processor.changed(pod("b", "5"))
    assert (indexer.holes(), indexer.index_values("by")) == ([], ["a", "c", "b"])


def relabelled(store: Store) -> None:
    store.update(pod("b", "2", labels={"app": "x"}))


CLOSING: dict[str, tuple[Callable[[Store], object], list[str]]] = {
    "the object is right again": (relabelled, ["ns/a", "ns/b"]),
    "the object is deleted": (lambda store: store.delete_key("ns/b"), ["ns/a"]),
    "a whole list comes without it": (lambda store: store.replace([pod("a", labels={"app": "x"})]), ["ns/a"]),
    "it is wrong again": (lambda store: store.update(pod("b", "2")), []),
    "another object is wrong as well": (lambda store: store.add(pod("c")), []),
}


@pytest.mark.parametrize(("change", "indexed_keys"), CLOSING.values(), ids=CLOSING)
def test_a_hole_of_an_index_closes_when(change: Callable[[Store], object], indexed_keys: list[str]) -> None:
    store: Store = Indexer(indexers={"app": lambda obj: [obj.labels["app"]]})
    store.add(pod("a", labels={"app": "x"}))
    store.add(pod("b"))
    change(store)
    assert bool(store.holes()) == (not indexed_keys)
    if indexed_keys:
        assert keys(store, "app", "x") == indexed_keys


def test_an_index_value_may_be_one_str() -> None:
    store: Store = Indexer(indexers={"name": lambda obj: f"one-{obj.name}"})
    store.add(pod("a"))
    assert store.index_values("name") == ["one-a"]


BODY: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "ns", "labels": {"k": "v"}, "finalizers": ["f"]},
    "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]},
}
IN_PLACE: dict[str, tuple[Callable[[Any], object], str]] = {
    "a list grows": (lambda obj: obj.spec.limits.append(obj.spec.limits[0]), "spec.limits"),
    "a dict in a list": (lambda obj: obj.spec.limits[0].max.update(cpu="2"), "spec.limits"),
    "a label": (lambda obj: obj.metadata.labels.update(k="w"), "metadata.labels.k"),
    "a label that goes": (lambda obj: obj.metadata.labels.clear(), "metadata.labels.k"),
    "a finalizer that goes": (lambda obj: obj.metadata.finalizers.remove("f"), "metadata.finalizers"),
}


@pytest.mark.parametrize("case", IN_PLACE)
async def test_a_handler_that_changes_its_object_fails(case: str, caplog: pytest.LogCaptureFixture) -> None:
    change, path = IN_PLACE[case]
    cluster = FakeCluster()
    cluster.put(LIMIT_RANGES, BODY)
    factory = ControllerFactory(cluster.client())

    async def handler(key: str, obj: LimitRange | None) -> None:
        change(obj)

    factory.controller(LIMIT_RANGES).on_change("careless", handler)
    await factory.start()
    await settle()
    message = f"LimitRange ns/a was changed in place: {path}"
    assert f"careless: ns/a failed, will be retried: ChangedInPlace: {message}" in caplog.messages
    with pytest.raises(ChangedInPlace, match=message):
        await factory.stop()


async def test_a_change_in_place_is_found_at_the_stop_at_the_latest() -> None:
    cluster = FakeCluster()
    for name in "abc":
        cluster.put(LIMIT_RANGES, {**BODY, "metadata": {**BODY["metadata"], "name": name}})
    factory = ControllerFactory(cluster.client())
    cache = factory.controller(LIMIT_RANGES).cache()
    await factory.start()
    await settle()
    for cached in cache.list():
        cached.spec.limits.clear()
    cluster.remove(LIMIT_RANGES, "ns/b")
    cluster.put(LIMIT_RANGES, {**BODY, "metadata": {**BODY["metadata"], "name": "c"}})
    await settle()
    with pytest.raises(ChangedInPlace, match=r"ns/b .*; .* ns/c .*; .* ns/a"):
        await factory.stop()


async def test_what_is_left_alone_is_no_finding() -> None:
    cluster = FakeCluster()
    cluster.put(LIMIT_RANGES, BODY)
    factory = ControllerFactory(cluster.client())
    calls: list[str] = []

    async def handler(key: str, obj: LimitRange | None) -> None:
        cluster.put(LIMIT_RANGES, {**BODY, "spec": {"limits": []}})
        await asyncio.sleep(1)
        calls.append(key)

    factory.controller(LIMIT_RANGES).on_change("careful", handler)
    await factory.start()
    await asyncio.sleep(5)
    cluster.remove(LIMIT_RANGES, "ns/a")
    await factory.stop()
    assert set(calls) == {"ns/a"}


def test_a_store_that_is_replaced_begins_anew() -> None:
    indexer: CheckedIndexer[Pod] = CheckedIndexer()
    indexer.add(pod("a"))
    indexer.replace([pod("b")])
    assert (indexer.changed(), indexer.list_keys()) == ([], ["ns/b"])


async def test_production_has_no_checks() -> None:
    assert not Transport(ClientConfig("http://127.0.0.1:1")).checked_caches
