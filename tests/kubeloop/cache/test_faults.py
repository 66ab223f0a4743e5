"""Faults over a real connection: informer and client against the scripted API server.

Each fault is played between a first list (a, b) and a last state, and what the handler was told is compared, as is
what the indexer holds.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.registry import PODS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.client.client import Client
from kubeloop.testing.polling import until
from kubeloop.testing.scripted_server import (
    GET,
    LIST,
    WATCH,
    LiveWatch,
    Reply,
    ScriptedServer,
    cut,
    listing,
    raw,
    resources,
    status,
    watch,
)
from kubeloop.testing.scripted_steps import added, bookmark, deleted, drop, error, hang, line, modified, obj, piece
from tests.kubeloop.cache.objects import Event, Recorder, at

pytestmark = pytest.mark.virtual_time

PATH = PODS.path()
QUICK = ReflectorOptions(backoff_base=0.02, backoff_max=0.2, healthy_after=0.2, missing_poll=0.05)
IMPATIENT = dataclasses.replace(QUICK, silence_limit=0.4, initial_silence_limit=0.3)


def pod(name: str, version: str = "1", **meta: Any) -> dict[str, Any]:
    return obj(name, version, "ns", metadata=meta)


A, B = pod("a"), pod("b")
START = (added(A), added(B), bookmark("5", initial_events_end=True))
REFUSED = status(422, "Invalid", "sendInitialEvents is forbidden for watch unless the feature gate is enabled")
EXPIRED = status(410, "Expired", "too old resource version: 5 (9)")
NO_KIND = raw(b"404 page not found\n", 404, {"Content-Type": "text/plain"})
INITIAL: list[Event] = [("add", "ns/a@1", True), ("add", "ns/b@1", True)]


@dataclass
class Fault:
    """Replies to the watches and lists in turn; then what is told after the first list, held, and asked for."""

    watches: list[Reply]
    lists: list[Reply] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    held: list[str] = field(default_factory=lambda: ["ns/a@1", "ns/b@1"])
    resumed_at: list[str] = field(default_factory=list)
    """The resourceVersions of the watches after the first; "" is a WatchList."""
    options: ReflectorOptions = QUICK


LAST = added(pod("end", "99")), hang()
END = watch(*LAST)
END_LIST = watch(added(A), added(B), bookmark("98", initial_events_end=True), *LAST)
"""The last watch of each script: when `end` arrives, everything before it did."""

FAULTS: dict[str, Fault] = {
    "nothing goes wrong": Fault(
        [watch(*START, added(pod("c", "6")), modified(pod("a", "7")), deleted(pod("b", "8"))), END],
        told=[("add", "ns/c@6", False), ("update", "ns/a@1", "ns/a@7"), ("delete", "ns/b@8", False)],
        held=["ns/a@7", "ns/c@6"],
        resumed_at=["8"],
    ),
    "the connection is dropped: resumed, nothing told twice": Fault(
        [watch(*START, modified(pod("a", "6")), drop()), END],
        told=[("update", "ns/a@1", "ns/a@6")],
        held=["ns/a@6", "ns/b@1"],
        resumed_at=["6"],
    ),
    "the connection is dropped in the middle of a line: the half event counts for nothing": Fault(
        [
            watch(*START, modified(pod("a", "6")), piece(modified(pod("a", "7"))[:-20]), drop()),
            watch(modified(pod("a", "7")), added(pod("end", "99")), hang()),
        ],
        told=[("update", "ns/a@1", "ns/a@6"), ("update", "ns/a@6", "ns/a@7")],
        held=["ns/a@7", "ns/b@1"],
        resumed_at=["6"],
    ),
    "the stream ends in the middle of a line, properly closed": Fault(
        [watch(*START, piece(modified(pod("a", "7"))[:-20])), END], resumed_at=["5"]
    ),
    "the connection is dropped among the initial events: they are sent anew": Fault(
        [watch(added(pod("z")), drop()), watch(*START), END], resumed_at=["", "5"]
    ),
    "410 as an HTTP status: a deletion missed meanwhile arrives as a final state unknown": Fault(
        [
            watch(*START),
            EXPIRED,
            watch(added(pod("a", "8")), bookmark("98", initial_events_end=True), added(pod("end", "99")), hang()),
        ],
        told=[("update", "ns/a@1", "ns/a@8"), ("delete", "ns/b@1", True)],
        held=["ns/a@8"],
        resumed_at=["5", ""],
    ),
    "410 and a list instead of the WatchList: likewise": Fault(
        [REFUSED, watch(error(410, "Expired")), END],
        [listing([A, B], "5"), listing([B], "9")],
        told=[("delete", "ns/a@1", True)],
        held=["ns/b@1"],
        resumed_at=["5", "9"],
    ),
    "an event of an unknown type is passed over": Fault(
        [watch(*START, line({"type": "RENAMED", "object": pod("a", "6")})), END], resumed_at=["6"]
    ),
    "a line that is not an event: listed anew": Fault([watch(*START, line(b"<html>")), END_LIST], resumed_at=[""]),
    "an ERROR event without a status: listed anew": Fault(
        [watch(*START, line({"type": "ERROR", "object": {}})), END_LIST], resumed_at=[""]
    ),
    "the server is starting (503, 429): the watch is resumed when it is up": Fault(
        [watch(*START, drop()), status(503, "ServiceUnavailable"), status(429, "TooManyRequests"), END],
        resumed_at=["5", "5", "5"],
    ),
    "the resourceVersion is too large (etcd restored)": Fault(
        [watch(*START, drop()), status(504, "Timeout", "Too large resource version: 5, current: 3"), END_LIST],
        resumed_at=["5", ""],
    ),
    "WatchList refused: a list, then a watch from it": Fault([REFUSED, END], [listing([A, B], "5")], resumed_at=["5"]),
    "WatchList unknown: initial events without an end, then a list": Fault(
        [watch(added(A), hang()), END], [listing([A, B], "5")], resumed_at=["5"], options=IMPATIENT
    ),
    "a list breaks off half-way": Fault(
        [REFUSED, END],
        [cut(b'{"metadata":{"resourceVersion":"4"},"items":[', 4000), listing([A, B], "5")],
        resumed_at=["5"],
    ),
    "200 pages of a proxy are no lists": Fault(
        [REFUSED, watch(error(410, "Expired")), END],
        [listing([A, B], "5"), raw(b"<html>"), raw(b"{}"), raw(b'{"items":[]}'), listing([A, B], "9")],
        resumed_at=["5", "9"],
    ),
    "objects that do not decode, on the watch, on a relist and at their deletion": Fault(
        [
            watch(*START, modified(pod("a", "6", labels=17)), error(410, "Expired")),
            watch(
                added(pod("a", "6", labels=17)),
                bookmark("98", initial_events_end=True),
                deleted(pod("a", "99", labels=17)),
                *LAST,
            ),
        ],
        told=[("delete", "ns/b@1", True), ("delete", "ns/a@1", True)],
        held=[],
        resumed_at=[""],
    ),
}


@asynccontextmanager
async def informing(server: ScriptedServer, *handlers: Any, **options: Any) -> AsyncIterator[SharedIndexInformer[Pod]]:
    async with Client(server.config()) as client:
        informer = SharedIndexInformer(client.resource(PODS), **{"options": QUICK, **options})
        for handler in handlers:
            informer.add_event_handler(handler)
        informer.start()
        try:
            yield informer
        finally:
            await informer.stop()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_faults(fault: Fault) -> None:
    async with ScriptedServer() as server:
        server.script(WATCH, PATH, *fault.watches)
        server.script(LIST, PATH, *fault.lists)
        server.always(GET, "/api/v1", resources("v1", "pods"))
        recorder = Recorder()
        async with informing(server, recorder, options=fault.options) as informer:
            await until(lambda: "ns/end" in informer.indexer)
            assert informer.has_synced()
            assert recorder.take() == [*INITIAL, *fault.told, ("add", "ns/end@99", False)]
            held = sorted(at(each) for each in informer.indexer.list() if each.name != "end")
            assert held == fault.held
        watches = server.seen(WATCH, PATH)
        assert [seen.query.get("resourceVersion", "") for seen in watches[1:]] == fault.resumed_at
        assert len(server.seen(LIST, PATH)) == len(fault.lists)
        assert server.unscripted == []
        for seen in watches:
            assert seen.query["allowWatchBookmarks"] == "true"
            assert 300 <= int(seen.query["timeoutSeconds"]) <= 600
            initial = "resourceVersion" not in seen.query
            assert (seen.query.get("sendInitialEvents") == "true") is initial
            assert (seen.query.get("resourceVersionMatch") == "NotOlderThan") is initial


async def test_a_restarted_server_is_found_again_and_what_changed_meanwhile_too() -> None:
    async with ScriptedServer() as server:
        live = LiveWatch()
        server.script(WATCH, PATH, watch(*START, hang()), live.reply)
        recorder = Recorder()
        async with informing(server, recorder) as informer:
            assert await informer.wait_for_sync(5)
            await server.stop()
            await asyncio.sleep(0.3)
            await server.start()
            await live.opened()
            live.send(deleted(pod("b", "9")))
            await until(lambda: "ns/b" not in informer.indexer)
        assert recorder.take() == [*INITIAL, ("delete", "ns/b@9", False)]
        assert server.seen(WATCH, PATH)[-1].query["resourceVersion"] == "5"


async def test_a_crd_that_is_deleted_takes_its_objects_along_and_may_come_back() -> None:
    async with ScriptedServer() as server:
        recorder, again = Recorder(), LiveWatch()
        server.script(WATCH, PATH, watch(*START))
        server.always(WATCH, PATH, NO_KIND)
        server.always(GET, "/api/v1", resources("v1", "secrets"))
        async with informing(server, recorder) as informer:
            await until(lambda: not informer.installed)
            assert recorder.take() == [*INITIAL, ("delete", "ns/a@1", True), ("delete", "ns/b@1", True)]
            assert informer.has_synced()
            assert len(informer.indexer) == 0
            server.script(WATCH, PATH, again.reply)
            server.always(GET, "/api/v1", resources("v1", "secrets", "pods"))
            await again.opened()
            again.send(added(pod("a", "20", uid="second")), bookmark("21", initial_events_end=True))
            await until(lambda: informer.installed)
            assert recorder.take() == [("add", "ns/a@20", False)]
