"""What handlers are told. The reflector's part is played by the test: it calls the sink."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.registry import PODS
from kubeloop.cache.informer import SharedIndexInformer, wait_for_cache_sync
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.scripted_server import Reply, listing, watch
from kubeloop.testing.scripted_steps import added, bookmark, hang
from kubeloop.testing.virtual_time import settle
from tests.kubeloop.cache.informing import FIRST, NO_KIND, NOT_SERVED, REFUSED, running, sent
from tests.kubeloop.cache.objects import Event, Recorder, at, pod

pytestmark = pytest.mark.virtual_time

Informer = SharedIndexInformer[Pod]


def informer(**options: object) -> Informer:
    return SharedIndexInformer(FakeCluster().client().resource(PODS), **options)  # type: ignore[arg-type]


def listed(shared: Informer, *pods: Pod) -> None:
    """A whole list came."""
    shared._processor.replaced({each.key: each for each in pods}, {})


def delete(i: Informer, obj: Pod) -> None:
    i._processor.deleted(obj.metadata, obj)


# From a store that holds a@1 and b@1.
STORIES: dict[str, tuple[Callable[[Informer], object], list[Event], list[str]]] = {
    "a new object is an addition": (
        lambda i: i._processor.changed(pod("c", "2")),
        [("add", "ns/c@2", False)],
        ["ns/a@1", "ns/b@1", "ns/c@2"],
    ),
    "a changed object is an update": (
        lambda i: i._processor.changed(pod("a", "2")),
        [("update", "ns/a@1", "ns/a@2")],
        ["ns/a@2", "ns/b@1"],
    ),
    "a deletion hands over the final state": (
        lambda i: delete(i, pod("a", "3")),
        [("delete", "ns/a@3", False)],
        ["ns/b@1"],
    ),
    "an object that did not change is nothing": (
        lambda i: i._processor.changed(pod("a", "1")),
        [],
        ["ns/a@1", "ns/b@1"],
    ),
    "a DELETED of something unknown is nothing": (lambda i: delete(i, pod("c", "4")), [], ["ns/a@1", "ns/b@1"]),
    "a DELETED twice is told once": (
        lambda i: [delete(i, pod("a", "3")), delete(i, pod("a", "3"))],
        [("delete", "ns/a@3", False)],
        ["ns/b@1"],
    ),
    "a DELETED that does not decode hands out the cached object, as of unknown final state": (
        lambda i: i._processor.deleted(pod("a", "9").metadata, None),
        [("delete", "ns/a@1", True)],
        ["ns/b@1"],
    ),
    "one of a predecessor does not": (
        lambda i: i._processor.deleted(pod("a", "9", uid="another").metadata, None),
        [],
        ["ns/a@1", "ns/b@1"],
    ),
    "an object that does not decode on a relist stays as it was and is no deletion": (
        lambda i: i._processor.replaced({}, {"ns/a": pod("a", "9").metadata}),
        [("delete", "ns/b@1", True)],
        ["ns/a@1"],
    ),
    "another uid under the same name is a deletion and an addition": (
        lambda i: i._processor.changed(pod("a", "5", uid="second")),
        [("delete", "ns/a@1", True), ("add", "ns/a@5", False)],
        ["ns/a@5", "ns/b@1"],
    ),
    "another uid with the same version is still another life": (
        lambda i: i._processor.changed(pod("a", "1", uid="second")),
        [("delete", "ns/a@1", True), ("add", "ns/a@1", False)],
        ["ns/a@1", "ns/b@1"],
    ),
    "where a uid is missing it is the same": (
        lambda i: i._processor.changed(pod("a", "5", uid="")),
        [("update", "ns/a@1", "ns/a@5")],
        ["ns/a@5", "ns/b@1"],
    ),
    "a late DELETED of the predecessor leaves the successor alone": (
        lambda i: [i._processor.changed(pod("a", "5", uid="second")), delete(i, pod("a", "4"))],
        [("delete", "ns/a@1", True), ("add", "ns/a@5", False)],
        ["ns/a@5", "ns/b@1"],
    ),
    "a replayed stretch ends where it ended the first time": (
        lambda i: [i._processor.changed(pod("a", v)) for v in ("2", "3", "2", "3")],
        [
            ("update", "ns/a@1", "ns/a@2"),
            ("update", "ns/a@2", "ns/a@3"),
            ("update", "ns/a@3", "ns/a@2"),
            ("update", "ns/a@2", "ns/a@3"),
        ],
        ["ns/a@3", "ns/b@1"],
    ),
    "a relist of the same versions is nothing": (lambda i: listed(i, pod("a"), pod("b")), [], ["ns/a@1", "ns/b@1"]),
    "a relist finds what came, changed and went": (
        lambda i: listed(i, pod("c", "8"), pod("b", "7")),
        [("add", "ns/c@8", False), ("update", "ns/b@1", "ns/b@7"), ("delete", "ns/a@1", True)],
        ["ns/b@7", "ns/c@8"],
    ),
    "a relist finds another uid": (
        lambda i: listed(i, pod("a", "8", uid="second"), pod("b")),
        [("delete", "ns/a@1", True), ("add", "ns/a@8", False)],
        ["ns/a@8", "ns/b@1"],
    ),
    "a relist of an older state (etcd restored) is believed": (
        lambda i: listed(i, pod("a", "0")),
        [("update", "ns/a@1", "ns/a@0"), ("delete", "ns/b@1", True)],
        ["ns/a@0"],
    ),
    "an empty relist deletes everything": (
        lambda i: listed(i),
        [("delete", "ns/a@1", True), ("delete", "ns/b@1", True)],
        [],
    ),
    "an object without a version is always news": (
        lambda i: [i._processor.changed(pod("a", "")), i._processor.changed(pod("a", ""))],
        [("update", "ns/a@1", "ns/a@"), ("update", "ns/a@", "ns/a@")],
        ["ns/a@", "ns/b@1"],
    ),
}


@pytest.mark.parametrize(("story", "told", "held"), STORIES.values(), ids=STORIES)
def test_what_a_handler_is_told(story: Callable[[Informer], object], told: list[Event], held: list[str]) -> None:
    shared = informer()
    listed(shared, pod("a"), pod("b"))
    first, second = Recorder(), Recorder()
    shared.add_event_handler(first)
    shared.add_event_handler(second)
    first.take(), second.take()
    story(shared)
    assert first.take() == told
    assert second.take() == told
    assert sorted(at(obj) for obj in shared.indexer.list()) == held


def test_the_first_list_is_marked_and_later_ones_are_not() -> None:
    shared, recorder = informer(), Recorder()
    shared.add_event_handler(recorder)
    listed(shared, pod("a"), pod("b"))
    listed(shared, pod("a"), pod("b"), pod("c"))
    assert recorder.take() == [("add", "ns/a@1", True), ("add", "ns/b@1", True), ("add", "ns/c@1", False)]


def test_the_indexer_holds_the_whole_list_before_the_first_handler_runs() -> None:
    shared = informer()
    seen: list[int] = []
    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=lambda obj, _: seen.append(len(shared.indexer))))
    listed(shared, *(pod(name) for name in "abc"))
    assert seen == [3, 3, 3]


@pytest.mark.parametrize("pods", [[pod("a"), pod("b")], []], ids=["a list", "an empty list"])
def test_has_synced_only_after_the_last_handler_was_told(pods: list[Pod]) -> None:
    shared = informer()
    seen: list[bool] = []
    registration = shared.add_event_handler(
        ResourceEventHandlerFuncs(on_add=lambda obj, _: seen.append(shared.has_synced()))
    )
    assert not registration.has_synced()
    listed(shared, *pods)
    assert seen == [False for _ in pods]
    assert shared.has_synced()
    assert registration.has_synced()


def test_a_late_handler_is_told_of_everything_and_then_like_the_others() -> None:
    shared, late = informer(), Recorder()
    listed(shared, pod("a"), pod("b"))
    shared._processor.changed(pod("a", "2"))
    registration = shared.add_event_handler(late)
    assert registration.has_synced()
    delete(shared, pod("b", "3"))
    assert late.take() == [("add", "ns/a@2", True), ("add", "ns/b@1", True), ("delete", "ns/b@3", False)]


def test_a_handler_that_comes_during_a_delivery_hears_everything_once() -> None:
    shared, late = informer(), Recorder()
    added: list[Pod] = []

    def on_add(obj: Pod, initial: bool) -> None:
        if not added:
            shared.add_event_handler(late)
        added.append(obj)

    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=on_add))
    listed(shared, pod("a"), pod("b"))
    assert late.take() == [("add", "ns/a@1", True), ("add", "ns/b@1", True)]
    shared._processor.changed(pod("c"))
    assert late.take() == [("add", "ns/c@1", False)]


def test_a_removed_handler_hears_nothing_more() -> None:
    shared, gone, stays = informer(), Recorder(), Recorder()
    registration = shared.add_event_handler(gone)
    shared.add_event_handler(stays)
    shared.remove_event_handler(registration)
    shared._processor.changed(pod("a"))
    assert gone.take() == []
    assert stays.take() == [("add", "ns/a@1", False)]


def test_a_handler_that_is_removed_while_a_list_is_told_hears_nothing_more() -> None:
    shared, gone = informer(), Recorder()
    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=lambda obj, _: shared.remove_event_handler(registration)))
    registration = shared.add_event_handler(gone)
    listed(shared, pod("a"), pod("b"))
    assert gone.take() == []


async def test_handler_removal_is_final_also_from_within_a_resync() -> None:
    calls: list[Pod] = []

    def on_update(_: Pod, new: Pod) -> None:
        calls.append(new)
        run.informer.remove_event_handler(registration)

    async with running([watch(*FIRST, hang())]) as run:
        handler = ResourceEventHandlerFuncs(on_update=on_update)
        registration = run.informer.add_event_handler(handler, resync_period=10.0)
        await asyncio.sleep(100)
    assert len(calls) == 1


async def test_has_synced_of_handlers_and_informers_agree_for_a_missing_kind() -> None:
    cluster = FakeCluster()
    cluster.install(PODS, installed=False)
    missing = SharedIndexInformer(cluster.client().resource(PODS))
    registration = missing.add_event_handler(Recorder())
    assert (missing.has_synced(), registration.has_synced()) == (False, False)
    missing.start()
    assert await missing.wait_for_sync(1)
    late = missing.add_event_handler(Recorder())
    assert (missing.has_synced(), registration.has_synced(), late.has_synced()) == (True, True, True)


def test_a_handler_that_raises_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shared, recorder = informer(), Recorder()

    def fail(*_: object) -> None:
        raise RuntimeError("broken handler")

    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=fail, on_update=fail, on_delete=fail))
    shared.add_event_handler(recorder)
    listed(shared, pod("a"), pod("b"))
    shared._processor.changed(pod("a", "2"))
    delete(shared, pod("a", "3"))
    assert [kind for kind, *_ in recorder.take()] == ["add", "add", "update", "delete"]
    assert shared.has_synced()
    assert caplog.text.count("RuntimeError: broken handler") == 4
    assert "pods ns/a" in caplog.text
    assert "on_delete" in caplog.text


def without_labels(obj: Pod) -> Pod:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, labels=None))


def test_a_transform_sees_every_object_before_it_is_stored() -> None:
    shared = informer(transform=without_labels)
    told: list[Pod] = []
    shared.add_event_handler(
        ResourceEventHandlerFuncs(
            on_add=lambda obj, _: told.append(obj),
            on_update=lambda _, new: told.append(new),
            on_delete=lambda obj, _: told.append(obj),
        )
    )
    shared._processor.changed(pod("a", labels={"x": "y"}))
    shared._processor.changed(pod("b", labels={"x": "y"}))
    shared._processor.changed(pod("b", "2", labels={"x": "y"}))
    assert [obj.labels for obj in shared.indexer.list()] == [{}, {}]
    delete(shared, pod("b", "3", labels={"x": "y"}))
    assert [at(obj) for obj in told] == ["ns/a@1", "ns/b@1", "ns/b@2", "ns/b@3"]
    assert all(obj.labels == {} for obj in told)


LISTED = sent("a", labels={"x": "y"})
LISTS: dict[str, tuple[Reply, list[Reply]]] = {
    "a WatchList": (watch(added(LISTED), bookmark("1", initial_events_end=True), hang()), []),
    "a list": (REFUSED, [listing([LISTED], "1")]),
}


@pytest.mark.parametrize(("first", "lists"), LISTS.values(), ids=LISTS)
async def test_a_transform_sees_the_objects_of_a_list(first: Reply, lists: list[Reply]) -> None:
    async with running([first], lists, transform=without_labels) as run:
        await run.informer.wait_for_sync(1.0)
        assert [obj.labels for obj in run.informer.indexer.list()] == [{}]


def test_a_transform_that_raises_lets_the_object_through(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Pod) -> Pod:
        raise RuntimeError("broken transform")

    shared = informer(transform=fail)
    shared._processor.changed(pod("a"))
    assert shared.indexer.list_keys() == ["ns/a"]
    assert "broken transform" in caplog.text


async def test_a_resync_repeats_every_object_to_those_who_asked_for_it() -> None:
    shared = informer(resync_period=60.0)
    default, own, never = Recorder(), Recorder(), Recorder()
    shared.add_event_handler(default)
    shared.add_event_handler(own, resync_period=25.0)
    shared.add_event_handler(never, resync_period=0.0)
    shared.start()
    await asyncio.sleep(1)
    listed(shared, pod("a"))
    late = Recorder()
    shared.add_event_handler(late, resync_period=40.0)
    await asyncio.sleep(64)
    resync: Event = ("update", "ns/a@1", "ns/a@1")
    assert default.take() == [("add", "ns/a@1", False), resync]
    assert own.take() == [("add", "ns/a@1", False), resync, resync]
    assert never.take() == [("add", "ns/a@1", False)]
    assert late.take() == [("add", "ns/a@1", True), resync]
    await shared.stop()
    await asyncio.sleep(600)
    assert own.take() == []


async def test_waiting_for_several_waits_for_the_last_but_not_for_a_missing_kind() -> None:
    synced = bookmark("1", initial_events_end=True)
    async with (
        running([watch(synced, hang())]) as quickly,
        running([watch(9.0, synced, hang())]) as slowly,
        running([NO_KIND], served=NOT_SERVED) as never,
    ):
        quick, slow, missing = quickly.informer, slowly.informer, never.informer
        assert not await wait_for_cache_sync(quick, slow, missing, timeout=8)
        assert await wait_for_cache_sync(quick, missing, timeout=0.5)
        assert await wait_for_cache_sync(quick, slow, missing, timeout=2)
        assert (quick.installed, missing.installed, missing.has_synced()) == (True, False, True)


async def test_start_and_stop() -> None:
    cluster = FakeCluster()
    shared = SharedIndexInformer(cluster.client().resource(PODS))
    assert shared.problems(1e9) == [], "it was not started"
    shared.start()
    shared.start()
    await settle()
    assert len(cluster.requests) == 1
    await shared.stop()
    await shared.stop()
    await asyncio.sleep(1000)
    assert len(cluster.requests) == 1


async def test_a_task_that_ended_is_a_problem() -> None:
    shared = informer()
    async with asyncio.TaskGroup() as tasks:
        shared.start(tasks)
        await settle()
        assert shared.healthy() == []
        for task in asyncio.all_tasks():
            if task.get_name() == "informer pods":
                task.cancel()
    assert shared.healthy() == ["pods: the informer's task ended"]
