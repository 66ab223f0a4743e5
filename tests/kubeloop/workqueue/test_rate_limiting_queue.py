"""Retries with backoff: none is lost, and each comes when its limiter says."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.testing.virtual_time import now, virtual_time
from kubeloop.workqueue.queue import LOW_PRIORITY
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from kubeloop.workqueue.rate_limiting_queue import RateLimitingQueue


def slow_queue() -> RateLimitingQueue[str]:
    """Retries after 1, 2, 4, 8, 8, ... seconds."""
    return RateLimitingQueue(rate_limiter=ItemExponentialFailureRateLimiter(1.0, 8.0))


async def fail(queue: RateLimitingQueue[str], times: int) -> list[float]:
    """The moments at which an item is handed out that fails so many times."""
    moments = []
    for _ in range(times):
        item = await queue.get()
        moments.append(now())
        queue.add_rate_limited(item)
        queue.done(item)
    return moments


@virtual_time
async def test_a_failing_item_backs_off() -> None:
    queue = slow_queue()
    queue.add("a")
    assert await fail(queue, 6) == pytest.approx([0, 1, 3, 7, 15, 23])
    assert queue.num_requeues("a") == 6


@virtual_time
async def test_a_forgotten_item_begins_with_the_shortest_delay() -> None:
    queue = slow_queue()
    queue.add("a")
    await fail(queue, 3)
    await queue.get()
    queue.forget("a")
    queue.done("a")
    queue.add("a")
    started = now()
    assert [moment - started for moment in await fail(queue, 2)] == pytest.approx([0, 1])


@virtual_time
async def test_forgetting_does_not_take_an_item_out() -> None:
    queue = slow_queue()
    queue.add("a")
    queue.forget("a")
    assert await queue.get() == "a"


@virtual_time
async def test_an_event_does_not_have_to_wait_for_the_backoff() -> None:
    queue = slow_queue()
    queue.add("a")
    await fail(queue, 5)
    queue.add("a")
    started = now()
    assert await queue.get() == "a"
    assert now() == started


@virtual_time
async def test_retries_of_a_thousand_items_all_come_back() -> None:
    queue: RateLimitingQueue[int] = RateLimitingQueue()
    left = dict.fromkeys(range(1000), 3)

    async def work() -> None:
        while True:
            item = await queue.get()
            await asyncio.sleep(0.001)
            if left[item]:
                left[item] -= 1
                queue.add_rate_limited(item)
            else:
                queue.forget(item)
            queue.done(item)

    workers = [asyncio.create_task(work()) for _ in range(10)]
    for item in left:
        queue.add(item, LOW_PRIORITY)
    await asyncio.sleep(3600)
    assert set(left.values()) == {0}
    assert {queue.num_requeues(item) for item in left} == {0}
    for worker in workers:
        worker.cancel()


@virtual_time
async def test_a_retry_keeps_the_priority_it_failed_with() -> None:
    queue = slow_queue()
    queue.add("first listing", LOW_PRIORITY)
    await fail(queue, 1)
    await asyncio.sleep(2)
    queue.add("live")
    assert [await queue.get(), await queue.get()] == ["live", "first listing"]


@virtual_time
async def test_a_priority_given_beats_the_one_it_failed_with() -> None:
    queue = slow_queue()
    queue.add("a", LOW_PRIORITY)
    await queue.get()
    queue.add_rate_limited("a", 5)
    queue.done("a")
    await asyncio.sleep(2)
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]


@virtual_time
async def test_after_the_shutdown_a_failure_is_not_even_counted() -> None:
    queue = slow_queue()
    queue.add("a")
    await queue.get()
    queue.shut_down()
    queue.add_rate_limited("a")
    queue.done("a")
    await asyncio.sleep(10)
    assert (len(queue), queue.num_requeues("a")) == (0, 0)


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
@virtual_time
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
