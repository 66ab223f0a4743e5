"""Looks at one namespace and does the next write of the sequence, one after the other as far as it goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from cachetools import TTLCache

from pkg.api.core import Namespace
from pkg.controller.managedtenantquota.metrics import LIMIT_REACHED, LOCKS_HELD
from pkg.controller.managedtenantquota.observation import Observer
from pkg.controller.managedtenantquota.writer import Writer
from pkg.generic.errors import RetryAfter
from pkg.generic.events import EventRecorder
from pkg.util.managedtenantquota.constants import EVENT_LOCK_LIMIT
from pkg.util.managedtenantquota.model import Memory, Observed, Policy, Problem
from pkg.util.managedtenantquota.sequence import Decision, Wait, decide
from pkg.util.managedtenantquota.window import journal_of
from pkg.workqueue.queue import loop_time

log = logging.getLogger(__name__)

_MOST_WRITES = 100
"""In one go; a namespace with more blocking quotas than that goes on in the next."""
_PAUSE = 1.0
"""Seconds until then."""
_SAID_SECONDS = 600.0
_SAID = 4096


class Handler:
    """Handles Namespaces, by name: all that happens in one of them is in order."""

    def __init__(
        self,
        observer: Observer,
        writer: Writer,
        events: EventRecorder,
        policy: Policy,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._observer = observer
        self._writer = writer
        self._events = events
        self._policy = policy
        self._clock = clock
        self._memories: dict[str, Memory] = {}
        self._said: TTLCache[tuple[str, str], bool] = TTLCache(_SAID, ttl=_SAID_SECONDS, timer=loop_time)

    async def on_namespace_changed(self, key: str, _namespace: Namespace | None) -> None:
        """Do what is next. Raises RetryAfter while there is something to come back for, ApiError."""
        if not self._observer.concerns_us(key):
            self._memories.pop(key, None)
            return
        observed = self._observer.cached(key, self._clock(), self._memory(key))
        decision = self._decide(key, observed)
        if decision.writes:
            observed = await self._observer.live(key, self._clock(), self._memory(key))
            decision, observed = await self._write(key, observed)
        self._come_back(observed, decision)

    async def _write(self, key: str, observed: Observed) -> tuple[Decision, Observed]:
        """The caches suggested, now the API server decides: every write is for what stands there, and bound to it."""
        for _ in range(_MOST_WRITES):
            decision = self._decide(key, observed)
            if isinstance(decision.step, Wait):
                return decision, observed
            observed = await self._writer.do(decision.step, observed, self._clock())
            observed = replace(observed, now=self._clock(), memory=self._memory(key))
        raise RetryAfter(_PAUSE, "there is more to write")

    def _decide(self, key: str, observed: Observed) -> Decision:
        decision = decide(observed, self._policy)
        self._memories[key] = decision.memory
        for problem in decision.problems:
            self._say(key, problem)
        return decision

    def _say(self, namespace: str, problem: Problem) -> None:
        """An event for what people have to know, once in a while."""
        if (namespace, problem.key) in self._said:
            return
        self._said[namespace, problem.key] = True
        log.warning("%s: %s", namespace, problem.message)
        if problem.reason == EVENT_LOCK_LIMIT:
            LIMIT_REACHED.inc()
        for obj in problem.about:
            self._events.event(obj, "Warning", problem.reason, problem.message)

    def _come_back(self, observed: Observed, decision: Decision) -> None:
        """Whatever event is lost: what is begun is looked at again. Raises RetryAfter."""
        assert isinstance(decision.step, Wait)
        waits = [decision.step.seconds]
        begun = observed.lock is not None or any(not journal_of(b).empty for b in observed.budgets)
        if begun or decision.problems:
            waits.append(self._policy.sweep)
        seconds = [wait for wait in waits if wait is not None]
        if seconds:
            raise RetryAfter(min(seconds), decision.step.why)

    def _memory(self, key: str) -> Memory:
        return self._memories.get(key, Memory())


def show_locks(count: Callable[[], int]) -> None:
    """The gauge says what the cache holds when it is asked."""
    LOCKS_HELD.set_function(count)
