"""The webhooks' metrics of headroom's own names."""

from __future__ import annotations

from itertools import product

from kubeloop.metrics import LateGauge
from kubeloop.webhook.admission import Decision
from kubeloop.webhook.metrics import ServerMetrics
from pkg.config.metrics import METRICS
from pkg.webhook.configurations import NAMES

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


class HeadroomMetrics(ServerMetrics):
    """Exports what a server tells; the series of every webhook exist from the start, as dashboards expect."""

    def __init__(self) -> None:
        answers = product(NAMES.values(), ("allowed", "patched", "denied"))
        self._decisions = {key: DECISIONS.labels(*key) for key in answers}

    def name(self, path: str) -> str:
        return NAMES[path]

    def connections(self, count: int) -> None:
        OPEN.set(count)

    def closed(self, reason: str) -> None:
        CLOSED.labels(reason).inc()

    def decided(self, webhook: str, decision: Decision) -> None:
        if not decision.allowed:
            DENIALS.labels(webhook, decision.reason).inc()
        answer = "denied" if not decision.allowed else "patched" if decision.patch else "allowed"
        self._decisions[webhook, answer].inc()

    def certificate(self, expires: float) -> None:
        CERTIFICATE_EXPIRY.set(expires)
