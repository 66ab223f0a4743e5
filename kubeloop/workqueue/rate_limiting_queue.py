"""Retries with backoff: client-go's `util/workqueue/rate_limiting_queue.go`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kubeloop.workqueue.delaying import DelayingQueue
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, K, loop_time
from kubeloop.workqueue.rate_limiters import RateLimiter, default_controller_rate_limiter

log = logging.getLogger(__name__)

_WITHOUT_LIMITER = 30.0
"""Seconds that a failed item waits whose rate limiter failed too."""


class RateLimitingQueue(DelayingQueue[K]):
    """A queue that knows how long a failed item should wait.

    `rate_limiter` defaults to `default_controller_rate_limiter()`; it must not be shared with another queue. A limiter
    that raises, or says nonsense, costs a log line: the item waits 30 s instead.
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
        self.add_after(item, self._delay(item), priority)

    def forget(self, item: K) -> None:
        """The item was dealt with: its failures no longer count. It stays in the queue if it is there."""
        try:
            self._rate_limiter.forget(item)
        except Exception:
            log.exception("queue %s: the rate limiter failed to forget %s", self.name, item)

    def num_requeues(self, item: K) -> int:
        """Failures counted since the last `forget`."""
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
