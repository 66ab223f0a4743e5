"""Streams against a scripted server: whole lines, and each way in which a watch can break."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from kubeloop.client import errors
from kubeloop.testing.scripted_server import LiveWatch, Reply, body, refuse, status, watch
from kubeloop.testing.scripted_steps import drop, hang, line, piece
from tests.kubeloop.client.rig import PATH, WATCHED, TransportRig, read_stream

pytestmark = pytest.mark.virtual_time

OK = body({"ok": True})


async def test_a_stream_that_ends_properly_gives_its_lines(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, watch(line(b"one"), piece(b"tw"), 0.01, line(b"o"), line(b""), line(b"3")))
    assert await read_stream(rig.transport) == [b"one", b"two", b"3"]


@dataclass(frozen=True)
class BrokenStream:
    name: str
    reply: Reply
    lines: list[bytes]
    message: str


BROKEN = [
    BrokenStream("a reset between lines", watch(line(b"a"), drop()), [b"a"], "connection lost"),
    BrokenStream("a reset within a line", watch(line(b"a"), piece(b"b"), drop()), [b"a"], "connection lost"),
    BrokenStream("an end within a line", watch(line(b"a"), piece(b"b")), [b"a"], "in the middle of a line"),
    BrokenStream("no answer", refuse(), [], "connection lost"),
    BrokenStream("silence after a line", watch(line(b"a"), hang()), [b"a"], "connection lost: timed out"),
    BrokenStream("silence from the start", watch(hang()), [], "connection lost: timed out"),
    BrokenStream("silence within a line", watch(piece(b"a"), hang()), [], "connection lost: timed out"),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c.name)
async def test_a_broken_stream_is_unreachable_after_its_whole_lines(rig: TransportRig, case: BrokenStream) -> None:
    rig.server.script("WATCH", PATH, case.reply)
    got: list[bytes] = []
    with pytest.raises(errors.Unreachable, match=case.message) as caught:
        await read_stream(rig.transport, 0.15, got)
    assert got == case.lines
    assert rig.server.url in str(caught.value)


async def test_a_stream_that_speaks_now_and_then_stays_open(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, watch(0.1, line(b"a"), 0.1, line(b"a"), 0.1, line(b"a"), 0.1, line(b"a")))
    assert await read_stream(rig.transport, read_timeout=0.3) == [b"a"] * 4


async def test_a_refused_stream_raises_on_entry_and_is_not_retried(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, status(503, "ServiceUnavailable", retry_after=0))
    with pytest.raises(errors.ServiceUnavailable):
        await read_stream(rig.transport)
    assert len(rig.server.requests) == 1
    assert rig.sleeps == []


async def test_leaving_a_stream_closes_its_connection(rig: TransportRig) -> None:
    live = LiveWatch()
    rig.server.script("WATCH", PATH, live.reply)
    async with rig.transport.stream(PATH, WATCHED) as lines:
        live.send(line(b"a"))
        assert await anext(lines) == b"a"
    await asyncio.wait_for(live.closed.wait(), 2.0)


async def test_an_error_of_the_reader_is_left_alone(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, watch(line(b"a"), hang()))

    async def read_for_a_moment() -> None:
        async with rig.transport.stream(PATH, WATCHED) as lines, asyncio.timeout(0.05):
            async for _ in lines:
                pass

    with pytest.raises(TimeoutError) as caught:
        await read_for_a_moment()
    assert not isinstance(caught.value, errors.ApiError)
