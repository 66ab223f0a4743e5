"""Retries with backoff: none is lost, and each comes when its limiter says."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.testing.virtual_time import now, settle, virtual_time
from kubeloop.workqueue.queue import LOW_PRIORITY
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from kubeloop.workqueue.rate_limiting_queue import DelayingQueue, RateLimitingQueue

ARRIVALS: dict[str, tuple[list[tuple[float, str, float]], list[tuple[float, str]]]] = {
    # (at, item, delay) steps -> (at, item) arrivals
    "an item arrives after its delay": ([(0, "a", 10)], [(10, "a")]),
    "no delay means at once": ([(0, "a", 0)], [(0, "a")]),
    "a negative delay means at once": ([(0, "a", -3)], [(0, "a")]),
    "a delay that is not a number means at once": ([(0, "a", float("nan"))], [(0, "a")]),
    "a shorter delay later replaces a longer one": ([(0, "a", 100), (1, "a", 2)], [(3, "a")]),
    "a longer delay later changes nothing": ([(0, "a", 10), (1, "a", 100)], [(10, "a")]),
    "the same moment asked for twice is one arrival": ([(0, "a", 10), (4, "a", 6)], [(10, "a")]),
    "a delay after the arrival counts anew": ([(0, "a", 1), (2, "a", 5)], [(1, "a"), (7, "a")]),
    "a shorter delay after a while still counts from now": ([(0, "a", 10), (8, "a", 1)], [(9, "a")]),
    "a shorter delay that ends later than the first loses": ([(0, "a", 10), (8, "a", 5)], [(10, "a")]),
    "items arrive in the order of their moments": (
        [(0, "late", 3), (0, "early", 1), (0, "middle", 2)],
        [(1, "early"), (2, "middle"), (3, "late")],
    ),
    "of items due at the same moment the first asked for goes first": (
        [(0, item, 5) for item in "dbeacf"],
        [(5, item) for item in "dbeacf"],
    ),
    "a timer that was replaced does not disturb the next one": (
        [(0, "a", 10), (0, "a", 1), (0, "b", 12)],
        [(1, "a"), (12, "b")],
    ),
    "at once beats a timer, which still fires": ([(0, "a", 10), (1, "a", 0)], [(1, "a"), (10, "a")]),
    "days are no problem": ([(0, "a", 864000.0)], [(864000.0, "a")]),
}


@pytest.mark.parametrize("case", ARRIVALS)
@virtual_time
async def test_arrival(case: str) -> None:
    steps, expected = ARRIVALS[case]
    queue: DelayingQueue[str] = DelayingQueue()
    arrivals = []

    async def work() -> None:
        while True:
            item = await queue.get()
            arrivals.append((now(), item))
            queue.done(item)

    worker = asyncio.create_task(work())
    for at, item, delay in steps:
        await asyncio.sleep(at - now())
        queue.add_after(item, delay)
    await asyncio.sleep(1_000_000)
    worker.cancel()
    assert [item for _, item in arrivals] == [item for _, item in expected]
    assert [at for at, _ in arrivals] == pytest.approx([at for at, _ in expected])


@virtual_time
async def test_a_delayed_item_does_not_wait_in_the_queue_yet() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_after("a", 5)
    assert (len(queue), queue.delayed) == (0, 1)
    await asyncio.sleep(6)
    assert (len(queue), queue.delayed) == (1, 0)


@virtual_time
async def test_a_delayed_item_arrives_with_its_priority() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_after("low", 1, LOW_PRIORITY)
    await asyncio.sleep(2)
    queue.add("normal")
    assert [await queue.get(), await queue.get()] == ["normal", "low"]


@pytest.mark.parametrize("second_delay", [1.0, 20.0])
@virtual_time
async def test_of_two_delays_the_higher_priority_stays(second_delay: float) -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_after("a", 10, LOW_PRIORITY)
    queue.add_after("a", second_delay, 5)
    await asyncio.sleep(11)
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]


@virtual_time
async def test_an_item_that_is_due_while_it_is_processed_comes_after() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 1)
    await asyncio.sleep(2)
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


@virtual_time
async def test_the_shutdown_drops_what_is_delayed() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_after("a", 1)
    queue.shut_down()
    queue.add_after("b", 1)
    queue.add_after("c", 0)
    await asyncio.sleep(2)
    assert (len(queue), queue.delayed) == (0, 0)


@virtual_time
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


@virtual_time
async def test_an_item_asked_for_again_and_again_has_one_timer() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    for step in range(1000):
        queue.add_after("a", 100 - step * 0.01)
    assert queue.delayed == 1
    await asyncio.sleep(90.5)
    assert await queue.get() == "a"
    queue.done("a")
    await asyncio.sleep(20)
    await settle()
    assert len(queue) == 0


@virtual_time
async def test_what_is_not_to_come_before_a_moment_comes_then_whatever_is_added_meanwhile() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add("a")
    await queue.get()
    queue.add("a")  # an event while it is processed
    queue.add_not_before("a", 60)
    queue.done("a")
    queue.add("a")
    queue.add_after("a", 5)
    queue.add("b", LOW_PRIORITY)
    assert await queue.get() == "b"
    await asyncio.sleep(59)
    assert (len(queue), queue.delayed) == (0, 1)
    await asyncio.sleep(2)
    assert await queue.get() == "a"
    queue.done("a")
    queue.add("a")
    assert await queue.get() == "a"


@virtual_time
async def test_items_that_are_put_off_again_and_again_leave_nothing_behind() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    for _ in range(5000):
        queue.add_after("a", 3600)
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        queue.done(await queue.get())
    assert len(queue._due_heap) < 200


@virtual_time
async def test_items_whose_priority_rises_again_and_again_leave_nothing_behind() -> None:
    queue: DelayingQueue[str] = DelayingQueue()
    for _ in range(5000):
        queue.add("a", LOW_PRIORITY)
        queue.add("a")
        queue.done(await queue.get())
    assert sum(map(len, queue._lines.values())) < 200


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
