"""Webhook metrics under controller-runtime's names. `code` is the HTTP status."""

from __future__ import annotations

from kubeloop.metrics import LateGauge
from pkg.config.metrics import METRICS
from pkg.webhook.admission import Decision
from pkg.webhook.configurations import NAMES

# controller-runtime leaves Prometheus' default buckets; the answers here are faster than the first of those.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUESTS = METRICS["controller_runtime_webhook_requests_total"].counter()
LATENCY = METRICS["controller_runtime_webhook_latency_seconds"].histogram(_BUCKETS)
IN_FLIGHT = METRICS["controller_runtime_webhook_requests_in_flight"].gauge()
DECISIONS = METRICS["headroom_admission_decisions_total"].counter()
DENIALS = METRICS["headroom_admission_denials_total"].counter()
TIMEOUTS = METRICS["headroom_admission_timeouts_total"].counter()
REMEMBERED = LateGauge(METRICS["headroom_reserve_remembered_pods"])
CERTIFICATE_EXPIRY = LateGauge(METRICS["headroom_webhook_certificate_expiry_seconds"])
UNREACHABLE = LateGauge(METRICS["headroom_webhook_unreachable"])
LAST_REACHED = LateGauge(METRICS["headroom_webhook_last_reached_timestamp_seconds"])
OPEN = LateGauge(METRICS["headroom_webhook_connections"])
CLOSED = METRICS["headroom_webhook_connections_closed_total"].counter()
DRIFT = LateGauge(METRICS["headroom_webhook_registration_drift"])

UNKNOWN_PATH = "unknown"
"""The label of requests to paths that nothing is served on: a stranger's paths must not become series."""


class WebhookMetrics:
    """The series of one path's webhook; those of the usual codes exist from the start, as dashboards expect."""

    def __init__(self, path: str) -> None:
        self._name = name = NAMES.get(path, path)
        self._codes = {code: REQUESTS.labels(name, str(code)) for code in (200, 500)}
        self._latency = LATENCY.labels(name)
        self._decisions = {each: DECISIONS.labels(name, each) for each in ("allowed", "patched", "denied")}
        self.in_flight = IN_FLIGHT.labels(name)

    def answered(self, code: int, seconds: float) -> None:
        """One request ended with an HTTP status."""
        if code not in self._codes:
            self._codes[code] = REQUESTS.labels(self._name, str(code))
        self._codes[code].inc()
        self._latency.observe(seconds)

    def decided(self, decision: Decision) -> None:
        """What the answer said."""
        if not decision.allowed:
            DENIALS.labels(self._name, decision.reason).inc()
        self._decisions["denied" if not decision.allowed else "patched" if decision.patch else "allowed"].inc()
