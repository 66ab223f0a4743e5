"""Retries with backoff, beside what the model shows (test_queue_model): none is lost, and nothing is left behind; rate
limiters have client-go's numbers."""

import asyncio
import itertools

import pytest

from kubeloop.workqueue.queue import LOW_PRIORITY
from kubeloop.workqueue.rate_limiters import (
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    default_controller_rate_limiter,
)
from kubeloop.workqueue.rate_limiting_queue import DelayingQueue, RateLimitingQueue

pytestmark = pytest.mark.virtual_time


async def test_a_delay_that_is_not_a_number_means_at_once() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue("queue")
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
    queue: RateLimitingQueue[str] = RateLimitingQueue("queue")
    for _ in range(5000):
        queue.add_after("a", 3600)
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        queue.done(await queue.get())
    assert len(queue._due_heap) < 200


async def test_items_whose_priority_rises_leave_nothing_behind() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue("queue")
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
    queue: RateLimitingQueue[str] = RateLimitingQueue("queue")
    queue.add_not_before("low", 1, LOW_PRIORITY)
    for item, priority, second_priority in (("raised", LOW_PRIORITY, 0), ("not lowered", 0, LOW_PRIORITY)):
        queue.add_not_before(item, 1, priority)
        queue.add(item, second_priority)
    await asyncio.sleep(2)
    assert [await queue.get() for _ in range(3)] == ["raised", "not lowered", "low"]


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
    queue: RateLimitingQueue[str] = RateLimitingQueue("queue", rate_limiter=BrokenLimiter(says))
    queue.add("a")
    item = await queue.get()
    queue.add_rate_limited(item)
    queue.forget(item)
    queue.done(item)
    await asyncio.sleep(29)
    assert len(queue) == 0
    await asyncio.sleep(2)
    assert await queue.get() == "a"


@pytest.mark.parametrize(
    ("limits", "delays"),
    [
        ((0.001, 1.0), {**{n: 0.001 * 2**n for n in range(10)}, 10: 1.0, 11: 1.0}),
        ((), {0: 0.005, 1: 0.01, 2: 0.02, 17: 655.36, 18: 1000.0, 19: 1000.0, 2999: 1000.0}),  # without an overflow
    ],
)
def test_an_items_delay_doubles_from_the_base_to_the_maximum(
    limits: tuple[float, ...], delays: dict[int, float]
) -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(*limits)
    delays_given = [limiter.when("a") for _ in range(max(delays) + 1)]
    assert {n: delays_given[n] for n in delays} == pytest.approx(delays)
    assert limiter.num_requeues("a") == len(delays_given)


def test_items_fail_each_for_itself_until_forgotten() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(1.0, 100.0)
    assert [limiter.when("a"), limiter.when("a"), limiter.when("b")] == [1.0, 2.0, 1.0]
    assert [limiter.num_requeues(item) for item in ("a", "b", "c")] == [2, 1, 0]
    limiter.forget("a")
    limiter.forget("never seen")
    assert [limiter.num_requeues("a"), limiter.when("a"), limiter.when("b")] == [0, 1.0, 2.0]


BUCKETS: dict[str, tuple[list[tuple[float, int]], list[float]]] = {
    # (seconds that pass, calls) -> the delay of every last call of a step; 2 a second, burst 2
    "tokens come back with time": ([(0, 2), (0.5, 1)], [0, 0]),
    "half a token is not a token": ([(0, 2), (0.25, 1)], [0, 0.25]),
    "a debt is worked off first": ([(0, 4), (0.5, 1)], [1.0, 1.0]),
    "an idle day fills the bucket, not more": ([(0, 2), (86400, 3)], [0, 0.5]),
}


@pytest.mark.parametrize("case", BUCKETS)
async def test_bucket(case: str) -> None:
    steps, expected = BUCKETS[case]
    limiter: BucketRateLimiter[str] = BucketRateLimiter(qps=2, burst=2)
    delays = []
    for seconds, calls in steps:
        await asyncio.sleep(seconds)
        delays.append([limiter.when("a") for _ in range(calls)][-1])
    assert delays == pytest.approx(expected)


def test_the_bucket_counts_no_failures() -> None:
    limiter: BucketRateLimiter[str] = BucketRateLimiter()
    limiter.when("a")
    limiter.forget("a")
    assert limiter.num_requeues("a") == 0


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_that_would_never_give_a_token_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        BucketRateLimiter(qps, burst)


class FixedLimiter:
    """Says what it was told, and remembers what was forgotten."""

    def __init__(self, delay: float, requeues: int) -> None:
        self.delay, self.requeues, self.forgotten = delay, requeues, 0

    def when(self, item: str) -> float:
        return self.delay

    def forget(self, item: str) -> None:
        self.forgotten += 1

    def num_requeues(self, item: str) -> int:
        return self.requeues


@pytest.mark.parametrize("order", list(itertools.permutations([(1.0, 9), (5.0, 2), (3.0, 0)])))
def test_the_maximum_of_several_is_taken_in_any_order(order: tuple[tuple[float, int], ...]) -> None:
    limiters = [FixedLimiter(delay, requeues) for delay, requeues in order]
    limiter: MaxOfRateLimiter[str] = MaxOfRateLimiter(*limiters)
    assert limiter.when("a") == 5.0
    assert limiter.num_requeues("a") == 9
    limiter.forget("a")
    assert [inner.forgotten for inner in limiters] == [1, 1, 1]


def test_the_maximum_of_none_is_no_delay() -> None:
    limiter: MaxOfRateLimiter[str] = MaxOfRateLimiter()
    assert (limiter.when("a"), limiter.num_requeues("a")) == (0.0, 0)


async def test_by_default_items_back_off_and_share_ten_a_second() -> None:
    limiter: RateLimiter[str] = default_controller_rate_limiter()
    assert [limiter.when("a") for _ in range(3)] == [0.005, 0.01, 0.02]
    other_delays = [limiter.when(f"other {n}") for n in range(107)]
    assert other_delays[:97] == [0.005] * 97
    assert other_delays[97:] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert [limiter.when("a") for _ in range(17)][-2:] == [1000.0, 1000.0]
