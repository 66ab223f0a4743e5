"""Numbers that client-go and controller-runtime have, and that dashboards and ports count on."""

import pytest
from prometheus_client import Histogram

from kubeloop.api import registry
from kubeloop.client import transport
from kubeloop.controllers import events, reconcile
from kubeloop.workqueue import queue

# tools/metrics of k8s.io/component-base, and pkg/internal/controller/metrics of controller-runtime, in seconds.
REQUESTS = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]
RECONCILES = [
    *(0.005, 0.01, 0.025, 0.05, *(hundredths / 100 for hundredths in range(10, 55, 5)), 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0),
    *(40.0, 50.0, 60.0),
]


@pytest.mark.parametrize(
    ("metric", "labels", "bounds"),
    [(transport._DURATION, ("GET", "host"), REQUESTS), (reconcile.RECONCILE_TIME, ("numbers",), RECONCILES)],
    ids=["a client's requests", "a handler's calls"],
)
def test_buckets_are_upstreams(metric: Histogram, labels: tuple[str, ...], bounds: list[float]) -> None:
    metric.labels(*labels).observe(0.0)
    values = {
        float(sample.labels["le"])
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }
    assert sorted(values) == [*bounds, float("inf")]


def test_priorities_and_limits_of_events_are_upstreams() -> None:
    assert (queue.DEFAULT_PRIORITY, queue.LOW_PRIORITY) == (0, -100)
    assert (events.SPAM_BURST, events.SPAM_SECONDS, events.SIMILAR_LIMIT) == (25, 300.0, 10)


def test_webhook_configurations_have_no_status() -> None:
    kinds = (registry.VALIDATING_WEBHOOK_CONFIGURATIONS, registry.MUTATING_WEBHOOK_CONFIGURATIONS)
    assert [(kind.namespaced, kind.status_subresource) for kind in kinds] == [(False, False)] * 2
