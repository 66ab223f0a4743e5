"""Definitions of metrics. Every metric is made from a row of a table, from which pages and checks are made as well.

Promises: a gauge that is not set yet is not exported: 0 would be a statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric under the name that a scrape shows. `labels` maps each label to what its values are, in words."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    exported: Literal["all", "leader", "webhook"] = "all"
    """By which processes: all, the leader once its caches have synced, or those that serve webhooks."""

    def counter(self, registry: CollectorRegistry = REGISTRY) -> Counter:
        return Counter(self.name, self.help, list(self.labels), registry=registry)

    def gauge(self) -> Gauge:
        """For one with labels: each series is exported once it has a value."""
        return Gauge(self.name, self.help, list(self.labels))

    def histogram(self, buckets: Sequence[float], registry: CollectorRegistry = REGISTRY) -> Histogram:
        return Histogram(self.name, self.help, list(self.labels), buckets=buckets, registry=registry)

    def family(self, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
        """A gauge for a scrape: label values in the order of `labels`, and the value."""
        made = GaugeMetricFamily(self.name, self.help, labels=list(self.labels))
        for values, value in samples:
            made.add_metric(values, value)
        return made


def table(*rows: Metric) -> Mapping[str, Metric]:
    """The rows by name."""
    return {row.name: row for row in rows}


class LateGauge:
    """A gauge without labels that is exported from its first value on."""

    def __init__(self, metric: Metric) -> None:
        self._gauge = Gauge(metric.name, metric.help, registry=None)
        self._exported = False

    def set(self, value: float) -> None:
        self._gauge.set(value)
        if not self._exported:
            self._exported = True
            REGISTRY.register(self._gauge)
