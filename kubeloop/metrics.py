"""Definitions of metrics. Every metric is made from a row of a table, from which pages and checks are made as well.

Promises: a gauge that is not set yet is not exported: 0 would be a statement."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

_QUEUE: Final = {"name": "the queue's kind, by its plural"}
_HANDLER: Final = {"controller": "the handler's name"}
_HOST: Final = {"host": "the API server"}
_LATENCY: Final = {"verb": "HTTP method"} | _HOST
_REQUEST: Final = {"code": "HTTP status, `<error>`: no answer", "method": "HTTP method"} | _HOST
_DECODING: Final = {"kind": "of the object", "reason": "`invalid`: the last good version is kept; `too_deep`: cut off"}
_RESULT: Final = _HANDLER | {"result": "`success`, `error`, `requeue`, `requeue_after`"}
_LEASE: Final = {"name": "`namespace/name` of the Lease"}
_DROPPED: Final = {"reason": "`queue full`, `spam`, `refused`, `failed`, `invalid`, `stopped`"}
_WEBHOOK: Final = {"webhook": "the webhook's name; `unknown`: of a path that nothing is served on"}
_ANSWER: Final = _WEBHOOK | {"code": "HTTP status"}
_KIND: Final = {"name": "plural of the kind"}
_EVENT: Final = {"type": "`Normal`, `Warning`", "reason": "as on the event"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric under the name that a scrape shows. `labels` maps each label to a description of its values."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    exported: Literal["all", "leader", "webhook"] = "all"
    """The processes that export it: all, the leader once its caches have synced, or those that serve webhooks."""

    def counter(self) -> Counter:
        """Returns the counter, registered. Raises ValueError where the name is registered already; so do the others."""
        return Counter(self.name, self.help, list(self.labels))

    def gauge(self) -> Gauge:
        """Returns the gauge of a metric with labels: each series is exported once it has a value."""
        return Gauge(self.name, self.help, list(self.labels))

    def histogram(self, buckets: Sequence[float]) -> Histogram:
        """Returns the histogram; `buckets` are upper bounds in the metric's unit (seconds), ascending."""
        return Histogram(self.name, self.help, list(self.labels), buckets=buckets)

    def family(self, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
        """A gauge for a scrape: label values in the order of `labels`, and the value."""
        gauge = GaugeMetricFamily(self.name, self.help, labels=list(self.labels))
        for values, value in samples:
            gauge.add_metric(values, value)
        return gauge


def table(*rows: Metric) -> Mapping[str, Metric]:
    """The rows by name."""
    return {row.name: row for row in rows}


class LateGauge:
    """A gauge without labels that is exported from its first value on."""

    def __init__(self, metric: Metric) -> None:
        self._gauge = Gauge(metric.name, metric.help, registry=None)
        self._exported = False

    def set(self, value: float) -> None:
        """Sets the value, and exports the gauge if it is the first one."""
        self._gauge.set(value)
        if not self._exported:
            self._exported = True
            REGISTRY.register(self._gauge)


FRAMEWORK: Final = table(
    # -- under client-go's names: dashboards that know them work as they are
    Metric("workqueue_depth", "gauge", "Current depth of workqueue.", _QUEUE),
    Metric("workqueue_adds_total", "counter", "Items that were added.", _QUEUE),
    Metric("workqueue_retries_total", "counter", "Items that were retried.", _QUEUE),
    Metric("workqueue_queue_duration_seconds", "histogram", "How long items wait in the queue.", _QUEUE),
    Metric("workqueue_work_duration_seconds", "histogram", "How long an item is worked on.", _QUEUE),
    Metric("workqueue_unfinished_work_seconds", "gauge", "Seconds of work in progress.", _QUEUE),
    Metric("workqueue_longest_running_processor_seconds", "gauge", "Age of the item that takes longest.", _QUEUE),
    Metric("rest_client_requests_total", "counter", "HTTP requests to the API server.", _REQUEST),
    Metric("rest_client_request_duration_seconds", "histogram", "Time of a request, or until a watch opens.", _LATENCY),
    Metric("rest_client_undecodable_objects_total", "counter", "Objects that could not be decoded.", _DECODING),
    Metric("leader_election_master_status", "gauge", "1 while this process holds the lease, else 0.", _LEASE),
    # -- under controller-runtime's names
    Metric("controller_runtime_reconcile_total", "counter", "Calls of a handler.", _RESULT),
    Metric("controller_runtime_reconcile_errors_total", "counter", "Calls that failed.", _HANDLER),
    Metric("controller_runtime_terminal_reconcile_errors_total", "counter", "Failed calls, not tried again.", _HANDLER),
    Metric("controller_runtime_reconcile_panics_total", "counter", "Calls that raised an unexpected error.", _HANDLER),
    Metric("controller_runtime_reconcile_time_seconds", "histogram", "Time of a call.", _HANDLER),
    Metric("controller_runtime_active_workers", "gauge", "Calls in progress.", _HANDLER),
    Metric("controller_runtime_max_concurrent_reconciles", "gauge", "Workers.", _HANDLER),
    Metric("controller_runtime_webhook_requests_total", "counter", "Admission requests.", _ANSWER, "webhook"),
    Metric("controller_runtime_webhook_latency_seconds", "histogram", "Time until an answer.", _WEBHOOK, "webhook"),
    Metric("controller_runtime_webhook_requests_in_flight", "gauge", "Requests at work.", _WEBHOOK, "webhook"),
    # -- of caches, of the event loop, of events on objects
    Metric("reflector_silent_watches", "gauge", "Watches that bring nothing: their kinds are listed again.", _KIND),
    Metric("event_loop_blocked_seconds_total", "counter", "Steps of a handler that took over a second.", _HANDLER),
    Metric("event_recorder_events_total", "counter", "Events that were recorded.", _EVENT),
    Metric("event_recorder_dropped_total", "counter", "Events that were not written.", _DROPPED),
)
