"""Retries with backoff: client-go's `util/workqueue/rate_limiting_queue.go`."""

from __future__ import annotations

from collections.abc import Callable

from pkg.workqueue.delaying import DelayingQueue
from pkg.workqueue.queue import DEFAULT_PRIORITY, K, loop_time
from pkg.workqueue.rate_limiters import RateLimiter, default_controller_rate_limiter


class RateLimitingQueue(DelayingQueue[K]):
    """A queue that knows how long a failed item should wait.

    `rate_limiter` defaults to `default_controller_rate_limiter()`; it must not be shared with another queue.
    """

    def __init__(
        self,
        name: str = "",
        *,
        rate_limiter: RateLimiter[K] | None = None,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        super().__init__(name, clock=clock)
        self._rate_limiter = rate_limiter or default_controller_rate_limiter(clock=clock)

    def add_rate_limited(self, item: K, priority: int | None = None) -> None:
        """Add an item when its rate limiter says it is time: one more failure is counted.

        Without a priority it keeps the one it is being processed with, so that the retries of a first
        listing stay behind live events.
        """
        if self._shutting_down:
            return
        if priority is None:
            priority = self._processing.get(item, DEFAULT_PRIORITY)
        self.add_after(item, self._rate_limiter.when(item), priority)

    def forget(self, item: K) -> None:
        """The item was dealt with: its failures no longer count. It stays in the queue if it is there."""
        self._rate_limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """Failures counted since the last `forget`."""
        return self._rate_limiter.num_requeues(item)
