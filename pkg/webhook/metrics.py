"""Webhook metrics under controller-runtime's names. `webhook` is the path, `code` the HTTP status."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

# controller-runtime leaves Prometheus' default buckets; the answers here are faster than the first of those.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUESTS = Counter(
    "controller_runtime_webhook_requests_total",
    "Total number of admission requests by HTTP status code.",
    ["webhook", "code"],
)
LATENCY = Histogram(
    "controller_runtime_webhook_latency_seconds",
    "Histogram of the latency of processing admission requests",
    ["webhook"],
    buckets=_BUCKETS,
)
IN_FLIGHT = Gauge(
    "controller_runtime_webhook_requests_in_flight",
    "Current number of admission requests being served.",
    ["webhook"],
)
DECISIONS = Counter(
    "headroom_admission_decisions_total", "Admission decisions by what was answered.", ["webhook", "decision"]
)
DENIALS = Counter("headroom_admission_denials_total", "Denied requests by reason.", ["webhook", "reason"])
TIMEOUTS = Counter(
    "headroom_admission_timeouts_total",
    "Live reads of the API server that did not end before the review's deadline.",
)
REMEMBERED = Gauge(
    "headroom_reserve_remembered_pods", "Pods that the reserve let through and has not seen yet."
)
CERTIFICATE_EXPIRY = Gauge(
    "headroom_webhook_certificate_expiry_seconds", "When the serving certificate expires, seconds since 1970."
)

UNREACHABLE = Gauge("headroom_webhook_unreachable", "1 while the API server does not reach the webhooks.")
DRIFT = Gauge("headroom_webhook_registration_drift", "1 while a replica with other flags answers.")

UNKNOWN_PATH = "unknown"
"""The label of requests to paths that nothing is served on: a stranger's paths must not become series."""


class WebhookMetrics:
    """The series of one path; those of the usual codes exist from the start, as dashboards expect."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._codes = {code: REQUESTS.labels(path, str(code)) for code in (200, 500)}
        self._latency = LATENCY.labels(path)
        self._decisions = {name: DECISIONS.labels(path, name) for name in ("allowed", "patched", "denied")}
        self.in_flight = IN_FLIGHT.labels(path)

    def answered(self, code: int, seconds: float) -> None:
        """One request ended with an HTTP status."""
        if code not in self._codes:
            self._codes[code] = REQUESTS.labels(self._path, str(code))
        self._codes[code].inc()
        self._latency.observe(seconds)

    def decided(self, *, allowed: bool, patched: bool, reason: str = "") -> None:
        """What the answer said; `reason` of a refusal."""
        if not allowed:
            DENIALS.labels(self._path, reason).inc()
        self._decisions["denied" if not allowed else "patched" if patched else "allowed"].inc()
