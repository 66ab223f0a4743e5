"""Faults over a real connection: informer and client against the scripted API server.

Each fault is played between a first list (a, b) and a last state, and what the handler was told is compared, as is
what the indexer holds."""

import asyncio
import dataclasses
from dataclasses import dataclass, field

import pytest

from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.testing.polling import until
from kubeloop.testing.scripted_server import GET, LIST, WATCH, LiveWatch, Reply, cut, listing, raw, status, watch
from kubeloop.testing.scripted_steps import added, bookmark, deleted, drop, error, hang, line, modified, piece
from tests.kubeloop.cache.informing import DISCOVERY, NO_KIND, NOT_SERVED, PATH, REFUSED, SERVED, running, sent

pytestmark = pytest.mark.virtual_time

QUICK = ReflectorOptions(backoff_base=0.02, backoff_max=0.2, healthy_after=0.2, missing_poll=0.05)
IMPATIENT = dataclasses.replace(QUICK, silence_limit=0.4, initial_silence_limit=0.3)
A, B = sent("a"), sent("b")
BAD, NAMELESS = sent("a", "6", labels=17), {"metadata": {"name": 5}}
START = (added(A), added(B), bookmark("5", initial_events_end=True))
A6, A7 = (modified(sent("a", version)) for version in "67")
ENDED, GONE = bookmark("98", initial_events_end=True), error(410, "Expired")
EXPIRED = status(410, "Expired", "too old resource version: 5 (9)")
INITIAL = "initial a@1, initial b@1"


@dataclass
class WatchFault:
    """Replies to the watches and lists in turn; then what is told after the first list, held, and asked for."""

    watches: list[Reply]
    lists: list[Reply] = field(default_factory=list)
    notifications: str = ""
    content: str = "a@1 b@1"
    resumed_at: list[str] = field(default_factory=list)
    """The resourceVersions of the watches after the first; "" is a WatchList."""
    options: ReflectorOptions = QUICK


LAST = added(sent("end", "99")), hang()
END = watch(*LAST)
END_LIST = watch(added(A), added(B), ENDED, *LAST)
"""The last watch of each script: when `end` arrives, everything before it did."""

FAULTS: dict[str, WatchFault] = {
    "nothing goes wrong": WatchFault(
        [watch(*START, added(sent("c", "6")), A7, deleted(sent("b", "8"))), END],
        notifications="added c@6, updated a@1 to a@7, deleted b@8",
        content="a@7 c@6",
        resumed_at=["8"],
    ),
    "the connection is dropped: resumed, nothing told twice": WatchFault(
        [watch(*START, A6, drop()), END], notifications="updated a@1 to a@6", content="a@6 b@1", resumed_at=["6"]
    ),
    "a connection dropped within a line: no half event counts": WatchFault(
        [watch(*START, A6, piece(A7[:-20]), drop()), watch(A7, *LAST)],
        notifications="updated a@1 to a@6, updated a@6 to a@7",
        content="a@7 b@1",
        resumed_at=["6"],
    ),
    "the stream ends in the middle of a line, properly closed": WatchFault(
        [watch(*START, piece(A7[:-20])), END], resumed_at=["5"]
    ),
    "a connection dropped among the initial events": WatchFault(
        [watch(added(sent("z")), drop()), watch(*START), END], resumed_at=["", "5"]
    ),
    "an ERROR among the initial events: they are sent anew": WatchFault(
        [watch(added(sent("z")), GONE), watch(*START), END], resumed_at=["", "5"]
    ),
    "what changes among the initial events is taken into account": WatchFault(
        [
            watch(
                added(sent("a", "0")),
                added(B),
                added(sent("z")),
                modified(A),
                deleted(sent("z", "4")),
                bookmark("4"),
                START[-1],
            ),
            END,
        ],
        resumed_at=["5"],
    ),
    "410 as an HTTP status: a missed deletion arrives": WatchFault(
        [watch(*START), EXPIRED, watch(added(sent("a", "8")), ENDED, *LAST)],
        notifications="updated a@1 to a@8, missed b@1",
        content="a@8",
        resumed_at=["5", ""],
    ),
    "410 and a list instead of the WatchList: likewise": WatchFault(
        [REFUSED, watch(GONE), END],
        [listing([A, B], "5"), listing([B], "9")],
        notifications="missed a@1",
        content="b@1",
        resumed_at=["5", "9"],
    ),
    "an event of an unknown type is passed over": WatchFault(
        [watch(*START, line({"type": "RENAMED", "object": sent("a", "6")})), END], resumed_at=["6"]
    ),
    "a line that is not an event: listed anew": WatchFault([watch(*START, line(b"<html>")), END_LIST], resumed_at=[""]),
    "an ERROR event without a status: listed anew": WatchFault(
        [watch(*START, line({"type": "ERROR", "object": {}})), END_LIST], resumed_at=[""]
    ),
    "a server that starts (503, 429): the watch is resumed": WatchFault(
        [watch(*START, drop()), status(503, "ServiceUnavailable"), status(429, "TooManyRequests"), END],
        resumed_at=["5", "5", "5"],
    ),
    "429 as an event: the watch is resumed": WatchFault(
        [watch(*START, error(429, "TooManyRequests")), END], resumed_at=["5"]
    ),
    "the resourceVersion is too large (etcd restored)": WatchFault(
        [watch(*START, drop()), status(504, "Timeout", "Too large resource version: 5, current: 3"), END_LIST],
        resumed_at=["5", ""],
    ),
    "WatchList refused: a list, then a watch from it": WatchFault(
        [REFUSED, END], [listing([A, B], "5")], resumed_at=["5"]
    ),
    "a WatchList that fails in the server is tried again": WatchFault(
        [status(500, "InternalError"), EXPIRED, END_LIST], [listing([A, B], "4")], resumed_at=["4", ""]
    ),
    "WatchList unknown: no end of initial events, then a list": WatchFault(
        [watch(added(A), hang()), END], [listing([A, B], "5")], resumed_at=["5"], options=IMPATIENT
    ),
    "a list breaks off half-way": WatchFault(
        [REFUSED, END],
        [cut(b'{"metadata":{"resourceVersion":"4"},"items":[', 4000), listing([A, B], "5")],
        resumed_at=["5"],
    ),
    "the second page of a list fails: nothing of the first counts": WatchFault(
        [REFUSED, watch(GONE), END],
        [listing([A, B], "5"), listing([sent("z")], "8", "t1"), status(500, "InternalError"), listing([A, B], "9")],
        resumed_at=["5", "9"],
    ),
    "200 pages of a proxy are no lists": WatchFault(
        [REFUSED, watch(GONE), END],
        [listing([A, B], "5"), raw(b"<html>"), raw(b"{}"), raw(b'{"items":[]}'), listing([A, B], "9")],
        resumed_at=["5", "9"],
    ),
    "objects that do not decode, until their deletion": WatchFault(
        [watch(*START, modified(BAD), GONE), watch(added(BAD), ENDED, deleted(sent("a", "99", labels=17)), *LAST)],
        notifications="missed b@1, missed a@1",
        content="",
        resumed_at=[""],
    ),
    "an object that does not decode is of another life": WatchFault(
        [watch(*START, GONE), watch(added(sent("a", "6", uid="second", labels=17)), added(B), ENDED, *LAST)],
        notifications="missed a@1",
        content="b@1",
        resumed_at=[""],
    ),
    "one that does not decode is deleted among the initial events": WatchFault(
        [watch(*START, GONE), watch(added(BAD), deleted(sent("a", "7")), added(B), ENDED, *LAST)],
        notifications="missed a@1",
        content="b@1",
        resumed_at=[""],
    ),
    "a nameless one may be any of the missing ones": WatchFault(
        [watch(*START, GONE), watch(added(NAMELESS), ENDED, *LAST)], resumed_at=[""]
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_faults(fault: WatchFault) -> None:
    async with running(fault.watches, fault.lists, options=fault.options) as run:
        await until(lambda: "ns/end" in run.informer.indexer)
        assert run.informer.has_synced()
        assert run.recorder.take() == ", ".join(filter(None, (INITIAL, fault.notifications, "added end@99")))
        assert run.content() == f"{fault.content} end@99".strip()
        watches = run.server.seen(WATCH, PATH)
        assert [request.query.get("resourceVersion", "") for request in watches[1:]] == fault.resumed_at
        assert len(run.server.seen(LIST, PATH)) == len(fault.lists)
        assert run.server.unscripted == []
        for request in watches:
            assert request.query["allowWatchBookmarks"] == "true"
            assert 300 <= int(request.query["timeoutSeconds"]) <= 600
            initial = "resourceVersion" not in request.query
            assert (request.query.get("sendInitialEvents") == "true") is initial
            assert (request.query.get("resourceVersionMatch") == "NotOlderThan") is initial


async def test_a_restarted_server_and_its_changes_are_found() -> None:
    live = LiveWatch()
    async with running([watch(*START, hang()), live.reply], options=QUICK) as run:
        assert await run.informer.wait_for_sync(5)
        await run.server.stop()
        await asyncio.sleep(0.3)
        await run.server.start()
        await live.opened()
        live.send(deleted(sent("b", "9")))
        await until(lambda: "ns/b" not in run.informer.indexer)
        assert run.recorder.take() == f"{INITIAL}, deleted b@9"
        assert run.requests_made()[-1] == "WATCH 5"


async def test_a_deleted_crd_takes_its_objects_and_may_come_back() -> None:
    again = LiveWatch()
    async with running([watch(*START)], served=NOT_SERVED, options=QUICK) as run:
        run.server.always(WATCH, PATH, NO_KIND)
        await until(lambda: not run.informer.installed)
        assert run.recorder.take() == f"{INITIAL}, missed a@1, missed b@1"
        assert run.informer.has_synced()
        assert run.content() == ""
        run.server.script(WATCH, PATH, again.reply)
        run.server.always(GET, DISCOVERY, SERVED)
        await again.opened()
        again.send(added(sent("a", "20", uid="second")), bookmark("21", initial_events_end=True))
        await until(lambda: run.informer.installed)
        assert run.recorder.take() == "added a@20"
