"""Retries with backoff, beside what the model shows (test_queue_model): none is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.workqueue.queue import LOW_PRIORITY
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from kubeloop.workqueue.rate_limiting_queue import DelayingQueue, RateLimitingQueue

pytestmark = pytest.mark.virtual_time


async def test_a_delay_that_is_not_a_number_means_at_once() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_after("a", float("nan"))
    assert (len(queue), len(queue._due)) == (1, 0)


async def test_a_drain_drops_what_is_delayed_and_waits_for_the_rest() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add("a")
    await queue.get()
    queue.add_after("b", 1)
    drain = asyncio.create_task(queue.shut_down_with_drain())
    await asyncio.sleep(5)
    assert not drain.done()
    queue.done("a")
    assert await drain is True
    assert len(queue) == 0


async def test_items_that_are_put_off_often_leave_nothing_behind() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    for _ in range(5000):
        queue.add_after("a", 3600)
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        queue.done(await queue.get())
    assert len(queue._due_heap) < 200


async def test_items_whose_priority_rises_leave_nothing_behind() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    for _ in range(5000):
        queue.add("a", LOW_PRIORITY)
        queue.add("a")
        queue.done(await queue.get())
    assert sum(map(len, queue._lines.values())) < 200
    queue.add("beside it")
    for priority in range(200):
        queue.add("a", priority)
    assert [await queue.get(), await queue.get()] == ["a", "beside it"]


async def test_a_held_item_goes_by_its_highest_priority() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_not_before("low", 1, LOW_PRIORITY)
    for item, priority, second_priority in (("raised", LOW_PRIORITY, 0), ("not lowered", 0, LOW_PRIORITY)):
        queue.add_not_before(item, 1, priority)
        queue.add(item, second_priority)
    await asyncio.sleep(2)
    assert [await queue.get() for _ in range(3)] == ["raised", "not lowered", "low"]


async def test_a_priority_given_beats_the_one_it_failed_with() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue(rate_limiter=ItemExponentialFailureRateLimiter(1.0, 8.0))
    queue.add("a", LOW_PRIORITY)
    await queue.get()
    queue.add_rate_limited("a", 5)
    queue.done("a")
    await asyncio.sleep(2)
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]


class BrokenLimiter:
    """Raises, or says what is no time."""

    def __init__(self, says: float | None) -> None:
        self.says = says

    def when(self, item: str) -> float:
        if self.says is None:
            raise RuntimeError("no idea")
        return self.says

    def forget(self, item: str) -> None:
        raise RuntimeError("no idea")

    def num_requeues(self, item: str) -> int:
        return 0


@pytest.mark.parametrize("says", [None, float("nan"), -1.0])
async def test_a_rate_limiter_that_raises_costs_no_key(says: float | None) -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue(rate_limiter=BrokenLimiter(says))
    queue.add("a")
    item = await queue.get()
    queue.add_rate_limited(item)
    queue.forget(item)
    queue.done(item)
    await asyncio.sleep(29)
    assert len(queue) == 0
    await asyncio.sleep(2)
    assert await queue.get() == "a"
