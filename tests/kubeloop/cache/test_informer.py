"""Notifications of handlers. The test plays the reflector's part: it calls the sink."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.registry import PODS
from kubeloop.cache import lister_watcher, processor
from kubeloop.cache.informer import SharedIndexInformer, wait_for_cache_sync
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.cache.store import STEP
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.scripted_server import Reply, listing, watch
from kubeloop.testing.scripted_steps import added, bookmark, hang, modified
from kubeloop.testing.scripted_steps import deleted as deleted_event
from kubeloop.testing.virtual_time import settle
from tests.decisions import sentences
from tests.kubeloop.cache.informing import (
    FIRST,
    NO_KIND,
    NOT_SERVED,
    REFUSED,
    Recorder,
    Turns,
    pod,
    running,
    sent,
    versions_of,
)

pytestmark = pytest.mark.virtual_time

Informer = SharedIndexInformer[Pod]


def informer(**options: object) -> Informer:
    return SharedIndexInformer(FakeCluster().client().resource(PODS), **options)  # type: ignore[arg-type]


def listed(shared: Informer, *pods: Pod, undecodable: Iterable[ObjectMeta] = ()) -> None:
    """A whole list came."""
    listing = shared.processor.listing()
    for listed_pod in pods:
        listing.note("ADDED", listed_pod)
    for meta in undecodable:
        listing.note_undecodable("ADDED", meta)
    deque(shared.processor.replaced(listing), 0)


Step = Callable[[Informer], None]


def changed(name: str, version: str = "1", uid: str | None = None) -> Step:
    return lambda i: i.processor.changed(pod(name, version, uid=uid))


def deleted(name: str, version: str, *, uid: str | None = None, decodes: bool = True) -> Step:
    final_pod = pod(name, version, uid=uid)
    return lambda i: i.processor.deleted(final_pod.metadata, final_pod if decodes else None)


def relisted(*pods: Pod, undecodable: Iterable[ObjectMeta] = ()) -> Step:
    return lambda i: listed(i, *pods, undecodable=undecodable)


class HandlerStory(NamedTuple):
    """A case: the events for a store with a@1 and b@1, the notifications of a handler, and the content then."""

    steps: list[Step]
    notifications: str
    content: str


STORIES: dict[str, HandlerStory] = {
    "a new object is an addition": HandlerStory([changed("c", "2")], "added c@2", "a@1 b@1 c@2"),
    "a changed object is an update": HandlerStory([changed("a", "2")], "updated a@1 to a@2", "a@2 b@1"),
    "a deletion hands over the final state": HandlerStory([deleted("a", "3")], "deleted a@3", "b@1"),
    "an object that did not change is nothing": HandlerStory([changed("a")], "", "a@1 b@1"),
    "a DELETED of something unknown is nothing": HandlerStory([deleted("c", "4")], "", "a@1 b@1"),
    "a DELETED twice is told once": HandlerStory([deleted("a", "3")] * 2, "deleted a@3", "b@1"),
    "a DELETED that does not decode is of unknown final state": HandlerStory(
        [deleted("a", "9", decodes=False)], "missed a@1", "b@1"
    ),
    "one of a predecessor does not": HandlerStory([deleted("a", "9", uid="another", decodes=False)], "", "a@1 b@1"),
    "an object that does not decode on a relist stays": HandlerStory(
        [relisted(undecodable=[pod("a", "9").metadata])], "missed b@1", "a@1"
    ),
    "one of which not even the name is known keeps all": HandlerStory(
        [relisted(pod("c"), undecodable=[ObjectMeta()])], "added c@1", "a@1 b@1 c@1"
    ),
    "another uid is a deletion and an addition": HandlerStory(
        [changed("a", "5", "second")], "missed a@1, added a@5", "a@5 b@1"
    ),
    "another uid with the same version is still another life": HandlerStory(
        [changed("a", "1", "second")], "missed a@1, added a@1", "a@1 b@1"
    ),
    "where a uid is missing it is the same": HandlerStory([changed("a", "5", "")], "updated a@1 to a@5", "a@5 b@1"),
    "a late DELETED of the predecessor leaves the successor alone": HandlerStory(
        [changed("a", "5", "second"), deleted("a", "4")], "missed a@1, added a@5", "a@5 b@1"
    ),
    "a replayed stretch ends where it ended the first time": HandlerStory(
        [changed("a", version) for version in "2323"],
        "updated a@1 to a@2, updated a@2 to a@3, updated a@3 to a@2, updated a@2 to a@3",
        "a@3 b@1",
    ),
    "a relist of the same versions is nothing": HandlerStory([relisted(pod("a"), pod("b"))], "", "a@1 b@1"),
    "a relist finds what came, changed and went": HandlerStory(
        [relisted(pod("c", "8"), pod("b", "7"))], "added c@8, updated b@1 to b@7, missed a@1", "b@7 c@8"
    ),
    "a relist finds another uid": HandlerStory(
        [relisted(pod("a", "8", uid="second"), pod("b"))], "missed a@1, added a@8", "a@8 b@1"
    ),
    "a relist of an older state (etcd restored) is believed": HandlerStory(
        [relisted(pod("a", "0"))], "updated a@1 to a@0, missed b@1", "a@0"
    ),
    "an empty relist deletes everything": HandlerStory([relisted()], "missed a@1, missed b@1", ""),
    "an object without a version is always news": HandlerStory(
        [changed("a", "")] * 2, "updated a@1 to a@, updated a@ to a@", "a@ b@1"
    ),
}


@sentences(STORIES)
def test_what_a_handler_is_told(case: HandlerStory) -> None:
    shared = informer()
    listed(shared, pod("a"), pod("b"))
    handlers = Recorder(), Recorder()
    for recorder in handlers:
        shared.add_event_handler(recorder)
        recorder.take()
    for step in case.steps:
        step(shared)
    assert [recorder.take() for recorder in handlers] == [case.notifications] * 2
    assert versions_of(*shared.indexer.list()) == case.content


def test_the_first_list_is_marked_and_later_ones_are_not() -> None:
    shared, recorder = informer(), Recorder()
    shared.add_event_handler(recorder)
    listed(shared, pod("a"), pod("b"))
    listed(shared, pod("a"), pod("b"), pod("c"))
    assert recorder.take() == "initial a@1, initial b@1, added c@1"


def test_the_whole_list_is_indexed_before_a_handler_runs() -> None:
    shared = informer()
    sizes: list[int] = []
    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=lambda obj, _: sizes.append(len(shared.indexer))))
    listed(shared, *(pod(name) for name in "abc"))
    assert sizes == [3, 3, 3]


async def test_a_long_list_holds_the_loop_for_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers have the old content or the new one, and handlers are told of all, whatever happens meanwhile."""
    step, turns, sizes = 50, Turns(), set[int]()
    size = 3 * step + 7
    for module in (lister_watcher, processor):
        monkeypatch.setattr(module, "STEP", step)

    def by_name(obj: Pod) -> list[str]:
        turns.add(1)
        sizes.add(len(run.informer.indexer))
        return [obj.name]

    def told(obj: Pod, _: bool) -> None:
        turns.add(1)
        sizes.add(len(run.informer.indexer))

    pods = [sent(f"p{number}") for number in range(size)]
    async with running([REFUSED], [listing(pods, "5")], options=ReflectorOptions(page_size=0)) as run:
        run.informer.indexer.add_indexers({"name": by_name})
        run.informer.add_event_handler(ResourceEventHandlerFuncs(on_add=told))
        async with turns.counted():
            assert await run.informer.wait_for_sync(60)
    assert (sum(turns.work), sizes) == (2 * size, {0, size})
    assert max(turns.work) < 2 * step
    assert len(run.recorder.events) == size


def half_listed(shared: Informer) -> Generator[None]:
    """A list of two parts came, and handlers are told of the first."""
    pods = shared.processor.listing()
    for number in range(2 * STEP):
        pods.note("ADDED", pod(f"p{number}"))
    steps = shared.processor.replaced(pods)
    next(steps)
    return steps


def test_a_list_that_is_stopped_midway_is_told_to_its_end() -> None:
    shared, recorder = informer(), Recorder()
    shared.add_event_handler(recorder)
    steps = half_listed(shared)
    assert (len(recorder.events), shared.has_synced()) == (STEP, False)
    steps.close()
    assert (len(recorder.events), shared.has_synced()) == (2 * STEP, True)


def test_a_definition_that_goes_midway_takes_all_objects_along() -> None:
    shared, recorder = informer(), Recorder()
    shared.add_event_handler(recorder)
    listed(shared, pod("old"))
    steps = half_listed(shared)
    shared.processor.uninstalled()
    deque(steps, 0)
    assert len(shared.indexer) == 0
    assert len(recorder.events) == 1 + STEP + 2 * STEP + 1
    assert recorder.events[-1] == "missed old@1"


@pytest.mark.parametrize("pods", [[pod("a"), pod("b")], []], ids=["a list", "an empty list"])
def test_has_synced_only_after_the_last_handler_was_told(pods: list[Pod]) -> None:
    shared = informer()
    synced: list[bool] = []
    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=lambda obj, _: synced.append(shared.has_synced())))
    listed(shared, *pods)
    assert synced == [False for _ in pods]
    assert shared.has_synced()


def test_a_late_handler_is_told_of_everything() -> None:
    shared, late_recorder = informer(), Recorder()
    listed(shared, pod("a"), pod("b"))
    shared.processor.changed(pod("a", "2"))
    shared.add_event_handler(late_recorder)
    deleted("b", "3")(shared)
    assert late_recorder.take() == "initial a@2, initial b@1, deleted b@3"


def test_a_handler_added_in_a_delivery_hears_everything_once() -> None:
    shared, late_recorder = informer(), Recorder()
    pods: list[Pod] = []

    def on_add(obj: Pod, initial: bool) -> None:
        if not pods:
            shared.add_event_handler(late_recorder)
        pods.append(obj)

    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=on_add))
    listed(shared, pod("a"), pod("b"))
    assert late_recorder.take() == "initial a@1, initial b@1"
    shared.processor.changed(pod("c"))
    assert late_recorder.take() == "added c@1"


def test_a_handler_removed_in_a_notification_hears_no_more() -> None:
    shared, gone, stays = informer(), Recorder(), Recorder()
    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=lambda obj, _: shared.remove_event_handler(registration)))
    registration = shared.add_event_handler(gone)
    shared.add_event_handler(stays)
    listed(shared, pod("a"), pod("b"))
    changed("c")(shared)
    assert (gone.take(), stays.take()) == ("", "initial a@1, initial b@1, added c@1")


async def test_handler_removal_is_final_also_from_within_a_resync() -> None:
    calls: list[Pod] = []

    def on_update(_: Pod, new: Pod) -> None:
        calls.append(new)
        run.informer.remove_event_handler(registration)

    async with running([watch(*FIRST, hang())], resync_period=10.0) as run:
        registration = run.informer.add_event_handler(ResourceEventHandlerFuncs(on_update=on_update))
        await asyncio.sleep(100)
    assert len(calls) == 1


def test_a_handler_that_raises_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shared, recorder = informer(), Recorder()

    def fail(*_: object) -> None:
        raise RuntimeError("broken handler")

    shared.add_event_handler(ResourceEventHandlerFuncs(on_add=fail, on_update=fail, on_delete=fail))
    shared.add_event_handler(recorder)
    listed(shared, pod("a"), pod("b"))
    shared.processor.changed(pod("a", "2"))
    deleted("a", "3")(shared)
    assert recorder.take() == "initial a@1, initial b@1, updated a@1 to a@2, deleted a@3"
    assert shared.has_synced()
    assert caplog.text.count("RuntimeError: broken handler") == 4
    assert "pods ns/a" in caplog.text
    assert "on_delete" in caplog.text


def without_labels(obj: Pod) -> Pod:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, labels=None))


async def test_a_transform_sees_every_object_before_it_is_stored() -> None:
    notifications: list[Pod] = []
    versions = [sent("b", str(version), labels={"x": "y"}) for version in (6, 7, 8)]
    events = added(versions[0]), modified(versions[1]), 2.0, deleted_event(versions[2])
    async with running([watch(*FIRST, *events, hang())], transform=without_labels) as run:
        run.informer.add_event_handler(
            ResourceEventHandlerFuncs(
                on_add=lambda obj, _: notifications.append(obj),
                on_update=lambda _, new: notifications.append(new),
                on_delete=lambda obj, _: notifications.append(obj),
            )
        )
        await asyncio.sleep(1)
        assert [obj.labels for obj in run.informer.indexer.list()] == [{}, {}]
        await asyncio.sleep(2)
    assert [versions_of(obj) for obj in notifications] == ["a@1", "b@6", "b@7", "b@8"]
    assert all(obj.labels == {} for obj in notifications)


LISTED = [sent("a", labels={"x": "y"}), sent("b")]
LISTS: dict[str, tuple[Reply, list[Reply]]] = {
    "a WatchList": (watch(*map(added, LISTED), bookmark("1", initial_events_end=True), hang()), []),
    "a list": (REFUSED, [listing(LISTED, "1")]),
}


@pytest.mark.parametrize(("watch_reply", "lists"), LISTS.values(), ids=LISTS)
async def test_a_transform_sees_the_objects_of_a_list(watch_reply: Reply, lists: list[Reply]) -> None:
    async with running([watch_reply], lists, transform=without_labels) as run:
        await run.informer.wait_for_sync(1.0)
        assert [obj.labels for obj in run.informer.indexer.list()] == [{}, {}]


def fail(_: Pod) -> Pod:
    raise RuntimeError("broken transform")


def forget(_: Pod) -> Pod:
    return None  # type: ignore[return-value]


@pytest.mark.parametrize("wrong", [fail, forget], ids=["raises", "returns nothing"])
async def test_a_transform_that_fails_keeps_the_stored_object(
    wrong: Callable[[Pod], Pod], caplog: pytest.LogCaptureFixture
) -> None:
    bad = {"app": "bad"}
    events = modified(sent("a", "6", labels=bad)), added(sent("b", "7", labels=bad))
    then = modified(sent("b", "8")), deleted_event(sent("a", "9", labels=bad))
    async with running(
        [watch(*FIRST, *events, 2.0, *then, hang())], transform=lambda obj: wrong(obj) if obj.labels == bad else obj
    ) as run:
        await asyncio.sleep(1)
        assert run.content() == "a@1"
        assert "pods ns/b: transform failed" in caplog.text
        assert run.informer.undecodable() == ["pods: cannot be transformed: ns/a, ns/b"]
        await asyncio.sleep(2)
        assert run.recorder.take() == "initial a@1, added b@8, missed a@1"
        assert run.informer.undecodable() == []


@pytest.mark.parametrize(("watch_reply", "lists"), LISTS.values(), ids=LISTS)
async def test_an_object_of_a_list_whose_transform_raises_is_left_out(watch_reply: Reply, lists: list[Reply]) -> None:
    async with running([watch_reply], lists, transform=lambda obj: fail(obj) if obj.labels else obj) as run:
        await run.informer.wait_for_sync(1.0)
        assert run.informer.indexer.list_keys() == ["ns/b"]
        assert run.informer.undecodable() == ["pods: cannot be transformed: ns/a"]


def test_an_index_with_holes_is_named_in_the_probes() -> None:
    shared = informer()
    shared.indexer.add_indexers({"app": lambda obj: [obj.labels["app"]]})
    shared.processor.changed(pod("a"))
    assert shared.undecodable() == ["pods: index app is incomplete, its function raised for ns/a"]


async def test_a_resync_repeats_every_object() -> None:
    shared = informer(resync_period=60.0, options=ReflectorOptions(silence_limit=3600.0))  # the server has no pod
    early_recorder, late_recorder = Recorder(), Recorder()
    shared.add_event_handler(early_recorder)
    shared.start()
    await asyncio.sleep(1)
    listed(shared, pod("a"))
    shared.add_event_handler(late_recorder)
    await asyncio.sleep(64)
    assert early_recorder.take() == "added a@1, updated a@1 to a@1"
    assert late_recorder.take() == "initial a@1, updated a@1 to a@1"
    await shared.stop()
    await asyncio.sleep(600)
    assert early_recorder.take() == ""


async def test_waiting_for_several_does_not_wait_for_a_missing_kind() -> None:
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
    shared.start()
    await settle()
    assert shared.healthy() == []
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "informer pods")
    task.cancel()
    await settle()
    assert shared.healthy() == ["pods: the informer's task ended"]
