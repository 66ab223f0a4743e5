"""The clock that the other tests trust."""

from __future__ import annotations

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
        before = now()
        await asyncio.sleep(seconds)
        moments.append(now() - before)
    assert moments == pytest.approx([0.001, 1, 86400, 1_000_000])
    assert time.monotonic() - started < 5


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
    assert await asyncio.to_thread(lambda: 42) == 42


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
