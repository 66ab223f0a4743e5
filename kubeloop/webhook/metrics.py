"""Metrics of a webhook server: controller-runtime's under its names, where `code` is the HTTP status; and what else a
program may export under names of its own."""

from __future__ import annotations

from typing import Final

from kubeloop.controllers.listener import ConnectionMetrics
from kubeloop.metrics import FRAMEWORK
from kubeloop.webhook.admission import Decision

# controller-runtime leaves Prometheus' default buckets; the answers here are faster than the first of those.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUESTS = FRAMEWORK["controller_runtime_webhook_requests_total"].counter()
LATENCY = FRAMEWORK["controller_runtime_webhook_latency_seconds"].histogram(_BUCKETS)
IN_FLIGHT = FRAMEWORK["controller_runtime_webhook_requests_in_flight"].gauge()

UNKNOWN_PATH: Final = "unknown"
"""The label of requests to paths that nothing is served on: a stranger's paths must not become series."""


class WebhookMetrics:
    """The series of one webhook; those of the usual codes exist from the start, as dashboards expect."""

    def __init__(self, name: str) -> None:
        self.name = name
        for code in ("200", "500"):
            REQUESTS.labels(name, code)
        self._latency = LATENCY.labels(name)
        self.in_flight = IN_FLIGHT.labels(name)

    def answered(self, code: int, seconds: float) -> None:
        """Records a request that ended with an HTTP status."""
        REQUESTS.labels(self.name, str(code)).inc()
        self._latency.observe(seconds)


class ServerMetrics(ConnectionMetrics):
    """The metrics of a server, for a program to export; these methods do nothing with them."""

    def name(self, path: str) -> str:
        """Returns the name of a path's webhook in metrics."""
        return path

    def decided(self, webhook: str, decision: Decision) -> None:
        """A review was answered."""

    def certificate(self, expires: float) -> None:
        """Records the end of the serving certificate, in seconds since 1970."""
