"""The clock that the other tests trust."""

import asyncio
import time

import pytest

from kubeloop.testing import virtual_time as module
from kubeloop.testing.virtual_time import Stuck, now, run, settle, virtual_time


@virtual_time
async def test_waiting_costs_no_time_and_is_exact() -> None:
    started = time.monotonic()
    moments = []
    for seconds in (0.001, 1, 86400, 1_000_000):
        began = now()
        await asyncio.sleep(seconds)
        moments.append(now() - began)
    assert moments == pytest.approx([0.001, 1, 86400, 1_000_000])
    assert time.monotonic() - started < 86400


@virtual_time
async def test_timers_fire_in_their_order() -> None:
    order: list[int] = []

    async def sleeper(seconds: int) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    await asyncio.gather(*(sleeper(seconds) for seconds in (30, 10, 20)))
    assert order == [10, 20, 30]


@virtual_time
async def test_no_time_passes_while_something_is_ready() -> None:
    started = now()
    await settle(1000)
    assert now() == started


@virtual_time
async def test_timeouts_are_virtual_too() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 3600)
    assert now() == pytest.approx(3600)


@virtual_time
async def test_a_thread_is_waited_for_in_real_time() -> None:
    async with asyncio.timeout(0.001):
        assert await asyncio.to_thread(lambda: time.sleep(0.05) or 42) == 42


@virtual_time
async def test_what_a_socket_sent_is_heard_before_any_timer() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server, asyncio.timeout(0.001):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(100):
            writer.write(b"line\n")
            assert await reader.readline() == b"line\n"
        writer.close()


def test_a_test_that_would_hang_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_AFTER", 0.05)

    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(hang())


@pytest.mark.parametrize("value", [1, 2])
@virtual_time
async def test_parameters_reach_the_test(value: int) -> None:
    assert value in (1, 2)
