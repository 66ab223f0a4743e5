"""The queue against a model: whatever is done to it, in whatever order."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeloop.testing.virtual_time import VirtualTimeLoop
from kubeloop.workqueue.queue import ShutDown
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from kubeloop.workqueue.rate_limiting_queue import RateLimitingQueue

ITEMS = st.sampled_from("abcdef")
PRIORITIES = st.sampled_from([-100, 0, 0, 1, 5])
DELAYS = st.integers(min_value=-1, max_value=30)


class QueueModel(RuleBasedStateMachine):
    """A queue at its simplest: lists and dicts, sorted at each call.

    Times are whole seconds, so that the model and the loop cannot differ by rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.queue: RateLimitingQueue[str] = self.run(self.make())
        self.order = 0
        self.waiting: dict[str, tuple[int, int]] = {}  # item -> (-priority, order)
        self.processing: dict[str, int] = {}
        self.again: dict[str, int] = {}  # re-added while processed -> priority
        self.delayed: dict[str, tuple[int, int, int]] = {}  # item -> (when, order of the timer, priority)
        self.postponed: set[str] = set()  # of the delayed ones: those that no add brings forward
        self.failures: dict[str, int] = {}
        self.now = 0
        self.down = False

    @staticmethod
    async def make() -> RateLimitingQueue[str]:
        return RateLimitingQueue("model", rate_limiter=ItemExponentialFailureRateLimiter(1.0, 16.0))

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def call(self, method: Any, *args: Any) -> None:
        async def inside() -> None:
            method(*args)

        self.run(inside())

    def teardown(self) -> None:
        self.loop.close()

    # What the model does by itself.

    def model_push(self, item: str, priority: int) -> None:
        self.order += 1
        self.waiting[item] = (-priority, self.order)

    def model_add(self, item: str, priority: int) -> None:
        if self.down:
            return
        if item in self.postponed:
            when, order, old_priority = self.delayed[item]
            self.delayed[item] = (when, order, max(old_priority, priority))
        elif item in self.processing:
            self.again[item] = max(priority, self.again.get(item, priority))
        elif item not in self.waiting or priority > -self.waiting[item][0]:
            self.model_push(item, priority)

    def model_add_after(self, item: str, delay: int, priority: int) -> None:
        if self.down:
            return
        if delay <= 0:
            self.model_add(item, priority)
            return
        entry = (self.now + delay, priority)
        old_entry = self.delayed.get(item)
        if old_entry is not None:
            when = old_entry[0] if item in self.postponed else min(entry[0], old_entry[0])
            entry = (when, max(entry[1], old_entry[2]))
            if entry == (old_entry[0], old_entry[2]):
                return
        self.order += 1
        self.delayed[item] = (entry[0], self.order, entry[1])

    def model_add_not_before(self, item: str, delay: int, priority: int) -> None:
        if self.down:
            return
        waited = -self.waiting.pop(item)[0] if item in self.waiting else self.again.pop(item, priority)
        when, _, old_priority = self.delayed.get(item, (0, 0, priority))
        self.order += 1
        self.delayed[item] = (
            max(self.now + delay, when if item in self.postponed else 0),
            self.order,
            max(priority, waited, old_priority),
        )
        self.postponed.add(item)

    def model_next(self) -> str:
        return min(self.waiting, key=lambda item: self.waiting[item])

    # What can be done to a queue.

    @rule(item=ITEMS, priority=PRIORITIES)
    def add(self, item: str, priority: int) -> None:
        self.call(self.queue.add, item, priority)
        self.model_add(item, priority)

    @rule(item=ITEMS, delay=DELAYS, priority=PRIORITIES)
    def add_after(self, item: str, delay: int, priority: int) -> None:
        self.call(self.queue.add_after, item, delay, priority)
        self.model_add_after(item, delay, priority)

    @rule(item=ITEMS, delay=st.integers(min_value=1, max_value=30), priority=PRIORITIES)
    def add_not_before(self, item: str, delay: int, priority: int) -> None:
        self.call(self.queue.add_not_before, item, delay, priority)
        self.model_add_not_before(item, delay, priority)

    @rule(item=ITEMS)
    def add_rate_limited(self, item: str) -> None:
        self.call(self.queue.add_rate_limited, item)
        if not self.down:
            failures = self.failures.get(item, 0)
            self.failures[item] = failures + 1
            self.model_add_after(item, min(2**failures, 16), self.processing.get(item, 0))

    @rule(item=ITEMS)
    def forget(self, item: str) -> None:
        self.queue.forget(item)
        self.failures.pop(item, None)

    @precondition(lambda self: self.waiting)
    @rule()
    def get(self) -> None:
        expected = self.model_next()
        assert self.run(self.queue.get()) == expected
        self.processing[expected] = -self.waiting.pop(expected)[0]

    @rule(item=ITEMS)
    def done(self, item: str) -> None:
        self.call(self.queue.done, item)
        if self.processing.pop(item, None) is not None and item in self.again:
            self.model_push(item, self.again.pop(item))

    @rule(seconds=st.integers(min_value=1, max_value=20))
    def wait(self, seconds: int) -> None:
        # Halves keep clear of the timers' own moments: what is due exactly now is due before this ends.
        self.loop._jumping.now = float(self.now)
        self.now += seconds
        self.run(self.sleep_until(self.now + 0.5))
        self.loop._jumping.now = float(self.now)
        due = sorted((when, order, item) for item, (when, order, _) in self.delayed.items() if when <= self.now)
        for _, _, item in due:
            self.postponed.discard(item)
            self.model_add(item, self.delayed.pop(item)[2])

    async def sleep_until(self, when: float) -> None:
        arrived = self.loop.create_future()
        self.loop.call_at(when, arrived.set_result, None)
        await arrived

    @precondition(lambda self: not self.down and self.now > 40)
    @rule()
    def shut_down(self) -> None:
        self.call(self.queue.shut_down)
        self.down = True
        self.delayed.clear()
        self.postponed.clear()

    @precondition(lambda self: self.down and not self.waiting)
    @rule()
    def get_after_the_end(self) -> None:
        try:
            self.run(self.queue.get())
        except ShutDown:
            return
        raise AssertionError("an item came out of a queue that is shut down and empty")

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert len(self.queue._processing) == len(self.processing)
        assert len(self.queue._due) == len(self.delayed)
        assert not self.waiting.keys() & self.processing.keys()
        assert all(self.queue.num_requeues(item) == self.failures.get(item, 0) for item in "abcdef")


QueueModel.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestQueueModel = QueueModel.TestCase
