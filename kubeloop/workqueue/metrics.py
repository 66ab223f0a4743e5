"""Queue metrics under client-go's names, so that dashboards that know `workqueue_*` work as they are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

from kubeloop.metrics import FRAMEWORK

# controller-runtime's buckets: 10 ns to 1000 s, a factor of 10 each.
_BUCKETS = tuple(10.0**exponent for exponent in range(-8, 4))

ADDS = FRAMEWORK["workqueue_adds_total"].counter()
RETRIES = FRAMEWORK["workqueue_retries_total"].counter()
QUEUE_DURATION = FRAMEWORK["workqueue_queue_duration_seconds"].histogram(_BUCKETS)
WORK_DURATION = FRAMEWORK["workqueue_work_duration_seconds"].histogram(_BUCKETS)


class QueueMetrics:
    """The metrics of a queue's items (client-go's queueMetrics); a queue without a name has none."""

    def add(self, item: Hashable) -> None: ...
    def get(self, item: Hashable) -> None: ...
    def done(self, item: Hashable) -> None: ...
    def retry(self) -> None: ...


class _NamedQueueMetrics(QueueMetrics):
    """Counts and durations of one queue; `depth` is asked at every scrape."""

    def __init__(self, name: str, clock: Callable[[], float], depth: Callable[[], int]) -> None:
        self.name = name
        self.clock = clock
        self.depth = weakref.WeakMethod(depth)
        self._added_at: dict[Hashable, float] = {}
        self._started: dict[Hashable, float] = {}
        self._adds = ADDS.labels(name)
        self._retries = RETRIES.labels(name)
        self._queue_duration = QUEUE_DURATION.labels(name)
        self._work_duration = WORK_DURATION.labels(name)

    def add(self, item: Hashable) -> None:
        self._adds.inc()
        self._added_at.setdefault(item, self.clock())

    def get(self, item: Hashable) -> None:
        now = self.clock()
        self._started[item] = now
        self._queue_duration.observe(now - self._added_at.pop(item, now))

    def done(self, item: Hashable) -> None:
        now = self.clock()
        self._work_duration.observe(now - self._started.pop(item, now))

    def retry(self) -> None:
        self._retries.inc()

    def running(self) -> list[float]:
        """Seconds since each item that is being processed was taken."""
        now = self.clock()
        return [now - started for started in self._started.values()]


_instances: weakref.WeakSet[_NamedQueueMetrics] = weakref.WeakSet()


def new_queue_metrics(name: str, clock: Callable[[], float], depth: Callable[[], int]) -> QueueMetrics:
    """Metrics of a queue; `depth` must be a bound method of it and keeps it alive no longer."""
    if not name:
        return QueueMetrics()
    metrics = _NamedQueueMetrics(name, clock, depth)
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
