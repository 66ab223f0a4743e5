"""Observes one namespace and does the next writes of the sequence, one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cachetools import TTLCache

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Namespace
from kubeloop.client.errors import ApiError, Conflict, Unreachable
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.workqueue.queue import loop_time
from pkg.controller.managedtenantquota.observation import Observer
from pkg.controller.managedtenantquota.writer import Writer
from pkg.util.constants import EVENT_LOCK_LIMIT, EVENT_RESTORE_REFUSED, EVENT_UNLOCK_REFUSED
from pkg.util.managedtenantquota.lock import Lock, age_of, recognise
from pkg.util.managedtenantquota.model import Observed, Policy, Problem, Timers
from pkg.util.managedtenantquota.record import is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Decision, Opening, Restore, Unlock, Wait, Write, decide
from pkg.util.managedtenantquota.window import is_overdue
from pkg.util.metrics import METRICS

log = logging.getLogger(__name__)

_LIMIT_REACHED = METRICS["headroom_mtq_lock_limit_reached_total"].counter()
_MOST_WRITES = 100
"""In one go; a namespace with more blocking quotas than that goes on in the next."""
_PAUSE = 1.0
"""Seconds until then."""
_FIRST_PAUSE = 0.05
"""Seconds after the first error of a namespace; twice as long after each further one."""
_OPENING_SECONDS = 12.0
"""A write that opens a window keeps the namespace locked, whether an answer comes or not. By default the API server
itself waits 10 for another webhook, and then goes on without it or names it."""
_SAID_SECONDS = 600.0
_SAID = 4096


@dataclass(eq=False)
class Handler:
    """Handles Namespaces, by name: all that happens in one of them is in order."""

    observer: Observer
    writer: Writer
    events: EventRecorder
    policy: Policy
    clock: Callable[[], float]
    """The API server's."""
    timer: Callable[[], float] = loop_time
    """Seconds that never go back."""
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)
    """A namespace to the uid of its last lock and the time by `timer` when that was first seen."""
    _timers: dict[str, Timers] = field(default_factory=dict, init=False)
    _failures: dict[str, int] = field(default_factory=dict, init=False)
    _said: TTLCache[tuple[str, str], bool] = field(
        default_factory=lambda: TTLCache(_SAID, ttl=_SAID_SECONDS, timer=loop_time), init=False
    )

    async def on_namespace_changed(self, key: str, _namespace: Namespace | None) -> None:
        """Do the next step. Raises RetryAfter while there is something to re-check, also after an ApiError."""
        timers = self._timers_of(key)
        if not self.observer.concerns_us(key):
            self._forget(key)
            return
        observed = self._aged(self.observer.cached(key, self.clock(), timers))
        try:
            decision = self._decide(key, observed)
            if decision.writes:
                async with asyncio.timeout(self._left(observed.lock) or None):
                    observed = self._aged(await self.observer.live(key, self.clock(), self._timers_of(key)))
                    decision, observed = await self._write(key, observed)
        except TimeoutError as exc:
            raise RetryAfter(_FIRST_PAUSE, "the lock has to end, whatever is waited for") from exc
        except ApiError as exc:
            raise RetryAfter(self._pause(key, observed), f"after an error: {exc}") from exc
        if observed.not_restored or observed.not_unlocked:
            raise RetryAfter(self._pause(key, observed), "a quota is still raised, or a lock stands")
        self._failures.pop(key, None)
        self._come_back(observed, decision)

    async def on_lock_changed(self, _key: str, configuration: ValidatingWebhookConfiguration | None) -> None:
        """End a lock that is overdue, and ask nothing before: on a queue of its own, for those who work off the
        namespaces may all be waiting for an answer. Raises RetryAfter until then."""
        lock = recognise(configuration) if configuration is not None else None
        if lock is None:
            return
        now, key = self.clock(), lock.namespace
        lock = self._since(lock, now)
        if not is_overdue(lock, now, self.policy):
            raise RetryAfter(self._left(lock), "the lock has to end then")
        observed = self.observer.cached(key, now, self._timers_of(key))
        step = self._decide(key, replace(observed, lock=lock)).step
        assert isinstance(step, Unlock)
        observed = await self._try(key, step, observed)
        if observed.not_unlocked:
            raise RetryAfter(self._pause(key, observed), "the lock still stands")

    async def _write(self, key: str, observed: Observed) -> tuple[Decision, Observed]:
        """The caches suggested a step; it is decided anew from live reads, and every write is bound to them."""
        for _ in range(_MOST_WRITES):
            decision = self._decide(key, observed)
            if isinstance(decision.step, Wait):
                return decision, observed
            observed = await self._try(key, decision.step, observed)
            observed = self._aged(replace(observed, now=self.clock(), timers=self._timers_of(key)))
        raise RetryAfter(_PAUSE, "there is more to write")

    async def _try(self, key: str, step: Write, observed: Observed) -> Observed:
        """Raises ApiError. A quota that cannot be restored, or a lock that cannot be deleted, does not keep the other
        quotas from it; a write that opens a window and is refused closes it."""
        try:
            return await self._do(step, observed)
        except Conflict:
            raise
        except ApiError as exc:
            match step:
                case Restore(quota=quota):
                    message = f"resource quota {quota.name} is still raised, restoring it will be retried: {exc}"
                    self._say(key, observed.problem(EVENT_RESTORE_REFUSED, message, quota.name, quota))
                    return replace(observed, not_restored={**observed.not_restored, quota.name: str(exc)})
                case Unlock(lock=lock):
                    message = f"lock {lock.name} still stands, deleting it will be retried: {exc}"
                    self._say(key, observed.problem(EVENT_UNLOCK_REFUSED, message, lock.uid))
                    return replace(observed, not_unlocked=str(exc))
                case _ if isinstance(step, Opening):
                    self._timers[key] = replace(self._timers_of(key), refused=str(exc))
            raise

    async def _do(self, step: Write, observed: Observed) -> Observed:
        """Raises ApiError."""
        seconds = _OPENING_SECONDS if isinstance(step, Opening) else None
        try:
            async with asyncio.timeout(seconds):
                return await self.writer.do(step, observed, self.clock())
        except TimeoutError as exc:
            raise Unreachable(f"no answer within {seconds:g} s") from exc

    def _aged(self, observed: Observed) -> Observed:
        """A lock is at least as old as we have seen it stand: a clock that is set back must not keep it longer."""
        lock = observed.lock
        return observed if lock is None else replace(observed, lock=self._since(lock, observed.now))

    def _since(self, lock: Lock, now: float) -> Lock:
        uid, first = self._seen.get(lock.namespace, ("", 0.0))
        if uid != lock.uid:
            first = self.timer()
            self._seen[lock.namespace] = lock.uid, first
        seen = self.timer() - first
        return replace(lock, since=now - max(age_of(lock, now), seen), seen=now - seen)

    def _pause(self, key: str, observed: Observed) -> float:
        """Seconds until the next try: longer each time, and never past the moment at which the lock has to end."""
        failures = self._failures[key] = min(self._failures.get(key, 0) + 1, 20)
        pause = min(_FIRST_PAUSE * 2.0 ** (failures - 1), self.policy.sweep)
        return min(pause, self._left(observed.lock) or pause)

    def _left(self, lock: Lock | None) -> float:
        """Seconds until the lock has to end; 0 without one, or when it is overdue."""
        if lock is None:
            return 0.0
        age = self.clock() - lock.since
        return max(0.0, self.policy.lock_limit + self.policy.grace - age)

    def _decide(self, key: str, observed: Observed) -> Decision:
        decision = decide(observed, self.policy)
        self._timers[key] = decision.timers
        for problem in decision.problems:
            self._say(key, problem)
        return decision

    def _say(self, namespace: str, problem: Problem) -> None:
        """An event for what an administrator has to know, at most once in a while."""
        if (namespace, problem.key) in self._said:
            return
        self._said[namespace, problem.key] = True
        log.warning("%s: %s", namespace, problem.message)
        if problem.reason == EVENT_LOCK_LIMIT:
            _LIMIT_REACHED.inc()
        for obj in problem.about:
            self.events.event(obj, "Warning", problem.reason, problem.message)

    def _come_back(self, observed: Observed, decision: Decision) -> None:
        """Re-checks what has begun, even if an event was lost. Raises RetryAfter."""
        assert isinstance(decision.step, Wait)
        waits = [decision.step.seconds]
        begun = observed.lock is not None or any(map(is_in_use, observed.budgets))
        if begun or any(map(record_of, observed.quotas)) or decision.problems:
            waits.append(self.policy.sweep)
        seconds = [wait for wait in waits if wait is not None]
        if seconds:
            raise RetryAfter(min(seconds), decision.step.why)

    def _forget(self, key: str) -> None:
        self._timers.pop(key, None)
        self._failures.pop(key, None)
        self._seen.pop(key, None)

    def _timers_of(self, key: str) -> Timers:
        return self._timers.get(key, Timers())
