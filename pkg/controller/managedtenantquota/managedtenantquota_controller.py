"""Observes one namespace and does the next writes of the sequence, one after the other."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace

from cachetools import TTLCache

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, Unreachable
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.workqueue.queue import loop_time
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter, RateLimiter
from pkg.controller.managedtenantquota.observation import Observer
from pkg.controller.managedtenantquota.writer import Writer
from pkg.util.constants import EVENT_LOCK_LIMIT, EVENT_RESTORE_REFUSED, EVENT_UNLOCK_REFUSED
from pkg.util.managedtenantquota.lock import Lock, age_of, recognise
from pkg.util.managedtenantquota.model import Observed, Policy, Problem, Timers
from pkg.util.managedtenantquota.record import is_in_use
from pkg.util.managedtenantquota.sequence import Step, Wait, Write, next_step
from pkg.util.managedtenantquota.window import Window
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


class Handler:
    """Handles Namespaces, by name: all that happens in one of them is in order."""

    def __init__(
        self, observer: Observer, writer: Writer, events: EventRecorder, policy: Policy, clock: Callable[[], float]
    ) -> None:
        """`clock`: the API server's, in seconds since the epoch."""
        self.observer, self.writer, self.events, self.policy, self.clock = observer, writer, events, policy, clock
        self._seen: dict[str, tuple[str, float]] = {}
        """A namespace to the uid of its last lock and the time by the event loop when that was first seen."""
        self._timers: dict[str, Timers] = {}
        self._pauses: RateLimiter[str] = ItemExponentialFailureRateLimiter(_FIRST_PAUSE, policy.sweep)
        self._said: TTLCache[tuple[str, str], bool] = TTLCache(_SAID, ttl=_SAID_SECONDS, timer=loop_time)

    async def on_namespace_changed(self, key: str, _namespace: Namespace | None) -> None:
        """Do the next step. Raises RetryAfter while there is something to re-check, also after an ApiError."""
        if not self.observer.concerns_us(key):
            self._timers.pop(key, None)
            self._seen.pop(key, None)
            self._pauses.forget(key)
            return
        try:
            window, step = await self._work_off(key)
        except TimeoutError as exc:
            raise RetryAfter(_FIRST_PAUSE, "the lock has to end, whatever is waited for") from exc
        except ApiError as exc:
            raise RetryAfter(self._pauses.when(key), f"after an error: {exc}") from exc
        if window.observed.not_restored or window.observed.not_unlocked:
            raise RetryAfter(self._pauses.when(key), "a quota is still raised, or a lock stands")
        self._pauses.forget(key)
        self._come_back(window, step)

    async def on_lock_changed(self, _key: str, configuration: ValidatingWebhookConfiguration | None) -> None:
        """End a lock that is overdue, and ask nothing before: on a queue of its own, for those who work off the
        namespaces may all be waiting for an answer. Raises RetryAfter until then."""
        found = recognise(configuration)
        if found is None:
            return
        key, now = found.namespace, self.clock()
        observed = self._aged(replace(self.observer.cached(key, now, self._timers_of(key)), lock=found))
        if (left := self._left(observed)) > 0:
            raise RetryAfter(left, "the lock has to end then")
        window, step = self._decide(key, observed)
        assert isinstance(step, Write)
        if (await self._try(key, window, step)).not_unlocked:
            raise RetryAfter(self._pauses.when(key), "the lock still stands")

    async def _work_off(self, key: str) -> tuple[Window, Wait]:
        """The caches suggest a step; it is decided anew from live reads, and every write is bound to them. Raises
        TimeoutError when the lock has to end."""
        observed = self._aged(self.observer.cached(key, self.clock(), self._timers_of(key)))
        window, step = self._decide(key, observed)
        if isinstance(step, Wait):
            return window, step
        async with asyncio.timeout(self._left(observed) or None):
            observed = await self.observer.live(key, self.clock(), self._timers_of(key))
            for _ in range(_MOST_WRITES):
                window, step = self._decide(key, self._aged(observed))
                if isinstance(step, Wait):
                    return window, step
                observed = await self._try(key, window, step)
                observed = replace(observed, now=self.clock(), timers=self._timers_of(key))
        raise RetryAfter(_PAUSE, "there is more to write")

    async def _try(self, key: str, window: Window, step: Write) -> Observed:
        """Raises ApiError. A quota that cannot be restored, or a lock that cannot be deleted, does not keep the other
        quotas from it; a write that opens a window and is refused closes it."""
        observed = window.observed
        try:
            try:
                async with asyncio.timeout(_OPENING_SECONDS if step.opens else None):
                    return await self.writer.do(step, observed)
            except TimeoutError as exc:
                raise Unreachable(f"no answer within {_OPENING_SECONDS:g} s") from exc
        except (Conflict, AlreadyExists):
            raise
        except ApiError as exc:
            match step:
                case Write("Restore", ResourceQuota() as quota):
                    message = f"resource quota {quota.name} is still raised, restoring it will be retried: {exc}"
                    self._say(key, observed.problem(EVENT_RESTORE_REFUSED, message, quota.name, quota))
                    return replace(observed, not_restored=[*observed.not_restored, quota.name])
                case Write("Unlock", Lock() as lock):
                    message = f"lock {lock.name} still stands, deleting it will be retried: {exc}"
                    self._say(key, observed.problem(EVENT_UNLOCK_REFUSED, message, lock.uid))
                    return replace(observed, not_unlocked=True)
            if step.opens:
                window.refused(str(exc), self.clock())
                self._keep(key, window)
            raise

    def _aged(self, observed: Observed) -> Observed:
        """A lock is at least as old as we have seen it stand: a clock that is set back must not keep it longer."""
        lock, now = observed.lock, observed.now
        if lock is None:
            return observed
        uid, first = self._seen.get(lock.namespace, ("", 0.0))
        if uid != lock.uid:
            first = loop_time()
            self._seen[lock.namespace] = lock.uid, first
        seen = loop_time() - first
        return replace(observed, lock=replace(lock, since=now - max(age_of(lock, now), seen), seen=now - seen))

    def _left(self, observed: Observed) -> float:
        """Seconds until the lock has to end; 0 without one, or when it is overdue."""
        lock = observed.lock
        return max(0.0, self.policy.longest - age_of(lock, observed.now)) if lock else 0.0

    def _decide(self, key: str, observed: Observed) -> tuple[Window, Step]:
        window = Window(observed, self.policy)
        self._keep(key, window)
        return window, next_step(window)

    def _keep(self, key: str, window: Window) -> None:
        self._timers[key] = window.timers
        for problem in window.problems:
            self._say(key, problem)

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

    def _come_back(self, window: Window, step: Wait) -> None:
        """Re-checks what has begun, even if an event was lost. Raises RetryAfter."""
        begun = window.lock or window.records or any(map(is_in_use, window.observed.budgets))
        seconds = min(step.seconds, self.policy.sweep if begun or window.problems else math.inf)
        if math.isfinite(seconds):
            raise RetryAfter(seconds, step.why)

    def _timers_of(self, key: str) -> Timers:
        return self._timers.get(key, Timers())
