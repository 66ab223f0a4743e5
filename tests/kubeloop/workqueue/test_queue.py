"""The basic queue beside what the model shows (test_queue_model): getters, cancels and drains; its metrics."""

import asyncio
import gc

import pytest
from prometheus_client import REGISTRY

from kubeloop.testing.virtual_time import now, settle
from kubeloop.workqueue.queue import LOW_PRIORITY, Queue, ShutDown, loop_time
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from kubeloop.workqueue.rate_limiting_queue import RateLimitingQueue

pytestmark = pytest.mark.virtual_time


async def test_an_item_is_not_handed_out_again_while_it_is_processed() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    second = asyncio.create_task(queue.get())
    await settle()
    assert not second.done()
    queue.done("a")
    assert await second == "a"


async def test_waiting_getters_get_one_item_each() -> None:
    queue: Queue[str] = Queue()
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    for item in "abc":
        queue.add(item)
    assert sorted(await asyncio.gather(*getters)) == ["a", "b", "c"]


@pytest.mark.parametrize("call", ["add", "shut_down"])
@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_get_cancelled_in_the_tick_of_an_add_loses_no_item(call: str, cancelled_first: bool) -> None:
    queue: Queue[str] = Queue()
    cancelled_get, other_get = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    if cancelled_first:
        cancelled_get.cancel()
    if call == "add":
        queue.add("a")
    else:
        queue.shut_down()
    if not cancelled_first:
        cancelled_get.cancel()
    results = await asyncio.gather(cancelled_get, other_get, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] == "a" if call == "add" else isinstance(results[1], ShutDown)


async def test_a_thousand_getters_that_time_out_leave_nothing_behind() -> None:
    queue: Queue[str] = Queue()
    for _ in range(1000):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 0.001)
    assert not queue._getters


async def test_the_shutdown_wakes_every_waiting_getter() -> None:
    queue: Queue[str] = Queue()
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    queue.shut_down()
    results = await asyncio.gather(*getters, return_exceptions=True)
    assert [type(result) for result in results] == [ShutDown] * 3


async def test_a_drain_waits_for_what_is_processed() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await queue.get()
    drains = [asyncio.create_task(queue.shut_down_with_drain()) for _ in range(2)]
    await asyncio.sleep(100)
    assert not any(drain.done() for drain in drains)
    queue.add("late")
    queue.done("a")
    assert await asyncio.gather(*drains) == [True, True]
    assert len(queue) == 0


async def test_a_drain_lets_workers_finish_what_waited() -> None:
    queue: Queue[str] = Queue()
    for item in "abc":
        queue.add(item)
    finished = []

    async def work() -> None:
        while True:
            item = await queue.get()
            await asyncio.sleep(1)
            finished.append(item)
            queue.done(item)

    worker = asyncio.create_task(work())
    await settle()
    assert await queue.shut_down_with_drain() is True
    assert finished == ["a", "b", "c"]
    with pytest.raises(ShutDown):
        await worker


async def test_a_drain_without_work_ends_at_once() -> None:
    queue: Queue[str] = Queue()
    queue.add("never taken")
    assert await queue.shut_down_with_drain() is True


async def test_a_shutdown_ends_a_drain_that_waits() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await queue.get()
    drain = asyncio.create_task(queue.shut_down_with_drain())
    await asyncio.sleep(60)
    assert not drain.done()
    queue.shut_down()
    assert await asyncio.wait_for(drain, 1) is False
    again = asyncio.create_task(queue.shut_down_with_drain())
    await asyncio.sleep(60)
    queue.done("a")
    assert await asyncio.wait_for(again, 1) is True


async def test_a_drain_gives_up_after_its_timeout() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    await queue.get()
    started = now()
    assert await queue.shut_down_with_drain(timeout=2.5) is False
    assert now() - started == pytest.approx(2.5)
    assert len(queue._processing) == 1


def test_outside_a_loop_the_clock_is_the_monotonic_one() -> None:
    assert loop_time() <= loop_time()
    queue: Queue[str] = Queue("outside a loop")
    queue.add("a")
    assert len(queue) == 1


async def test_ten_thousand_raised_items_are_handed_out_in_order() -> None:
    queue: Queue[int] = Queue()
    for number in range(10_000):
        queue.add(number, LOW_PRIORITY)
    for number in reversed(range(5_000)):
        queue.add(number)
    assert len(queue) == 10_000
    got = [await queue.get() for _ in range(10_000)]
    assert got == [*reversed(range(5_000)), *range(5_000, 10_000)]
    assert len(queue) == 0


def value(metric: str, name: str) -> float | None:
    return REGISTRY.get_sample_value(metric, {"name": name})


async def test_counters_and_durations_follow_an_item() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue("follow")
    queue.add("a")
    queue.add("a")  # waits already: no addition
    assert value("workqueue_adds_total", "follow") == 1
    assert value("workqueue_depth", "follow") == 1
    await asyncio.sleep(3)
    await queue.get()
    assert value("workqueue_depth", "follow") == 0
    assert value("workqueue_queue_duration_seconds_sum", "follow") == pytest.approx(3)
    await asyncio.sleep(5)
    assert value("workqueue_unfinished_work_seconds", "follow") == pytest.approx(5)
    assert value("workqueue_longest_running_processor_seconds", "follow") == pytest.approx(5)
    queue.done("a")
    assert value("workqueue_work_duration_seconds_sum", "follow") == pytest.approx(5)
    assert value("workqueue_unfinished_work_seconds", "follow") == 0


async def test_unfinished_work_is_a_sum_and_the_longest_a_maximum() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue("two at work")
    queue.add("a")
    queue.add("b")
    await queue.get()
    await asyncio.sleep(2)
    await queue.get()
    await asyncio.sleep(1)
    assert value("workqueue_unfinished_work_seconds", "two at work") == pytest.approx(4)
    assert value("workqueue_longest_running_processor_seconds", "two at work") == pytest.approx(3)
    idle: RateLimitingQueue[str] = RateLimitingQueue("idle")
    assert len(idle) == value("workqueue_longest_running_processor_seconds", "idle") == 0


async def test_delayed_additions_count_as_retries() -> None:
    limiter = ItemExponentialFailureRateLimiter[str](1.0, 2.0)
    queue: RateLimitingQueue[str] = RateLimitingQueue("retries", rate_limiter=limiter)
    queue.add_rate_limited("a")
    queue.add_after("b", 1)
    assert value("workqueue_retries_total", "retries") == 2
    assert value("workqueue_adds_total", "retries") == 0
    await asyncio.sleep(2)
    assert value("workqueue_adds_total", "retries") == 2


async def test_waiting_starts_anew_for_an_item_re_added_in_process() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue("again")
    queue.add("a")
    await queue.get()
    await asyncio.sleep(1)
    queue.add("a")
    queue.add("a")
    assert value("workqueue_depth", "again") == 1
    await asyncio.sleep(1)
    queue.done("a")
    assert value("workqueue_depth", "again") == 1
    await queue.get()
    assert value("workqueue_depth", "again") == 0
    assert value("workqueue_queue_duration_seconds_sum", "again") == pytest.approx(1)
    assert value("workqueue_work_duration_seconds_sum", "again") == pytest.approx(2)
    assert value("workqueue_adds_total", "again") == 2


async def test_a_queue_that_is_gone_is_not_counted_any_more() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue("gone")
    queue.add("a")
    assert value("workqueue_depth", "gone") == 1
    del queue
    gc.collect()
    assert not value("workqueue_depth", "gone")


async def test_queues_of_one_name_are_added_up() -> None:
    queues: list[RateLimitingQueue[str]] = [RateLimitingQueue("shared"), RateLimitingQueue("shared")]
    for queue in queues:
        queue.add("a")
    assert value("workqueue_depth", "shared") == 2
