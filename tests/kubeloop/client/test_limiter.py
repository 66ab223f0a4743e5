"""The token bucket under virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.client.limiter import TokenBucket


class Time:
    """A clock that sleeping moves on, each sleeper from its own start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


async def test_a_burst_goes_through_then_one_each_tick() -> None:
    time = Time()
    bucket = TokenBucket(10.0, 3, clock=time.clock, sleep=time.sleep)
    for _ in range(6):
        await bucket.take()
    assert time.slept == pytest.approx([0.1, 0.2, 0.3])


async def test_the_bucket_fills_up_but_not_over() -> None:
    time = Time()
    bucket = TokenBucket(10.0, 3, clock=time.clock, sleep=time.sleep)
    for _ in range(3):
        await bucket.take()
    time.now = 0.2
    await bucket.take()
    await bucket.take()
    assert time.slept == []
    time.now = 1000.0
    for _ in range(4):
        await bucket.take()
    assert time.slept == pytest.approx([0.1])


async def test_who_gives_up_waiting_leaves_no_debt() -> None:
    bucket = TokenBucket(10.0, 1)
    waiting = [asyncio.create_task(bucket.take()) for _ in range(101)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(0.5):
        await bucket.take()
