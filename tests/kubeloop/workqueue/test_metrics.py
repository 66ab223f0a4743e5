"""The queue's metrics carry client-go's names and say what happened."""

from __future__ import annotations

import asyncio
import gc

import pytest
from prometheus_client import REGISTRY

from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from kubeloop.workqueue.rate_limiting_queue import RateLimitingQueue

pytestmark = pytest.mark.virtual_time


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


async def test_a_queue_without_a_name_leaves_no_trace() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue()
    queue.add("a")
    await queue.get()
    queue.done("a")
    queue.add_after("a", 1)
    assert value("workqueue_adds_total", "") is None
    assert value("workqueue_depth", "") is None


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
