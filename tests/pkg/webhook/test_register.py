"""The webhooks of one process: its Service and its metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.webhook.admission import ALLOW, Decision, deny
from kubeloop.webhook.registration import Endpoint
from kubeloop.webhook.serving_certificate import server_context
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.webhook.metrics import HeadroomMetrics
from pkg.webhook.register import Webhooks
from tests.kinds import Server


async def test_the_service_is_in_our_own_namespace() -> None:
    server, endpoint = Server(), Endpoint(service_name="headroom-webhook")
    webhooks = Webhooks(Settings(namespace="own", register=False), endpoint, server_context())
    served: Any = await webhooks.server(server.client(), Management(server.client()))
    assert served._certificate.hosts[0] == "headroom-webhook.own.svc"


@pytest.mark.parametrize(
    ("decision", "counted"),
    [
        (ALLOW, [1, 0, 0, 0]),
        (Decision(patch=[{"op": "remove", "path": "/spec"}]), [0, 1, 0, 0]),
        (deny("no", reason="no-room"), [0, 0, 1, 1]),
    ],
    ids=["allowed", "patched", "denied"],
)
def test_a_decision_is_counted_by_what_became_of_the_request(decision: Decision, counted: list[int]) -> None:
    metrics = HeadroomMetrics()

    def counts() -> list[float]:
        name, answers = "headroom_admission_decisions_total", ("allowed", "patched", "denied")
        values = [REGISTRY.get_sample_value(name, {"webhook": "pods", "decision": answer}) for answer in answers]
        denials = {"webhook": "pods", "reason": "no-room"}
        return [
            value or 0.0 for value in (*values, REGISTRY.get_sample_value("headroom_admission_denials_total", denials))
        ]

    counts_before = counts()
    metrics.decided("pods", decision)
    assert [now - was for now, was in zip(counts(), counts_before, strict=True)] == counted
