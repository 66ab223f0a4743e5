"""Items that are to be added later: client-go's `util/workqueue/delaying_queue.go`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pkg.workqueue.queue import DEFAULT_PRIORITY, K, Queue, loop_time


@dataclass(frozen=True, slots=True)
class _Timer:
    """What an item waits for outside the queue."""

    handle: asyncio.TimerHandle
    priority: int


class DelayingQueue(Queue[K]):
    """A queue whose items may wait outside for a while."""

    def __init__(self, name: str = "", *, clock: Callable[[], float] = loop_time) -> None:
        super().__init__(name, clock=clock)
        self._timers: dict[K, _Timer] = {}
        # Invariant: an item has one timer at most, the earliest that was asked for. It is in here until the
        # timer fires or the queue shuts down.

    @property
    def delayed(self) -> int:
        """How many items wait for their time."""
        return len(self._timers)

    def add_after(self, item: K, seconds: float, priority: int = DEFAULT_PRIORITY) -> None:
        """Add an item in `seconds`, at once if that is not positive. Ignored once the queue is shutting down.

        Asked for twice, the earlier moment and the higher priority win. An `add` meanwhile does not stop the
        timer. Needs the running loop.
        """
        if self._shutting_down:
            return
        self._metrics.retry()
        if not seconds > 0:
            self.add(item, priority)
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        timer = self._timers.get(item)
        if timer is not None:
            priority = max(priority, timer.priority)
            when = min(when, timer.handle.when())
            if (when, priority) == (timer.handle.when(), timer.priority):
                return
            timer.handle.cancel()
        self._timers[item] = _Timer(loop.call_at(when, self._fire, item), priority)

    def shut_down(self) -> None:
        """As Queue's; what is still delayed is dropped."""
        super().shut_down()
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    def _fire(self, item: K) -> None:
        timer = self._timers.pop(item)
        self.add(item, timer.priority)
