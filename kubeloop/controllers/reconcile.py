"""The result of a handler's call: a verdict, metrics and log lines."""

import asyncio
import logging
import time
import traceback
import types
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Generic, TypeVar

from kubeloop.api.meta import Object
from kubeloop.client.errors import ApiError, Conflict, Invalid, NotFound
from kubeloop.controllers.errors import RetryAfter, Skip, TerminalError, described
from kubeloop.errors import ReportedError
from kubeloop.metrics import FRAMEWORK
from kubeloop.workqueue.queue import loop_time

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
R = TypeVar("R")

Handler = Callable[[str, T | None], Awaitable[T | None]]
"""`async def handler(key, obj)`; obj is None when the cache does not hold the key.

A handler that wrote the object may return what the server answered: handlers of the key then get that, in later calls
too, until the cache has it or something newer. Anything else that it returns is ignored."""

BLOCKED = 1.0
"""Seconds without an `await` after which a handler has blocked the loop: leases, probes and webhooks wait for it."""
UNANSWERED = 5.0
"""Seconds after which a call counts as one that waits for an answer: the API server gives most within milliseconds."""
HANGING = 300.0
"""Seconds after which a call counts as one that never ends."""
_REMINDER = 300.0
"""Seconds after which a repeated failure is logged again."""


_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0),
    *(40.0, 50.0, 60.0),
)

RECONCILE_TOTAL = FRAMEWORK["controller_runtime_reconcile_total"].counter()
RECONCILE_ERRORS = FRAMEWORK["controller_runtime_reconcile_errors_total"].counter()
TERMINAL_ERRORS = FRAMEWORK["controller_runtime_terminal_reconcile_errors_total"].counter()
PANICS = FRAMEWORK["controller_runtime_reconcile_panics_total"].counter()
RECONCILE_TIME = FRAMEWORK["controller_runtime_reconcile_time_seconds"].histogram(_BUCKETS)
BLOCKED_SECONDS = FRAMEWORK["event_loop_blocked_seconds_total"].counter()
ACTIVE_WORKERS = FRAMEWORK["controller_runtime_active_workers"].gauge()
MAX_CONCURRENT_RECONCILES = FRAMEWORK["controller_runtime_max_concurrent_reconciles"].gauge()


class Outcome(IntEnum):
    """The outcome of a call, the more urgent the higher: of several handlers' outcomes the highest settles the key."""

    DONE = 0
    GIVEN_UP = 1
    LATER = 2
    CONFLICT = 3
    FAILED = 4


_RESULTS = ("success", "error", "requeue_after", "requeue", "error")
"""The values of the label `result` by outcome."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """The verdict on a call: its outcome, and for some outcomes more.

    `delay`: a handler asked to be called again after so many seconds. `not_before`: the server asked to wait so many
    seconds (Retry-After); nothing brings the key back sooner. `returned`: the object as a handler left it. `refusal`:
    the answer because of which somebody else has to act."""

    outcome: Outcome
    delay: float | None = None
    not_before: float | None = None
    returned: T | None = None
    refusal: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A key whose handler waits for somebody else: the API server, or what it asks, refuses a request (`error`), or
    does not answer (None). `key` is "" where it is about the kind's cache."""

    handler: str
    key: str
    error: ApiError | None

    def __str__(self) -> str:
        reason = described(self.error) if self.error else f"waits for an answer for more than {UNANSWERED:g} s"
        return ": ".join(filter(None, (self.handler, self.key, reason)))


_DONE: Verdict[Any] = Verdict(Outcome.DONE)


def combine(verdicts: Sequence[Verdict[T]]) -> Verdict[T]:
    """The verdict on a key from those of its handlers: the most urgent outcome, shortest delay, longest Retry-After."""
    return Verdict(
        max((verdict.outcome for verdict in verdicts), default=Outcome.DONE),
        min((verdict.delay for verdict in verdicts if verdict.delay is not None), default=None),
        max((verdict.not_before for verdict in verdicts if verdict.not_before is not None), default=None),
    )


class NamedHandler(Generic[T]):
    """A handler with the name in its logs and the label of its metrics, whose series all exist from the start."""

    def __init__(self, name: str, handler: Handler[T], label: str, workers: int) -> None:
        self.name = name
        self._handler = handler
        self._totals = {result: RECONCILE_TOTAL.labels(label, result) for result in _RESULTS}
        self._errors, self._panics = RECONCILE_ERRORS.labels(label), PANICS.labels(label)
        self._terminal, self._blocked = TERMINAL_ERRORS.labels(label), BLOCKED_SECONDS.labels(label)
        self._time, self._active = RECONCILE_TIME.labels(label), ACTIVE_WORKERS.labels(label)
        MAX_CONCURRENT_RECONCILES.labels(label).set(workers)
        self._failing: dict[str, tuple[object, float]] = {}
        # Invariant: the keys that failed since they last succeeded, each with its error and when that was last logged.
        self._refused: dict[str, ApiError] = {}
        # Invariant: the keys whose last call ended because a request was refused.
        self._running: dict[str, float] = {}
        # Invariant: the keys of the calls that have not ended, each with when its call began.

    async def call(self, key: str, obj: T | None) -> Verdict[T]:
        """Calls the handler. Raises only what is meant for the worker: its cancellation, an exit of the process."""
        started = self._running[key] = loop_time()
        self._active.inc()
        try:
            verdict = await self._judge(key, obj)
        finally:
            self._active.dec()
            del self._running[key]
        result = _RESULTS[verdict.outcome]
        self._totals[result].inc()
        self._time.observe(loop_time() - started)
        if result == "error":
            self._errors.inc()
        if self._failing and verdict.outcome is not Outcome.FAILED:
            self._failing.pop(key, None)
        if self._refused and verdict.refusal is None:
            self._refused.pop(key, None)
        return verdict

    def hanging(self) -> list[str]:
        """Calls that do not end, a line each."""
        ages = {key: loop_time() - start for key, start in self._running.items()}
        return [f"{self.name} has been running for {age:.0f} s on {key}" for key, age in ages.items() if age > HANGING]

    def troubles(self) -> list[Trouble]:
        """Keys that wait because the API server, or what it asks, refuses a request; calls without an answer."""
        refused = [Trouble(self.name, key, error) for key, error in self._refused.items()]
        waiting = (key for key, began in self._running.items() if loop_time() - began >= UNANSWERED)
        return refused + [Trouble(self.name, key, None) for key in waiting if key not in self._refused]

    async def _judge(self, key: str, obj: T | None) -> Verdict[T]:
        try:
            steps = self._handler(key, obj).__await__()
            returned = await _measure_steps(steps, lambda seconds: self._report_blocked(key, seconds))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that the handler awaited was cancelled, not the worker: that is the handler's failure.
            return self._note_failure(key, error)
        except Exception as error:
            # Also where the handler asked to be called again for it.
            refusal = next(filter(None, map(_refusal_behind, _leaves(error))), None)
            if refusal is not None:
                self._refused[key] = refusal
            return replace(self._verdict(key, error), refusal=refusal)
        return _DONE if returned is None else Verdict(Outcome.DONE, returned=same_object(obj, returned))

    def _verdict(self, key: str, error: Exception) -> Verdict[T]:
        """Returns the verdict on an error. In a group (of a TaskGroup) every error counts; its failures are one."""
        verdicts: list[Verdict[T]] = []
        failures: list[Exception] = []
        for leaf in _leaves(error):
            match leaf:
                case Skip():
                    log.debug("%s: %s skipped: %s", self.name, key, leaf)
                    verdicts.append(_DONE)
                case TerminalError():
                    log.error("%s: %s failed, will not be retried: %s", self.name, key, described(leaf))
                    self._terminal.inc()
                    verdicts.append(Verdict(Outcome.GIVEN_UP))
                case RetryAfter():
                    log.debug("%s: %s requeued after %g s: %s", self.name, key, leaf.seconds, leaf)
                    verdicts.append(Verdict(Outcome.LATER, leaf.seconds))
                case Conflict() if not isinstance(leaf, Invalid):  # a patch that never applies is a mistake, too
                    log.debug("%s: %s was changed by another client: %s", self.name, key, described(leaf))
                    verdicts.append(Verdict(Outcome.CONFLICT, not_before=_retry_after(leaf)))
                case _:
                    if not isinstance(leaf, ReportedError):
                        self._panics.inc()
                    failures.append(leaf)
        if failures:
            verdicts.append(self._note_failure(key, failures[0] if len(failures) == 1 else error))
        return combine(verdicts)

    def _report_blocked(self, key: str, seconds: float) -> None:
        self._blocked.inc(seconds)
        text = "%s: %s kept the event loop for %.1f s, everything else waited: await, or use asyncio.to_thread"
        log.warning(text, self.name, key, seconds)

    def _note_failure(self, key: str, error: BaseException) -> Verdict[T]:
        not_before = max((_retry_after(leaf) or 0.0 for leaf in _leaves(error)), default=0.0) or None
        signature, now = _signature(error), loop_time()
        last_signature, logged_at = self._failing.get(key, (None, now))
        if signature == last_signature and now - logged_at < _REMINDER:
            log.debug("%s: %s failed again: %s", self.name, key, described(error))
            return Verdict(Outcome.FAILED, not_before=not_before)
        self._failing[key] = (signature, now)
        if isinstance(error, NotFound):
            log.info("%s: %s waits for a missing object: %s", self.name, key, described(error))
        else:
            unexpected = None if isinstance(error, ApiError) or signature == last_signature else error
            log.error("%s: %s failed, will be retried: %s", self.name, key, described(error), exc_info=unexpected)
        return Verdict(Outcome.FAILED, not_before=not_before)


@types.coroutine
def _measure_steps(steps: Generator[Any, Any, R], report: Callable[[float], None]) -> Generator[Any, Any, R]:
    """Awaits `steps`, and reports the seconds of every step that took longer than BLOCKED."""
    resume: Callable[[Any], Any] = steps.send
    value: Any = None
    while True:
        start = time.perf_counter()
        try:
            waiting_for = resume(value)
        except StopIteration as end:
            result: R = end.value
            return result
        finally:
            seconds = time.perf_counter() - start
            if seconds > BLOCKED:
                report(seconds)
        try:
            value = yield waiting_for
            resume = steps.send
        except BaseException as error:
            value, resume = error, steps.throw


def _leaves(error: BaseException) -> Iterator[Any]:
    """The error, or what a group holds."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _refusal_behind(error: BaseException | None) -> ApiError | None:
    """Returns the error, or one behind it, after which somebody else has to act. One may be its own cause."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        if isinstance(error, ApiError) and error.needs_repair:
            return error
        visited.add(id(error))
        error = error.__cause__
    return None


def _retry_after(error: BaseException) -> float | None:
    """The server's Retry-After in seconds."""
    return error.retry_after or None if isinstance(error, ApiError) else None


def same_object(obj: T | None, returned: object) -> T | None:
    """Returns a handler's result if that is a version of its object: a handler may return anything."""
    if obj is None or type(returned) is not type(obj):
        return None
    return returned if returned.key == obj.key and returned.uid == obj.uid else None


def _signature(error: BaseException) -> object:
    """Returns what tells one error from another: its status, or the lines that raised; its text may always differ."""
    if isinstance(error, ApiError):
        return type(error), error.status, error.refusal.by
    if isinstance(error, BaseExceptionGroup):
        return frozenset(map(_signature, _leaves(error)))
    # A set: an exception that is kept and raised anew has the same lines in it again and again.
    lines = frozenset((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))
    return type(error), lines
