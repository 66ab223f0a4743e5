"""The basic queue: client-go's `util/workqueue/queue.go` plus priorities."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

from kubeloop.metrics import FRAMEWORK

K = TypeVar("K", bound=Hashable)

DEFAULT_PRIORITY = 0
LOW_PRIORITY = -100
"""The priority of the first listing and of resyncs: live events overtake them (controller-runtime's LowPriority)."""


LEFTOVERS = 64
"""Entries that no longer count, beyond as many as do: then they are dropped."""


class ShutDown(Exception):
    """The queue is shut down and nothing is left in it."""


def loop_time() -> float:
    """Seconds of the running loop's clock; outside a loop the monotonic clock that loops use by default."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class Queue(Generic[K]):
    """Items that wait for a worker. `name` labels the metrics; a queue without a name has none."""

    def __init__(self, name: str = "") -> None:
        self._dirty: dict[K, int] = {}
        # Invariant: the items that need processing, each with its priority. An item of `_dirty` that is not
        # in `_processing` stands in `_lines`, exactly once; one that is in both gets there by `done`.
        self._processing: dict[K, int] = {}
        # Invariant: the items that a worker has, with the priority they were handed out with.
        self._lines: dict[int, deque[K]] = {}
        # Invariant: the items that wait, in order, by the priority that `_dirty` says, and the entries that
        # `_stale_entries` counts. No line is empty: there are as many as priorities in use, two mostly.
        self._stale_entries: Counter[tuple[int, K]] = Counter()
        # Invariant: how many of an item's entries in a line, the first ones, no longer count: taking one out of the
        # middle would cost O(n). There are never many more of them than of the others.
        self._stale_total = 0
        # Invariant: their sum.
        self._postponed: set[K] = set()
        # Invariant: the items that no `add` may bring before their time; a delaying queue has some.
        self._getters: deque[asyncio.Future[None]] = deque()
        self._drainers: deque[asyncio.Future[None]] = deque()
        self._shutting_down = False
        self._draining = False
        self._metrics: QueueMetrics = new_queue_metrics(name, self._depth)
        self.name = name

    def __len__(self) -> int:
        """The number of items that a worker can take now, without those that were added again during their
        processing."""
        return sum(map(len, self._lines.values())) - self._stale_total

    def _depth(self) -> int:
        """Returns the number of items that need processing, as client-go counts them: those that were added again
        too."""
        return len(self._dirty)

    def add(self, item: K, priority: int = DEFAULT_PRIORITY) -> None:
        """Marks an item as in need of processing. Ignored once the queue is shutting down.

        An item that waits already keeps its place, unless `priority` is higher than what it waits with: then it moves
        to the end of that priority."""
        if self._shutting_down:
            return
        if self._postponed and item in self._postponed:
            self._raise_postponed(item, priority)
            return
        old_priority = self._dirty.get(item)
        if old_priority is None:
            self._metrics.add(item)
        elif old_priority >= priority:
            return
        if item not in self._processing:
            if old_priority is not None:
                self._leave(item, old_priority)
            self._push(item, priority)
        self._dirty[item] = priority

    async def get(self) -> K:
        """Waits for an item and takes it; the caller must call `done` with it. A cancelled call takes nothing. Raises
        ShutDown once the queue is shut down and empty."""
        lines = self._lines
        while True:
            while not lines:
                if self._shutting_down:
                    raise ShutDown
                await self._wait_for_item()
            priority = max(lines) if len(lines) > 1 else next(iter(lines))
            line = lines[priority]
            item = line.popleft()
            if not line:
                del lines[priority]
            if not self._stale_entries or not self._take_stale_entry(item, priority):
                break
        self._processing[item] = self._dirty.pop(item)
        self._metrics.get(item)
        return item

    def done(self, item: K) -> None:
        """Gives an item back; it waits again if it was added meanwhile. Items that are not processed are ignored."""
        if self._processing.pop(item, None) is None:
            return
        self._metrics.done(item)
        priority = self._dirty.get(item)
        if priority is not None:
            self._push(item, priority)
        if not self._processing:
            _wake_all(self._drainers)

    def shut_down(self) -> None:
        """Ignores new items from now on. Workers still get what waits, then ShutDown. A drain that waits ends."""
        self._shutting_down = True
        self._draining = False
        _wake_all(self._getters)
        _wake_all(self._drainers)

    async def shut_down_with_drain(self, timeout: float | None = None) -> bool:
        """Shuts down and waits until no item is being processed; False if that takes more than `timeout` s, or if
        `shut_down` ends it."""
        self.shut_down()
        self._draining = True
        try:
            async with asyncio.timeout(timeout):
                while self._processing and self._draining:
                    drained = asyncio.get_running_loop().create_future()
                    self._drainers.append(drained)
                    await drained
        except TimeoutError:
            return False
        return not self._processing

    def _push(self, item: K, priority: int) -> None:
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = deque()
        line.append(item)
        if self._getters:
            _wake_one(self._getters)

    def _leave(self, item: K, priority: int) -> None:
        """The item, which waits with this priority, waits no more."""
        self._stale_entries[priority, item] += 1
        self._stale_total += 1
        if self._stale_total > len(self) + LEFTOVERS:
            self._drop_stale_entries()

    def _take_stale_entry(self, item: K, priority: int) -> bool:
        """Takes a stale entry of the item, and reports whether there was one."""
        entries = self._stale_entries.pop((priority, item), 0)
        if not entries:
            return False
        if entries > 1:
            self._stale_entries[priority, item] = entries - 1
        self._stale_total -= 1
        return True

    def _drop_stale_entries(self) -> None:
        for priority, line in list(self._lines.items()):
            counting = [item for item in line if not self._take_stale_entry(item, priority)]
            del self._lines[priority]
            if counting:
                self._lines[priority] = deque(counting)

    def _raise_postponed(self, item: K, priority: int) -> None:
        """Notes the higher priority of an item that is postponed."""
        raise NotImplementedError

    async def _wait_for_item(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.cancelled():
                # Not there any more if an `add` or `shut_down` of the same turn came across it and went on to the next.
                with contextlib.suppress(ValueError):
                    self._getters.remove(getter)
            else:
                # Woken and cancelled in the same turn: pass the call on, or an item sleeps beside a worker.
                _wake_one(self._getters)
            raise


def _wake_one(sleepers: deque[asyncio.Future[None]]) -> None:
    while sleepers:
        sleeper = sleepers.popleft()
        if not sleeper.done():
            sleeper.set_result(None)
            return


def _wake_all(sleepers: deque[asyncio.Future[None]]) -> None:
    while sleepers:
        _wake_one(sleepers)


# controller-runtime's buckets: 10 ns to 1000 s, a factor of 10 each.
_BUCKETS = tuple(10.0**exponent for exponent in range(-8, 4))

ADDS = FRAMEWORK["workqueue_adds_total"].counter()
RETRIES = FRAMEWORK["workqueue_retries_total"].counter()
QUEUE_DURATION = FRAMEWORK["workqueue_queue_duration_seconds"].histogram(_BUCKETS)
WORK_DURATION = FRAMEWORK["workqueue_work_duration_seconds"].histogram(_BUCKETS)


class QueueMetrics:
    """The metrics of a queue's items, under client-go's names, so that dashboards that know `workqueue_*` work as they
    are; a queue without a name has none."""

    def add(self, item: Hashable) -> None: ...
    def get(self, item: Hashable) -> None: ...
    def done(self, item: Hashable) -> None: ...
    def retry(self) -> None: ...


class _NamedQueueMetrics(QueueMetrics):
    """Counts and durations of one queue; `depth` is asked at every scrape."""

    def __init__(self, name: str, depth: Callable[[], int]) -> None:
        self.name = name
        self.depth = weakref.WeakMethod(depth)
        self._added_at: dict[Hashable, float] = {}
        self._started: dict[Hashable, float] = {}
        self._adds = ADDS.labels(name)
        self._retries = RETRIES.labels(name)
        self._queue_duration = QUEUE_DURATION.labels(name)
        self._work_duration = WORK_DURATION.labels(name)

    def add(self, item: Hashable) -> None:
        self._adds.inc()
        self._added_at.setdefault(item, loop_time())

    def get(self, item: Hashable) -> None:
        now = loop_time()
        self._started[item] = now
        self._queue_duration.observe(now - self._added_at.pop(item, now))

    def done(self, item: Hashable) -> None:
        now = loop_time()
        self._work_duration.observe(now - self._started.pop(item, now))

    def retry(self) -> None:
        self._retries.inc()

    def running(self) -> list[float]:
        """Seconds since each item that is being processed was taken."""
        now = loop_time()
        return [now - started for started in self._started.values()]


_instances: weakref.WeakSet[_NamedQueueMetrics] = weakref.WeakSet()


def new_queue_metrics(name: str, depth: Callable[[], int]) -> QueueMetrics:
    """Metrics of a queue; `depth` must be a bound method of it and keeps it alive no longer."""
    if not name:
        return QueueMetrics()
    metrics = _NamedQueueMetrics(name, depth)
    _instances.add(metrics)
    return metrics


class _Gauges(Collector):
    """The gauges that are computed when metrics are scraped: client-go updates these twice a second instead."""

    def collect(self) -> Iterator[Metric]:
        queues = sorted(_by_name().items())
        yield _gauge("workqueue_depth", {name: waiting for name, (waiting, _) in queues})
        yield _gauge("workqueue_unfinished_work_seconds", {name: sum(running) for name, (_, running) in queues})
        longest = {name: max(running, default=0.0) for name, (_, running) in queues}
        yield _gauge("workqueue_longest_running_processor_seconds", longest)


def _gauge(name: str, values: Mapping[str, float]) -> Metric:
    return FRAMEWORK[name].family(((queue,), value) for queue, value in values.items())


def _by_name() -> dict[str, tuple[int, list[float]]]:
    totals: dict[str, tuple[int, list[float]]] = {}
    for metrics in list(_instances):
        depth = metrics.depth()
        waiting, running = totals.get(metrics.name, (0, []))
        totals[metrics.name] = (waiting + (depth() if depth else 0), running + metrics.running())
    return totals


REGISTRY.register(_Gauges())
