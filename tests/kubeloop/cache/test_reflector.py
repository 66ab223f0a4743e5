"""The reflector under virtual time: which requests it makes, when, and what its store holds."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.cache.processor import SharedProcessor
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.cache.reflector import Reflector
from kubeloop.cache.store import Indexer
from kubeloop.client.decode import ListPage, WatchEvent
from kubeloop.client.errors import (
    Forbidden,
    Gone,
    NotFound,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kubeloop.testing.virtual_time import now, settle
from tests.kubeloop.cache.fake_client import FakeClient, Hang, Step, bookmark, error, event, listing, undecodable
from tests.kubeloop.cache.objects import at, pod

pytestmark = pytest.mark.virtual_time

FIRST: list[Step] = [event("ADDED", pod("a")), bookmark("5", end=True)]
MISSING = NotFound("the server could not find the requested resource")
DOWN = Unreachable("refused")


class Run:
    """A running reflector and its store."""

    def __init__(self, client: FakeClient, **options: object) -> None:
        self.client = client
        self.store: Indexer[Pod] = Indexer()
        self.reflector: Reflector[Pod] = Reflector(
            client,
            SharedProcessor("pods", self.store),
            rand=random.Random(1),
            options=ReflectorOptions(**options),  # type: ignore[arg-type]
        )

    def held(self) -> list[str]:
        return sorted(at(obj) for obj in self.store.list())


@asynccontextmanager
async def running(client: FakeClient, **options: object) -> AsyncIterator[Run]:
    run = Run(client, **options)
    task = asyncio.create_task(run.reflector.run())
    try:
        await settle()
        yield run
    finally:
        task.cancel()
        await asyncio.wait([task])


# Each: watches, lists, then what was asked for and what is held after a minute.
Script = tuple[list[list[Step] | Exception], list[ListPage[Pod] | Exception], list[tuple[str, str]], list[str]]
SEQUENCES: dict[str, Script] = {
    "what changes among the initial events is taken into account": (
        [
            [
                event("ADDED", pod("a")),
                event("ADDED", pod("b")),
                event("MODIFIED", pod("a", "3")),
                event("DELETED", pod("b", "4")),
                bookmark("4"),
                bookmark("5", end=True),
                Hang(),
            ]
        ],
        [],
        [("watch", "initial")],
        ["ns/a@3"],
    ),
    "a WatchList that fails in the server is tried again next time": (
        [ServerError("x"), [Gone("x")], [*FIRST, Hang()]],
        [listing([pod("z")], "4")],
        [("watch", "initial"), ("list", ""), ("watch", "4"), ("watch", "initial")],
        ["ns/a@1"],
    ),
    "an ERROR among the initial events starts them again": (
        [[event("ADDED", pod("z")), error(410, "Expired")], [*FIRST, Hang()]],
        [],
        [("watch", "initial")] * 2,
        ["ns/a@1"],
    ),
    "429 as an event resumes the watch": (
        [[*FIRST, error(429, "TooManyRequests")], [Hang()]],
        [],
        [("watch", "initial"), ("watch", "5")],
        ["ns/a@1"],
    ),
}


@pytest.mark.parametrize(("watches", "lists", "asked", "held"), SEQUENCES.values(), ids=SEQUENCES)
async def test_sequences(
    watches: list[list[Step] | Exception],
    lists: list[ListPage[Pod] | Exception],
    asked: list[tuple[str, str]],
    held: list[str],
) -> None:
    async with running(FakeClient(lists, watches)) as run:
        await asyncio.sleep(60)
        assert run.client.log() == asked
        assert run.held() == held


async def test_an_expired_continue_token_leads_to_one_list_without_pages() -> None:
    expired = Gone("The provided continue parameter is too old")
    client = FakeClient([listing([pod("a")], "5", "t1"), expired, listing([pod("b")], "9")])
    async with running(client, watch_list=False) as run:
        assert client.log() == [("list", ""), ("list", "t1"), ("list", ""), ("watch", "9")]
        assert client.requests[2].options["limit"] == 0
        assert run.held() == ["ns/b@1"]


async def test_a_list_that_fails_half_way_changes_nothing() -> None:
    client = FakeClient(
        [listing([pod("a")], "5"), listing([pod("z")], "8", "t1"), DOWN, listing([pod("b")], "9")],
        [[2.0, error(410, "Expired")]],
    )
    async with running(client, watch_list=False) as run:
        await asyncio.sleep(2.5)
        assert client.log()[-1] == ("list", "t1")
        assert run.held() == ["ns/a@1"]
        await asyncio.sleep(5)
        assert run.held() == ["ns/b@1"]


async def test_a_watch_asks_for_five_to_ten_minutes_each_a_different_time() -> None:
    client = FakeClient(watches=[[*FIRST, 2.0]] + [[2.0]] * 20)
    async with running(client):
        await asyncio.sleep(40)
    timeouts = [request.options["timeout_seconds"] for request in client.requests]
    assert all(300 <= timeout <= 600 for timeout in timeouts)
    assert len(set(timeouts)) > 10


async def test_silence_ends_a_watch_which_is_resumed_at_once() -> None:
    client = FakeClient(watches=[[*FIRST, Hang()], [30.0, bookmark("8"), Hang()], [Hang()]])
    async with running(client, silence_limit=100.0) as run:
        await asyncio.sleep(250)
        assert client.log() == [("watch", "initial"), ("watch", "5"), ("watch", "8")]
        assert client.times() == pytest.approx([0.0, 100.0, 230.0], abs=8)
        assert run.reflector.health.problems(now()) == []


class NeverOpened(FakeClient):
    """The second watch gets no answer at all."""

    @asynccontextmanager
    async def watch(self, **options: Any) -> AsyncIterator[AsyncIterator[WatchEvent[Pod]]]:
        async with super().watch(**options) as events:
            if len(self.requests) == 2:
                await asyncio.Event().wait()
            yield events


async def test_a_watch_whose_answer_does_not_begin_is_given_up_like_any_request() -> None:
    client = NeverOpened(watches=[[*FIRST, DOWN]])
    async with running(client) as run:
        await asyncio.sleep(60)
        assert client.log() == [("watch", "initial"), ("watch", "5"), ("watch", "5")]
        assert 30 <= client.times()[2] <= 34
        assert run.held() == ["ns/a@1"]


async def test_bookmarks_alone_keep_a_watch_alive() -> None:
    minutes = [step for minute in range(1, 9) for step in (60.0, bookmark(str(100 + minute)))]
    client = FakeClient(watches=[[*FIRST, *minutes, Hang()]])
    async with running(client, min_watch_timeout=3600.0) as run:
        await asyncio.sleep(8.5 * 60)
        assert client.log() == [("watch", "initial")]
        assert run.reflector.last_sync_resource_version == "108"
        assert run.reflector.health.problems(now()) == []


async def test_a_watch_that_the_server_forgets_to_end_is_ended_here() -> None:
    chatter = [step for i in range(1000) for step in (10.0, bookmark(str(10 + i)))]
    client = FakeClient(watches=[[*FIRST, *chatter], [Hang()]])
    async with running(client):
        await asyncio.sleep(900)
    asked_for = client.requests[0].options["timeout_seconds"]
    assert client.times()[1] == pytest.approx(asked_for + 30, abs=2)


async def test_events_in_quick_succession_do_not_shorten_the_silence_limit() -> None:
    steps = [step for i in range(400) for step in (0.5, bookmark(str(10 + i)))]
    client = FakeClient(watches=[[*FIRST, *steps, Hang()], [Hang()]])
    async with running(client, silence_limit=32.0):
        await asyncio.sleep(260)
    # The last event is at 200 s; the limit counts from there, within a sixteenth.
    assert 200 + 30 <= client.times()[1] <= 200 + 32


async def test_a_watch_that_brought_something_is_resumed_at_once_however_many_failed_before() -> None:
    brings: list[Step] = [event("MODIFIED", pod("a", "6")), 2.0, DOWN]
    client = FakeClient(watches=[[*FIRST, DOWN], DOWN, DOWN, DOWN, brings, [Hang()]])
    async with running(client):
        await asyncio.sleep(60)
    assert client.times()[5] - client.times()[4] == 2.0


async def test_retry_now_ends_a_pause() -> None:
    client = FakeClient(watches=[*[DOWN] * 8, [*FIRST, Hang()]])
    async with running(client) as run:
        await asyncio.sleep(70)
        asked = len(client.requests)
        run.reflector.retry_now()
        await settle()
        assert len(client.requests) == asked + 1


# -- kinds that are not installed


def missing(watches: list[list[Step] | Exception] | None = None) -> FakeClient:
    """A server that does not know the kind, and what its watches answer."""
    return FakeClient(watches=watches or [MISSING] * 5000, served=False)


async def test_a_missing_kind_is_polled_with_one_request_each_and_starts_when_it_appears() -> None:
    client = missing([MISSING, [*FIRST, Hang()]])
    async with running(client) as run:
        assert not run.reflector.installed
        await asyncio.sleep(144)
        assert client.log() == [("watch", "initial")]
        assert client.discoveries in (3, 4)
        assert run.reflector.health.problems(now()) == []
        client.served = True
        await asyncio.sleep(72)
        assert run.reflector.installed
        assert run.held() == ["ns/a@1"]


async def test_news_of_a_crd_starts_its_kind_at_once_and_a_moment_of_404_does_not_cost_a_whole_poll() -> None:
    client = missing([MISSING, MISSING, [*FIRST, Hang()]])
    async with running(client) as run:
        await asyncio.sleep(1)
        run.reflector.retry_now()
        await settle()
        assert client.discoveries == 2
        client.served = True
        await asyncio.sleep(2)
        assert run.held() == ["ns/a@1"]


UNCONFIRMED: dict[str, bool | Exception] = {
    "discovery still lists the kind": True,
    "discovery cannot be reached": DOWN,
    "discovery is a 404 page too": MISSING,
    "discovery answers something else": ServerError("not an APIResourceList"),
    "discovery is not allowed": Forbidden("no"),
}


@pytest.mark.parametrize("served", UNCONFIRMED.values(), ids=UNCONFIRMED)
async def test_a_store_is_never_emptied_because_a_proxy_said_404(served: bool | Exception) -> None:
    client = FakeClient(watches=[[*FIRST, 3.0], *[MISSING] * 100], served=served)
    async with running(client) as run:
        await asyncio.sleep(900)
        assert (run.held(), run.reflector.installed) == (["ns/a@1"], True)
        assert run.reflector.health.problems(now()) != []


async def test_a_404_at_the_start_that_nothing_confirms_is_no_missing_kind() -> None:
    async with running(FakeClient(watches=[MISSING, MISSING, [*FIRST, Hang()]], served=DOWN)) as run:
        assert run.reflector.installed
        await asyncio.sleep(10)
        assert run.held() == ["ns/a@1"]


# -- objects that do not decode


BAD_A = ObjectMeta(name="a", namespace="ns", uid="uid-a", resource_version="7")
NAMELESS = ObjectMeta()
UNDECODABLE: dict[str, tuple[list[list[Step] | Exception], list[str]]] = {
    "on the watch": ([[*FIRST, undecodable("MODIFIED", BAD_A), Hang()]], ["ns/a@1"]),
    "on a relist": (
        [[*FIRST, error(410, "Expired")], [undecodable("ADDED", BAD_A), bookmark("9", end=True), Hang()]],
        ["ns/a@1"],
    ),
    "on a relist that tells not even its name": (
        [[*FIRST, error(410, "Expired")], [undecodable("ADDED", NAMELESS), bookmark("9", end=True), Hang()]],
        ["ns/a@1"],
    ),
    "but not that of its predecessor": (
        [
            [*FIRST, error(410, "Expired")],
            [undecodable("ADDED", ObjectMeta(name="a", namespace="ns", uid="second")), bookmark("9", end=True), Hang()],
        ],
        [],
    ),
    "and goes when it is deleted, decodable or not": (
        [[*FIRST, undecodable("MODIFIED", BAD_A), undecodable("DELETED", BAD_A), Hang()]],
        [],
    ),
    "also among the initial events": (
        [
            [*FIRST, error(410, "Expired")],
            [undecodable("ADDED", BAD_A), undecodable("DELETED", BAD_A), bookmark("9", end=True), Hang()],
        ],
        [],
    ),
}


@pytest.mark.parametrize(("watches", "held"), UNDECODABLE.values(), ids=UNDECODABLE)
async def test_an_object_that_does_not_decode_keeps_its_last_known_state(
    watches: list[list[Step] | Exception], held: list[str]
) -> None:
    async with running(FakeClient(watches=watches)) as run:
        await asyncio.sleep(60)
        assert run.held() == held


async def test_a_list_with_a_nameless_object_is_followed_by_another_when_its_watch_ends() -> None:
    client = FakeClient(
        [listing([pod("a")], "5"), listing([], "6", undecodable=[NAMELESS]), listing([], "7")],
        [[error(410, "Expired")], [30.0]],
    )
    async with running(client, watch_list=False) as run:
        await asyncio.sleep(20)
        assert run.held() == ["ns/a@1"]
        await asyncio.sleep(20)
        assert run.held() == []
        assert client.log() == [
            ("list", ""), ("watch", "5"), ("list", ""), ("watch", "6"), ("list", ""), ("watch", "7")
        ]  # fmt: skip


async def test_what_did_not_decode_is_looked_at_again_and_ever_more_seldom_while_it_stays_so() -> None:
    """A proxy may have spoilt it: without another change its last state would stay for ever."""
    bad = ObjectMeta(name="a", namespace="ns", resource_version="6")
    client = FakeClient(
        [listing([pod("a")], "5"), *[listing([], "7", undecodable=[bad])] * 3, listing([pod("a", "6")], "8")],
        [[undecodable("MODIFIED", bad), undecodable("MODIFIED", bad), Hang()]],
    )
    async with running(client, watch_list=False, silence_limit=3600.0) as run:
        await asyncio.sleep(29)
        assert run.held() == ["ns/a@1"]
        await asyncio.sleep(1000)
        assert run.held() == ["ns/a@6"]
        lists = [request.at for request in client.requests if request.verb == "list"]
        waits = [after - before for before, after in itertools.pairwise(lists)]
        assert len(waits) == 4
        for wait, shortest in zip(waits, (30, 60, 120, 240), strict=True):
            assert shortest <= wait <= 2 * shortest + 1
        assert run.reflector.health.trouble is None


# -- WatchList


async def test_one_slow_watch_list_does_not_switch_watch_list_off_for_ever() -> None:
    expired = [*FIRST, error(410, "Expired")]
    client = FakeClient([listing([pod("a")], "5")], [[Hang()], [error(410, "Expired")], expired, [Hang()], expired])
    async with running(client):
        await asyncio.sleep(200)
    assert client.log()[:5] == [
        ("watch", "initial"), ("list", ""), ("watch", "5"), ("watch", "initial"), ("watch", "initial"),
    ]  # fmt: skip


async def test_a_server_that_never_ends_its_initial_events_is_no_longer_asked_to() -> None:
    slow: list[list[Step] | Exception] = [[Hang()], [error(410, "Expired")]]
    client = FakeClient([listing([], "5")] * 9, [*slow, *slow, *slow, [error(410, "Expired")], [Hang()]])
    async with running(client):
        await asyncio.sleep(200)
    assert client.log().count(("watch", "initial")) == 3


# -- health and what is logged


async def test_a_server_that_stays_away_becomes_a_problem_and_stops_being_one() -> None:
    client = FakeClient(watches=[[*FIRST, 10.0, DOWN], *[DOWN] * 25, [bookmark("6"), Hang()]])
    async with running(client) as run:
        await asyncio.sleep(250)
        assert run.reflector.health.problems(now()) == []
        await asyncio.sleep(50)
        assert run.reflector.health.problems(now()) == ["pods: no data from the server for 300 s (refused)"]
        await asyncio.sleep(500)
        assert len(client.requests) > 26
        assert run.reflector.health.problems(now()) == []


async def test_a_silence_that_is_allowed_is_no_problem() -> None:
    client = FakeClient(watches=[[*FIRST, Hang()]])
    async with running(client, silence_limit=900.0, min_watch_timeout=3600.0) as run:
        await asyncio.sleep(899)
        assert len(client.requests) == 1
        assert run.reflector.health.problems(now()) == []


def test_a_reflector_that_was_not_started_has_no_problems() -> None:
    assert Reflector(FakeClient(), SharedProcessor("pods", Indexer())).health.problems(1e9) == []


NO_RIGHT = Forbidden("pods is forbidden")
NO_NAME = Unauthorized("Unauthorized")
LOGGED: dict[str, tuple[list[list[Step] | Exception], list[str]]] = {
    "the same refusal is said once": ([NO_RIGHT] * 5, ["pods is forbidden"]),
    "another refusal is said too": ([NO_RIGHT, NO_RIGHT, NO_NAME, NO_NAME], ["pods is forbidden", "Unauthorized"]),
    "the same after it was well is said again": (
        [NO_RIGHT, NO_RIGHT, [*FIRST, event("ADDED", pod("b", "6")), 2.0], NO_RIGHT, NO_RIGHT],
        ["pods is forbidden", "pods is forbidden"],
    ),
    "a server that stays away is said once": ([DOWN] * 5, ["refused"]),
    "503 and 429 are two things": ([ServiceUnavailable("starting"), TooManyRequests("busy")], ["starting", "busy"]),
    "an expired version is no warning": ([[*FIRST, error(410, "Expired")], FIRST], []),
}


async def test_a_missing_kind_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with running(missing()):
        await asyncio.sleep(100)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize(("watches", "warnings"), LOGGED.values(), ids=LOGGED)
async def test_what_is_logged_as_a_warning(
    watches: list[list[Step] | Exception], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(FakeClient(watches=[*watches, [bookmark("1", end=True), Hang()]])):
        await asyncio.sleep(100)
    said = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert said == [f"pods: list or watch failed: {text}" for text in warnings]


async def test_a_bug_in_the_sink_is_logged_with_its_traceback_and_the_kind_listed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(SharedProcessor[Pod]):
        def changed(self, obj: Pod) -> None:
            raise ValueError("bug")

    client = FakeClient(watches=[[*FIRST, event("MODIFIED", pod("a", "6"))], [*FIRST, Hang()]])
    reflector: Reflector[Pod] = Reflector(client, Broken("pods", Indexer()))
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(10)
    assert client.log() == [("watch", "initial")] * 2
    assert "ValueError: bug" in caplog.text
    assert not task.done()
    task.cancel()
