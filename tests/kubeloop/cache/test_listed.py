"""Kinds that are listed instead of watched, and an API server whose etcd was restored from a backup."""

import asyncio

import pytest

from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.testing.scripted_server import LIST, WATCH, Reply, body, listing, status, watch
from kubeloop.testing.scripted_steps import added, bookmark, hang, modified
from tests.decisions import sentences
from tests.kubeloop.cache.informing import ONE, PATH, RunningInformer, running, sent

pytestmark = pytest.mark.virtual_time

POLL = ReflectorOptions().list_poll
NO_RIGHT = status(403, "Forbidden", 'pods is forbidden: User "a" cannot watch resource "pods"')
NO_WATCH = status(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def metrics(*names: str) -> Reply:
    """A list of metrics.k8s.io: neither it nor its items have a resourceVersion."""
    items = [{"metadata": {"name": name, "namespace": "ns"}} for name in names]
    return body({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items})


LISTED: dict[str, tuple[Reply, list[Reply]]] = {
    "whose lists have no resourceVersion": (NO_WATCH, [metrics("a"), metrics("a", "b")]),
    "that has no watch": (NO_WATCH, [listing([sent("a")], "5"), listing([sent("a"), sent("b")], "6")]),
    "that may not be watched": (NO_RIGHT, [listing([sent("a")], "5"), listing([sent("a"), sent("b")], "6")]),
}


def names(run: RunningInformer) -> list[str]:
    return sorted(pod.name for pod in run.informer.indexer.list())


@sentences(LISTED)
async def test_a_kind_is_listed_again_and_again(
    case: tuple[Reply, list[Reply]], caplog: pytest.LogCaptureFixture
) -> None:
    refused, lists = case
    async with running([], lists) as run:
        run.server.always(WATCH, PATH, refused)
        run.server.always(LIST, PATH, lists[-1])
        await asyncio.wait_for(run.informer.wait_for_sync(), 5)
        assert names(run) == ["a"]
        await asyncio.sleep(POLL + 1)
        assert names(run) == ["a", "b"]
        await asyncio.sleep(20 * POLL)
        assert run.problems() == []
        assert len(run.server.seen(LIST, PATH)) == pytest.approx(22, abs=1)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith("pods: listed every 30 s instead of watched: ")


async def test_a_kind_is_watched_as_soon_as_it_may_be() -> None:
    async with running([NO_RIGHT, watch(added(sent("a")), bookmark("7", initial_events_end=True), hang())]) as run:
        run.server.script(LIST, PATH, listing([sent("a")], "5"))
        await asyncio.sleep(POLL + 1)
        assert run.requests_made() == ["WATCH initial", "GET", "WATCH initial"]


async def test_a_lost_right_leaves_no_stale_cache_behind() -> None:
    start = watch(added(sent("a")), bookmark("5", initial_events_end=True))
    async with running([start], [listing([sent("b")], "9")]) as run:
        run.server.always(WATCH, PATH, NO_RIGHT)
        await asyncio.sleep(5)
        assert names(run) == ["b"]


@pytest.mark.parametrize("sign", [modified(sent("a", "350")), bookmark("399")], ids=["an event", "a bookmark"])
async def test_a_version_before_the_last_one_is_a_restored_etcd(sign: bytes) -> None:
    """Changes after the backup are gone, and no watch will ever say so."""
    first_events = added(sent("a", "900")), added(sent("b", "901")), bookmark("901", initial_events_end=True)
    restored_events = added(sent("a", "400")), bookmark("400", initial_events_end=True), hang()
    async with running([watch(*first_events, sign, hang()), watch(*restored_events)]) as run:
        await asyncio.sleep(5)
        assert run.content() == "a@400"
        assert run.requests_made() == ["WATCH initial"] * 2
        heard = run.recorder.take()
        assert "missed b@901" in heard
        assert "a@350" not in heard, "an older state is news only as a part of the whole"


RESTORED = bookmark("400", initial_events_end=True)
BACK = listing([sent("b", "300")], "400")
EMPTY = watch(bookmark("901", initial_events_end=True), hang())
UNDONE: dict[str, tuple[list[Reply], list[Reply], list[str]]] = {
    "as a WatchList says": (
        [EMPTY, watch(RESTORED), watch(added(sent("b", "300")), RESTORED, hang())],
        [],
        ["WATCH initial"] * 3,
    ),
    "as a list says": (
        [status(422, "Invalid", "sendInitialEvents is forbidden")],
        [listing([], "901"), BACK, BACK],
        ["WATCH initial", "GET", "WATCH 901", "GET", "GET", "WATCH 400"],
    ),
}


@sentences(UNDONE)
async def test_an_empty_kind_at_an_older_version_was_restored(
    case: tuple[list[Reply], list[Reply], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """No watch from the last version on would say what is there again; nor is it a silence of its watches."""
    watches, lists, requests = case
    async with running(watches, lists) as run:
        await asyncio.sleep(70)
        assert (run.content(), run.problems()) == ("b@300", [])
        assert run.requests_made() == requests
    assert "watches bring nothing" not in caplog.text


DELETIONS: dict[str, tuple[list[Reply], list[Reply], Reply, list[str]]] = {
    "as a WatchList of one object says": (
        [
            watch(added(sent("a", "300")), bookmark("901", initial_events_end=True), hang()),
            watch(added(sent("a", "300")), added(sent("b", "350")), RESTORED, hang()),
        ],
        [],
        watch(added(sent("a", "300")), RESTORED),
        ["WATCH initial"] * 2,
    ),
    "as a list of one object says": (
        [status(422, "Invalid", "sendInitialEvents is forbidden")],
        [listing([sent("a", "300")], "901"), *[listing([sent("a", "300"), sent("b", "350")], "400")] * 2],
        watch(added(sent("a", "300")), hang()),
        ["WATCH initial", "GET", "WATCH 901", "GET", "GET", "WATCH 400"],
    ),
}


@sentences(DELETIONS)
async def test_a_restore_that_undid_deletions_alone_is_noticed(
    case: tuple[list[Reply], list[Reply], Reply, list[str]],
) -> None:
    """The newest object that is cached is as it was: only the kind's version tells."""
    watches, lists, probe, requests = case
    async with running(watches, lists) as run:
        run.server.always(WATCH, ONE, probe)
        await asyncio.sleep(70)
        assert (run.content(), run.problems()) == ("a@300 b@350", [])
        assert run.requests_made() == requests


async def test_a_watch_of_a_version_beyond_a_restored_etcd_is_ended() -> None:
    """It is as silent as one of a kind that nothing happens to."""
    first_events = added(sent("a", "900")), added(sent("b", "30")), bookmark("901", initial_events_end=True), hang()
    restored_events = added(sent("a", "400")), added(sent("c", "399")), bookmark("410", initial_events_end=True), hang()
    async with running([watch(*first_events), watch(added(sent("a", "400"))), watch(*restored_events)]) as run:
        await asyncio.sleep(100)
        assert run.content() == "a@400 c@399"
        assert run.problems() == []
