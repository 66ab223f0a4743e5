"""The table of metrics and what is exported are the same."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from prometheus_client import REGISTRY, Metric

import pkg
from kubeloop.metrics import FRAMEWORK, LateGauge
from kubeloop.webhook.admission import ALLOW, Decision, deny
from kubeloop.webhook.metrics import UNKNOWN_PATH
from pkg.config.metrics import METRICS
from pkg.report.state_metrics import StateMetrics
from pkg.util.resourcequota.observe import Listed, Source
from pkg.webhook.configurations import NAMES
from pkg.webhook.metrics import HeadroomMetrics


def scraped() -> Iterator[Metric]:
    """What this process exports with everything in it, and every gauge set."""
    for module in pkgutil.walk_packages(pkg.__path__, "pkg."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, LateGauge):
                value.set(0)
    yield from REGISTRY.collect()
    yield from StateMetrics(Source(), Listed()).collect()


def test_every_row_is_exported_and_every_metric_of_ours_has_a_row() -> None:
    found = {f"{each.name}_total" if each.type == "counter" else each.name: each for each in scraped()}
    rows = {**FRAMEWORK, **METRICS}
    assert {name for name in found if not name.startswith(("process_", "python_"))} == rows.keys()
    for name, row in rows.items():
        assert (found[name].type, found[name].documentation) == (row.kind, row.help), name


def test_labels_name_webhooks_as_flags_do() -> None:
    from pkg.config.settings import WEBHOOKS

    named = set(NAMES.values())
    assert named == {*WEBHOOKS, "locks", "probe"}
    assert named | {UNKNOWN_PATH} == {
        each.strip(" `") for each in METRICS["headroom_admission_denials_total"].labels["webhook"].split(",")
    }


def test_decisions_are_counted_by_what_was_answered() -> None:
    def counted(name: str, **labels: str) -> float:
        found = REGISTRY.get_sample_value(f"headroom_admission_{name}_total", {"webhook": "locks", **labels})
        assert found is not None
        return found

    metrics = HeadroomMetrics()
    decisions = ("allowed", "patched", "denied")
    before = [counted("decisions", decision=each) for each in decisions]  # as dashboards expect
    for decision in (ALLOW, Decision(patch=[{"op": "remove", "path": "/x"}]), deny("no"), ALLOW):
        metrics.decided(metrics.name("/lock"), decision)
    after = [counted("decisions", decision=each) for each in decisions]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 1]
    assert counted("denials", reason="invalid")


def test_what_a_listener_tells_is_exported() -> None:
    metrics = HeadroomMetrics()
    metrics.connections(3)
    metrics.certificate(1_800_000_000.0)
    before = REGISTRY.get_sample_value("headroom_webhook_connections_closed_total", {"reason": "head"}) or 0.0
    metrics.closed("head")
    assert REGISTRY.get_sample_value("headroom_webhook_connections_closed_total", {"reason": "head"}) == before + 1
    assert REGISTRY.get_sample_value("headroom_webhook_connections") == 3
    assert REGISTRY.get_sample_value("headroom_webhook_certificate_expiry_seconds") == 1_800_000_000.0
