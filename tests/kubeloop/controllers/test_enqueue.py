"""Keys, handlers and resolvers that cannot be right are refused where they are given; which events enqueue what."""

import asyncio
import functools
import operator
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from kubeloop.api.core import ConfigMap, Node, Pod
from kubeloop.api.meta import Object, ObjectMeta, Struct
from kubeloop.api.objects import edit
from kubeloop.api.registry import CONFIG_MAPS, NODES, SECRETS, Resource
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.enqueue import EnqueueHandler, Reads, check_handler, check_key, check_resolver, generation
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.virtual_time import now
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, LOW_PRIORITY
from tests.kubeloop.controllers.controllers import Calls

pytestmark = pytest.mark.virtual_time

KEYS: dict[str, tuple[Resource[Any], Any, type[Exception] | None]] = {
    "namespace and name of a namespaced kind": (CONFIG_MAPS, "ns/a", None),
    "a name alone of a namespaced kind": (CONFIG_MAPS, "a", ValueError),
    "nothing before the slash": (CONFIG_MAPS, "/a", ValueError),
    "nothing behind the slash": (CONFIG_MAPS, "ns/", ValueError),
    "two slashes": (CONFIG_MAPS, "ns/a/b", ValueError),
    "an empty key of a namespaced kind": (CONFIG_MAPS, "", ValueError),
    "an object": (CONFIG_MAPS, ConfigMap(), TypeError),
    "None": (NODES, None, TypeError),
    "a name of a cluster-scoped kind": (NODES, "node-1", None),
    "a namespace before a name of a cluster-scoped kind": (NODES, "ns/node-1", ValueError),
    "an empty key of a cluster-scoped kind": (NODES, "", ValueError),
}


@pytest.mark.parametrize(("resource", "key", "error"), KEYS.values(), ids=KEYS)
async def test_a_key(resource: Resource[Any], key: Any, error: type[Exception] | None) -> None:
    controller: Controller[Any] = ControllerFactory(FakeCluster().client()).controller(resource)
    if error is None:
        check_key(resource, key)
        return
    adds: list[Callable[[Any], None]] = [
        controller.enqueue,
        functools.partial(controller.enqueue, immediately=True),
        functools.partial(controller.enqueue_after, seconds=1.0),
    ]
    for add in adds:
        with pytest.raises(error, match="key"):
            add(key)
    assert len(controller.queue) == 0


async def good(key: str, obj: object) -> None: ...


def plain(key: str, obj: object) -> None: ...


def passes_on(key: str, obj: object) -> Awaitable[None]:
    return good(key, obj)


@functools.wraps(good)
def decorated(key: str, obj: object) -> object:
    return good(key, obj)


class Methods:
    async def right(self, key: str, obj: object) -> None: ...

    def wrong(self, key: str, obj: object) -> None: ...


HANDLERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "an async def": (good, True),
    "a def": (plain, False),
    "an async method": (Methods().right, True),
    "a plain method": (Methods().wrong, False),
    "a partial of an async def": (functools.partial(good), True),
    "a partial of a def": (functools.partial(plain), False),
    "a def that says that it returns an awaitable": (passes_on, True),
    "a decorated async def": (decorated, True),
    "a lambda": (lambda key, obj: good(key, obj), True),
    "an object with an async call": (Calls(), True),
    "a mock": (AsyncMock(), True),
}


@pytest.mark.parametrize(("handler", "is_right"), HANDLERS.values(), ids=HANDLERS)
async def test_a_handler(handler: Callable[..., Any], is_right: bool) -> None:
    if is_right:
        check_handler(handler)
        return
    controller = ControllerFactory(FakeCluster().client()).controller(CONFIG_MAPS)
    for add in (controller.on_change, controller.on_remove):
        with pytest.raises(TypeError, match="is a plain function"):
            add("wrong", handler)


def listing(obj: Node) -> list[str]:
    return [obj.name]


def text(obj: Node) -> str:
    return obj.name


async def waiting(obj: Node) -> list[str]:
    return [obj.name]


RESOLVERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "a list": (listing, True),
    "a str": (text, False),
    "a str, by a partial": (functools.partial(text), False),
    "a lambda of a list": (lambda obj: [obj.name], True),
    "a lambda of a str": (lambda obj: obj.name, False),
    "a lambda that an empty object does not fit": (lambda obj: obj.metadata.owner_references[0].name, True),
    "an async def": (waiting, False),
}


@pytest.mark.parametrize(("resolver", "is_right"), RESOLVERS.values(), ids=RESOLVERS)
async def test_a_resolver(resolver: Callable[..., Any], is_right: bool) -> None:
    if is_right:
        check_resolver(resolver, Node)
        return
    management = ControllerFactory(FakeCluster().client())
    with pytest.raises(TypeError, match="a resolver"):
        management.controller(CONFIG_MAPS).watch_related(management.controller(NODES), resolver)


async def test_a_resolver_without_a_namespace_or_a_list_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.put(CONFIG_MAPS, {"metadata": {"name": "j", "namespace": "ns"}})
    management, calls = ControllerFactory(cluster.client()), Calls()
    maps, nodes = management.controller(CONFIG_MAPS), management.controller(NODES)
    maps.on_change("handler", calls)
    maps.watch_related(nodes, lambda node: [node.name, "ns/k"])
    nodes.on_change("handler", nothing := Calls())
    nodes.watch_related(maps, lambda obj: [obj.key])
    no_list: Any = operator.attrgetter("name")
    nodes.watch_related(maps, no_list)
    await management.start()
    cluster.put(NODES, {"metadata": {"name": "j"}})
    await asyncio.sleep(1)
    assert (calls.keys, nothing.keys) == (["ns/j", "ns/k"], ["j"])
    assert "returned for j: 'j' is not a key of configmaps: ConfigMap has a namespace" in caplog.text
    assert "returned for ns/j: 'ns/j' is not a key of nodes: Node has no namespace" in caplog.text
    assert caplog.text.count("test_enqueue.test_a_resolver_without_a") == 2
    assert "a list of keys is expected, not the text 'j'" in caplog.text
    await management.stop()


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "u"}
OWNERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "the owner that manages it": ([{**OWNER, "controller": True}], {}, ["ns/owner"]),
    "an owner that does not": ([OWNER], {}, []),
    "an owner that does not, any is asked for": ([OWNER], {"any_owner": True}, ["ns/owner"]),
    "another kind": ([{**OWNER, "kind": "Pod", "controller": True}], {}, []),
    "another group": ([{**OWNER, "apiVersion": "x.io/v1", "controller": True}], {}, []),
    "another version of the group": ([{**OWNER, "apiVersion": "v2", "controller": True}], {}, ["ns/owner"]),
    "no owner": ([], {}, []),
}


@pytest.mark.parametrize(("references", "options", "called"), OWNERS.values(), ids=OWNERS)
async def test_watch_owned_calls_for(
    references: list[dict[str, Any]], options: dict[str, Any], called: list[str]
) -> None:
    cluster = FakeCluster()
    management, calls = ControllerFactory(cluster.client()), Calls()
    maps = management.controller(CONFIG_MAPS)
    maps.on_change("handler", calls)
    maps.watch_owned(management.controller(SECRETS), **options)
    await management.start()
    await asyncio.sleep(1)
    cluster.put(SECRETS, {"metadata": {"name": "s", "namespace": "ns", "ownerReferences": references}})
    await asyncio.sleep(1)
    assert calls.keys == called
    await management.stop()


def color_of(obj: ConfigMap) -> object:
    return obj.data["color"]


CHANGES: dict[str, tuple[list[Callable[[ConfigMap], object] | None], dict[str, Any], int]] = {
    "what nobody reads": ([color_of], {"data": {"color": "red", "x": "y"}}, 0),
    "what is read": ([color_of], {"data": {"color": "blue"}}, 1),
    "what one of two handlers reads": (
        [color_of, lambda obj: obj.data.get("x")],
        {"data": {"color": "red", "x": "y"}},
        1,
    ),
    "what the second reads whole": (
        [color_of, None],
        {"metadata": {"labels": {"a": "b"}}, "data": {"color": "red"}},
        1,
    ),
    "something for which it raises": ([color_of], {"data": {}}, 1),
    "status, with the generation": ([generation], {"metadata": {"generation": 7}, "data": {"color": "blue"}}, 0),
    "spec, with the generation": ([generation], {"metadata": {"generation": 8}}, 1),
    "anything of a kind without generations": ([generation], {"metadata": {"generation": None}}, 1),
}


@pytest.mark.parametrize(("reads", "change", "calls_expected"), CHANGES.values(), ids=CHANGES)
async def test_on_change_is_called_again_for_a_change_of(
    reads: list[Callable[[ConfigMap], object] | None], change: dict[str, Any], calls_expected: int
) -> None:
    cluster = FakeCluster()
    body = {"metadata": {"name": "a", "namespace": "ns", "generation": 7}, "data": {"color": "red"}}
    cluster.put(CONFIG_MAPS, body)
    management, calls = ControllerFactory(cluster.client()), Calls()
    maps = management.controller(CONFIG_MAPS)
    maps.on_change("first", calls, reads=reads[0])
    for number, read in enumerate(reads[1:]):
        maps.on_change(f"other {number}", Calls(), reads=read)
    await management.start()
    await asyncio.sleep(1)
    assert len(calls.keys) == 1
    cluster.put(CONFIG_MAPS, {**body, **change, "metadata": {**body["metadata"], **change.get("metadata", {})}})  # type: ignore[dict-item]
    await asyncio.sleep(1)
    assert len(calls.keys) == 1 + calls_expected
    await management.stop()


class Status(Struct):
    checked: str = ""


class Checked(Object):
    spec: dict[str, int] = msgspec.field(default_factory=dict)
    status: Status = Status()


CHECKED = Resource("example.org", "v1", "checkeds", "Checked", Checked, status_subresource=True)


async def test_a_write_of_status_does_not_call_its_handler_again() -> None:
    cluster = FakeCluster(CHECKED)
    body = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"n": 1}}
    cluster.put(CHECKED, body)
    management = ControllerFactory(cluster.client())
    controller, times = management.controller(CHECKED), []

    async def check(key: str, obj: Checked | None) -> None:
        times.append(now())
        if obj is not None:
            await controller.client.update_status(obj, edit(obj, status={"checked": str(now())}))

    controller.on_change("check", check, reads=generation)
    await management.start()
    await asyncio.sleep(60)
    assert len(times) == 1
    cluster.put(CHECKED, {**body, "spec": {"n": 2}})
    await asyncio.sleep(60)
    assert len(times) == 2
    await management.stop()


async def test_a_removal_is_seen_whatever_other_handlers_read() -> None:
    cluster, calls = FakeCluster(), Calls(ValueError("not yet"), None)
    management = ControllerFactory(cluster.client())
    maps = management.controller(CONFIG_MAPS)
    maps.on_change("handler", Calls(), reads=lambda _: None)
    maps.on_remove("handler", calls)
    await management.start()
    await asyncio.sleep(1)
    client = maps.client
    await client.create({"metadata": {"name": "a", "namespace": "ns"}})
    await asyncio.sleep(1)
    assert cluster.raw(CONFIG_MAPS)["ns/a"]["metadata"]["finalizers"] == ["wrangler.cattle.io/handler"]
    await client.delete(name="a", namespace="ns")
    await asyncio.sleep(1)
    assert (calls.keys, cluster.raw(CONFIG_MAPS)) == (["ns/a", "ns/a"], {})
    await management.stop()


def pod(version: str = "1", uid: str = "u", **labels: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="a", namespace="ns", resource_version=version, uid=uid, labels=labels))


def keys_of(obj: Pod) -> list[str]:
    """Returns the keys in the label `to`."""
    keys = obj.labels.get("to", obj.key).split()
    if "boom" in keys:
        raise ValueError("boom")
    return keys


class Enqueued:
    """The keys that an EnqueueHandler of the label `to` enqueued."""

    def __init__(self, reads: Reads[Pod] | None = None) -> None:
        self.keys: list[tuple[str, int]] = []
        self.handler: EnqueueHandler[Pod] = EnqueueHandler(keys_of, self.enqueue, reads and [reads])

    def enqueue(self, key: str, priority: int) -> None:
        self.keys.append((key, priority))


SAME, RED, BLUE = pod("7"), pod("1", color="red"), pod("2", color="blue")
LIVE, LATER = ("ns/a", DEFAULT_PRIORITY), ("ns/a", LOW_PRIORITY)
Event = tuple[Any, ...]
"""A method, and what it is called with."""
EVENTS: dict[str, tuple[Event, list[tuple[str, int]]]] = {
    "an addition enqueues": (("on_add", pod(), False), [LIVE]),
    "what was there before has low priority": (("on_add", pod(), True), [LATER]),
    "a deletion enqueues": (("on_delete", pod(), False), [LIVE]),
    "one that was missed too": (("on_delete", pod(), True), [LIVE]),
    "a new resourceVersion enqueues": (("on_update", pod("1"), pod("2")), [LIVE]),
    "a resync does, with low priority": (("on_update", SAME, SAME), [LATER]),
    "the new object's keys come first, none twice": (
        ("on_update", pod("1", to="x y"), pod("2", to="y z y")),
        [("y", DEFAULT_PRIORITY), ("z", DEFAULT_PRIORITY), ("x", DEFAULT_PRIORITY)],
    ),
    "an object that names nothing enqueues nothing": (("on_update", pod("1", to=""), pod("2", to="")), []),
    "a resolver that fails on the old object tells of the new": (
        ("on_update", pod("1", to="boom"), pod("2", to="a")),
        [("a", DEFAULT_PRIORITY)],
    ),
    "a resolver that fails on the new object tells of the old": (
        ("on_update", pod("1", to="a"), pod("2", to="boom")),
        [("a", DEFAULT_PRIORITY)],
    ),
}
READ: dict[str, tuple[Event, list[tuple[str, int]]]] = {
    "what is not read enqueues nothing": (("on_update", RED, pod("2", color="red")), []),
    "what is read does": (("on_update", RED, BLUE), [LIVE]),
    "a resync does, whatever is read": (("on_update", RED, RED), [LATER]),
}


@pytest.mark.parametrize("case", EVENTS | READ)
def test_event(case: str) -> None:
    (method, *args), expected = (EVENTS | READ)[case]
    enqueued = Enqueued(reads=(lambda obj: obj.labels["color"]) if case in READ else None)
    getattr(enqueued.handler, method)(*args)
    assert enqueued.keys == expected


def test_a_resolver_that_returns_a_text_enqueues_nothing(caplog: pytest.LogCaptureFixture) -> None:
    keys: list[str] = []
    by_text: Any = lambda obj: obj.key  # noqa: E731
    handler: EnqueueHandler[Pod] = EnqueueHandler(by_text, lambda key, _: keys.append(key))
    handler.on_add(pod(), False)
    assert keys == []
    assert "a list of keys is expected, not the text 'ns/a'" in caplog.text
