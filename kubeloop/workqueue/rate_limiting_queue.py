"""Items that are added later, and retries with backoff: client-go's delaying_queue.go and rate_limiting_queue.go."""

import asyncio
import heapq
import itertools
import logging
from typing import NamedTuple

from kubeloop.workqueue.queue import DEFAULT_PRIORITY, K, Queue
from kubeloop.workqueue.rate_limiters import RateLimiter, default_controller_rate_limiter

log = logging.getLogger(__name__)

_LEFTOVERS = 64
"""Entries that no longer count, beyond as many as do: then they are dropped."""
_WITHOUT_LIMITER = 30.0
"""Seconds that a failed item waits whose rate limiter failed too."""


class _Due(NamedTuple):
    """The time at which an item is due, on the loop's clock. At the same time requests go in their order."""

    when: float
    number: int
    priority: int


class DelayingQueue(Queue[K]):
    """A queue whose items may wait outside for a while."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._due: dict[K, _Due] = {}
        # Invariant: the delayed items, each with the earliest moment that was asked for.
        self._postponed: set[K] = set()
        # Invariant: those of them that no `add` may bring before their time.
        self._due_heap: list[tuple[_Due, K]] = []
        # Invariant: holds every entry of `_due`. Others are leftovers of other moments and skipped; there are never
        # many more of them than items.
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        # Invariant: set for the first entry of `_due_heap`; None while that is empty. One timer for all, because
        # the loop's own heap does not keep the order of timers of the same moment.

    def add(self, item: K, priority: int = DEFAULT_PRIORITY) -> None:
        """Adds as Queue does. An item of `add_not_before` that is not due yet gets the priority alone."""
        if item not in self._postponed:
            super().add(item, priority)
        elif priority > (due := self._due[item]).priority:
            self._put_off(item, due._replace(priority=priority))

    def add_not_before(self, item: K, seconds: float, priority: int = DEFAULT_PRIORITY) -> None:
        """Adds an item in `seconds`, and hands it out no sooner, even if it is added meanwhile: a server's Retry-After.
        What was added before is put off as well. Ignored once the queue is shutting down. Needs the running loop."""
        if self._shutting_down:
            return
        when = asyncio.get_running_loop().time() + seconds
        if (old_due := self._due.get(item)) is not None:
            priority = max(priority, old_due.priority)
            when = max(when, old_due.when) if item in self._postponed else when
        if (waiting := self._dirty.pop(item, None)) is not None:
            if item not in self._processing:
                self._leave(item, waiting)
            priority = max(priority, waiting)
        if self._metrics:
            self._metrics.retry()
        self._postponed.add(item)
        self._put_off(item, _Due(when, next(self._sequence), priority))

    def add_after(self, item: K, seconds: float, priority: int = DEFAULT_PRIORITY) -> None:
        """Adds an item in `seconds`, at once if that is not positive. Ignored once the queue is shutting down.

        Asked for twice, the earlier moment and the higher priority win. An `add` meanwhile does not stop the timer. An
        item of `add_not_before` keeps its moment. Needs the running loop."""
        if self._shutting_down:
            return
        if self._metrics:
            self._metrics.retry()
        if not seconds > 0:
            self.add(item, priority)
            return
        when = asyncio.get_running_loop().time() + seconds
        if (old_due := self._due.get(item)) is not None:
            when = old_due.when if item in self._postponed else min(when, old_due.when)
            priority = max(priority, old_due.priority)
            if (when, priority) == (old_due.when, old_due.priority):
                return
        self._put_off(item, _Due(when, next(self._sequence), priority))

    def shut_down(self) -> None:
        """Shuts down as Queue does; items that are still delayed are dropped, as in client-go."""
        super().shut_down()
        self._due.clear()
        self._due_heap.clear()
        self._postponed.clear()
        self._set_timer()

    def _put_off(self, item: K, due: _Due) -> None:
        self._due[item] = due
        heapq.heappush(self._due_heap, (due, item))
        if len(self._due_heap) > 2 * len(self._due) + _LEFTOVERS:
            self._due_heap = [(entry, key) for key, entry in self._due.items()]
            heapq.heapify(self._due_heap)
        self._set_timer()

    def _set_timer(self) -> None:
        first_due = self._due_heap[0][0].when if self._due_heap else None
        if self._timer is not None:
            if self._timer.when() == first_due:
                return
            self._timer.cancel()
            self._timer = None
        if first_due is not None:
            self._timer = asyncio.get_running_loop().call_at(first_due, self._fire, first_due)

    def _fire(self, until: float) -> None:
        """Adds what is due. Loops fire within their clock's resolution, so `until` may lie ahead of the clock."""
        self._timer = None
        until = max(until, asyncio.get_running_loop().time())
        while self._due_heap and self._due_heap[0][0].when <= until:
            due, item = heapq.heappop(self._due_heap)
            if self._due.get(item) == due:
                del self._due[item]
                self._postponed.discard(item)
                self.add(item, due.priority)
        self._set_timer()


class RateLimitingQueue(DelayingQueue[K]):
    """A queue that knows how long a failed item should wait.

    `rate_limiter` defaults to `default_controller_rate_limiter()`; it must not be shared with another queue. A limiter
    that raises, or says nonsense, costs a log line: the item waits 30 s instead."""

    def __init__(self, name: str = "", *, rate_limiter: RateLimiter[K] | None = None) -> None:
        super().__init__(name)
        self._rate_limiter = rate_limiter or default_controller_rate_limiter()

    def add_rate_limited(self, item: K) -> None:
        """Adds an item when its rate limiter says it is time: one more failure is counted. It keeps the priority with
        which it is being processed, so that the retries of a first listing stay behind live events."""
        if not self._shutting_down:
            self.add_after(item, self._delay(item), self._processing.get(item, DEFAULT_PRIORITY))

    def forget(self, item: K) -> None:
        """The item was dealt with: its failures no longer count. It stays in the queue if it is there."""
        try:
            self._rate_limiter.forget(item)
        except Exception:
            log.exception("queue %s: the rate limiter failed to forget %s", self.name, item)

    def num_requeues(self, item: K) -> int:
        """Returns the failures that the rate limiter counts for the item since it was last forgotten."""
        return self._rate_limiter.num_requeues(item)

    def _delay(self, item: K) -> float:
        try:
            delay = self._rate_limiter.when(item)
            if delay >= 0:
                return delay
            log.error("queue %s: the rate limiter says %r seconds for %s", self.name, delay, item)
        except Exception:
            log.exception("queue %s: the rate limiter failed for %s", self.name, item)
        return _WITHOUT_LIMITER
