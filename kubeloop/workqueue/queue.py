"""The basic queue: client-go's `util/workqueue/queue.go` plus priorities."""

import asyncio
import contextlib
import time
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

from kubeloop.metrics import FRAMEWORK

K = TypeVar("K", bound=Hashable)

DEFAULT_PRIORITY = 0
LOW_PRIORITY = -100
"""The priority of the first listing and of resyncs: live events overtake them (controller-runtime's LowPriority)."""


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
        self._lines: dict[int, OrderedDict[K, None]] = {}
        # Invariant: the items that wait, in order, by the priority that `_dirty` says. No line is empty: there are as
        # many as priorities in use, two mostly.
        self._getters: deque[asyncio.Future[None]] = deque()
        self._settled = asyncio.Event()
        self._shutting_down = False
        self._draining = False
        self._metrics = QueueMetrics(self, name) if name else None
        self.name = name

    def __len__(self) -> int:
        """The number of items that a worker can take now, without those that were added while they are processed."""
        return sum(map(len, self._lines.values()))

    def add(self, item: K, priority: int = DEFAULT_PRIORITY) -> None:
        """Marks an item as in need of processing. Ignored once the queue is shutting down.

        An item that waits already keeps its place, unless `priority` is higher than what it waits with: then it moves
        to the end of that priority."""
        if self._shutting_down:
            return
        old_priority = self._dirty.get(item)
        if old_priority is None:
            if self._metrics:
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
        while not self._lines:
            if self._shutting_down:
                raise ShutDown
            await self._wait_for_item()
        priority = max(self._lines)
        line = self._lines[priority]
        item, _ = line.popitem(last=False)
        if not line:
            del self._lines[priority]
        self._processing[item] = self._dirty.pop(item)
        if self._metrics:
            self._metrics.get(item)
        return item

    def done(self, item: K) -> None:
        """Gives an item back; it waits again if it was added meanwhile. Items that are not processed are ignored."""
        if self._processing.pop(item, None) is None:
            return
        if self._metrics:
            self._metrics.done(item)
        priority = self._dirty.get(item)
        if priority is not None:
            self._push(item, priority)
        if self._draining and not self._processing:
            self._settled.set()

    def shut_down(self) -> None:
        """Ignores new items from now on. Workers still get what waits, then ShutDown. A drain that waits ends."""
        self._shutting_down = True
        self._draining = False
        self._settled.set()
        while self._getters:
            self._wake_getter()

    async def shut_down_with_drain(self, timeout: float | None = None) -> bool:
        """Shuts down and waits until no item is processed; False after `timeout` seconds, or if `shut_down` ends it."""
        self.shut_down()
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._processing and self._draining:
                    self._settled.clear()
                    await self._settled.wait()
        return not self._processing

    def _push(self, item: K, priority: int) -> None:
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = OrderedDict()
        line[item] = None
        if self._getters:
            self._wake_getter()

    def _leave(self, item: K, priority: int) -> None:
        """The item, which waits with this priority, waits no more."""
        line = self._lines[priority]
        del line[item]
        if not line:
            del self._lines[priority]

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
                self._wake_getter()
            raise

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return


# controller-runtime's buckets: 10 ns to 1000 s, a factor of 10 each.
_BUCKETS = tuple(10.0**exponent for exponent in range(-8, 4))

ADDS = FRAMEWORK["workqueue_adds_total"].counter()
RETRIES = FRAMEWORK["workqueue_retries_total"].counter()
QUEUE_DURATION = FRAMEWORK["workqueue_queue_duration_seconds"].histogram(_BUCKETS)
WORK_DURATION = FRAMEWORK["workqueue_work_duration_seconds"].histogram(_BUCKETS)


class QueueMetrics:
    """Counts and durations of a queue's items under client-go's names: dashboards that know `workqueue_*` work."""

    def __init__(self, queue: Queue[Any], name: str) -> None:
        self._added_at: dict[Hashable, float] = {}
        self._started: dict[Hashable, float] = {}
        self._adds = ADDS.labels(name)
        self._retries = RETRIES.labels(name)
        self._queue_duration = QUEUE_DURATION.labels(name)
        self._work_duration = WORK_DURATION.labels(name)
        _QUEUES[queue] = self

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


_QUEUES: weakref.WeakKeyDictionary[Queue[Any], QueueMetrics] = weakref.WeakKeyDictionary()


class _Gauges(Collector):
    """The gauges that are computed when metrics are scraped: client-go updates these twice a second instead."""

    def collect(self) -> Iterator[Metric]:
        waiting: Counter[str] = Counter()
        running: defaultdict[str, list[float]] = defaultdict(list)
        for queue, metrics in list(_QUEUES.items()):
            waiting[queue.name] += len(queue._dirty)  # as client-go counts them: those that were added again too
            running[queue.name] += metrics.running()
        for gauge, values in (
            ("workqueue_depth", waiting),
            ("workqueue_unfinished_work_seconds", {name: sum(ages) for name, ages in running.items()}),
            ("workqueue_longest_running_processor_seconds", {n: max(ages, default=0.0) for n, ages in running.items()}),
        ):
            yield FRAMEWORK[gauge].family(((name,), value) for name, value in sorted(values.items()))


REGISTRY.register(_Gauges())
