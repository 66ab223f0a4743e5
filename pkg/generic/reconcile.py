"""What a handler's call comes to, and what that means for its key: the one place where keys are settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from pkg.api.meta import Object
from pkg.client.errors import Conflict
from pkg.generic.errors import RetryAfter, Skip, one_line
from pkg.generic.metrics import ReconcileMetrics, Result
from pkg.workqueue.queue import loop_time
from pkg.workqueue.rate_limiting_queue import RateLimitingQueue

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

Handler = Callable[[str, T | None], Awaitable[object]]
"""`async def handler(key, obj)`; obj is None when the cache does not hold the key."""


class Outcome(IntEnum):
    """How a call ended, the more urgent the higher: of several handlers' outcomes the highest settles the key."""

    DONE = 0
    SKIPPED = 1
    LATER = 2
    CONFLICT = 3
    FAILED = 4


_RESULTS = {
    Outcome.DONE: Result.SUCCESS,
    Outcome.SKIPPED: Result.SUCCESS,
    Outcome.LATER: Result.REQUEUE_AFTER,
    Outcome.CONFLICT: Result.REQUEUE,
    Outcome.FAILED: Result.ERROR,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome; `delay` in seconds is set when a handler asked to be called again after it."""

    outcome: Outcome
    delay: float | None = None


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a key from those of its handlers: the most urgent outcome, the shortest delay."""
    outcome, delays = Outcome.DONE, []
    for verdict in verdicts:
        outcome = max(outcome, verdict.outcome)
        if verdict.delay is not None:
            delays.append(verdict.delay)
    return Verdict(outcome, min(delays, default=None))


@dataclass(frozen=True, slots=True)
class NamedHandler(Generic[T]):
    """A handler under the name that its logs and metrics carry."""

    name: str
    handler: Handler[T]
    metrics: ReconcileMetrics

    async def call(self, key: str, obj: T | None) -> Verdict:
        """Run it. Raises nothing but what is meant for the worker: its own cancellation, an exit of the process."""
        started = loop_time()
        self.metrics.active.inc()
        try:
            verdict = await self._judge(key, obj)
        finally:
            self.metrics.active.dec()
        self.metrics.observe(_RESULTS[verdict.outcome], loop_time() - started)
        return verdict

    async def _judge(self, key: str, obj: T | None) -> Verdict:
        try:
            await self.handler(key, obj)
        except Skip as skip:
            log.debug("%s: %s skipped: %s", self.name, key, skip)
            return Verdict(Outcome.SKIPPED)
        except RetryAfter as later:
            log.debug("%s: %s again in %g s: %s", self.name, key, later.seconds, later)
            return Verdict(Outcome.LATER, later.seconds)
        except Conflict as conflict:
            log.debug("%s: %s changed under our hands: %s", self.name, key, one_line(conflict))
            return Verdict(Outcome.CONFLICT)
        except asyncio.CancelledError as error:
            if _worker_is_cancelled():
                raise
            # Something that the handler awaited was cancelled, not the worker: that is the handler's failure.
            return self._failed(key, error)
        except Exception as error:
            return self._failed(key, error)
        return Verdict(Outcome.DONE)

    def _failed(self, key: str, error: BaseException) -> Verdict:
        log.error("%s: %s failed, will be retried: %s", self.name, key, one_line(error))
        log.debug("%s: %s: traceback", self.name, key, exc_info=error)
        return Verdict(Outcome.FAILED)


def _worker_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def settle(queue: RateLimitingQueue[str], key: str, verdict: Verdict, conflicted: set[str]) -> None:
    """Decide a processed key's future: the only place that forgets and retries (controller-runtime's
    reconcileHandler). `conflicted` remembers the keys that had their retry without backoff.
    """
    _SETTLE[verdict.outcome](queue, key, conflicted)
    if verdict.delay is not None:
        queue.add_after(key, verdict.delay)


def _forget(queue: RateLimitingQueue[str], key: str, conflicted: set[str]) -> None:
    queue.forget(key)
    conflicted.discard(key)


def _retry_at_once(queue: RateLimitingQueue[str], key: str, conflicted: set[str]) -> None:
    # The watch most likely brings the newer object within milliseconds. A second conflict in a row means that it
    # has not yet: from then on the backoff gives it time.
    if key in conflicted:
        queue.add_rate_limited(key)
    else:
        conflicted.add(key)
        queue.add(key)


def _retry(queue: RateLimitingQueue[str], key: str, conflicted: set[str]) -> None:
    queue.add_rate_limited(key)


_SETTLE: dict[Outcome, Callable[[RateLimitingQueue[str], str, set[str]], None]] = {
    Outcome.DONE: _forget,
    Outcome.SKIPPED: _forget,
    Outcome.LATER: _forget,
    Outcome.CONFLICT: _retry_at_once,
    Outcome.FAILED: _retry,
}
