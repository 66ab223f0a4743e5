"""The table of metrics and what is exported are the same."""

import importlib
import pkgutil
from collections.abc import Iterator

from prometheus_client import REGISTRY, Metric

import pkg
from kubeloop.metrics import FRAMEWORK, LateGauge
from kubeloop.webhook.admission import ALLOW, Decision, deny
from kubeloop.webhook.server import UNKNOWN_PATH
from pkg.config.metrics import METRICS
from pkg.report.state_metrics import StateMetrics
from pkg.util.resourcequota.observe import Listed, Source
from pkg.webhook.configurations import NAMES
from pkg.webhook.register import HeadroomMetrics


def scraped() -> Iterator[Metric]:
    """Returns what this process exports with everything in it, and every gauge set."""
    for module in pkgutil.walk_packages(pkg.__path__, "pkg."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, LateGauge):
                value.set(0)
    yield from REGISTRY.collect()
    yield from StateMetrics(Source(), Listed()).collect()


def test_every_row_is_exported_and_every_metric_has_a_row() -> None:
    families = {f"{family.name}_total" if family.type == "counter" else family.name: family for family in scraped()}
    rows = {**FRAMEWORK, **METRICS}
    assert {name for name in families if not name.startswith(("process_", "python_"))} == rows.keys()
    for name, row in rows.items():
        assert (families[name].type, families[name].documentation) == (row.kind, row.help), name


def test_labels_name_webhooks_as_flags_do() -> None:
    from pkg.config.settings import WEBHOOKS

    webhooks = set(NAMES.values())
    assert webhooks == {*WEBHOOKS, "locks", "probe"}
    assert webhooks | {UNKNOWN_PATH} == {
        label.strip(" `") for label in METRICS["headroom_admission_denials_total"].labels["webhook"].split(",")
    }


def test_decisions_are_counted_by_what_was_answered() -> None:
    def counted(name: str, **labels: str) -> float:
        sample = REGISTRY.get_sample_value(f"headroom_admission_{name}_total", {"webhook": "locks", **labels})
        assert sample is not None
        return sample

    metrics = HeadroomMetrics()
    decisions = ("allowed", "patched", "denied")
    counts_at_start = [counted("decisions", decision=label) for label in decisions]  # as dashboards expect
    for decision in (ALLOW, Decision(patch=[{"op": "remove", "path": "/x"}]), deny("no"), ALLOW):
        metrics.decided(metrics.name("/lock"), decision)
    counts_at_end = [counted("decisions", decision=label) for label in decisions]
    assert [now - earlier for now, earlier in zip(counts_at_end, counts_at_start, strict=True)] == [2, 1, 1]
    assert counted("denials", reason="invalid")


def test_what_a_listener_tells_is_exported() -> None:
    metrics = HeadroomMetrics()
    metrics.connections(3)
    metrics.certificate(1_800_000_000.0)
    count_at_start = REGISTRY.get_sample_value("headroom_webhook_connections_closed_total", {"reason": "head"}) or 0.0
    metrics.closed("head")
    assert (
        REGISTRY.get_sample_value("headroom_webhook_connections_closed_total", {"reason": "head"}) == count_at_start + 1
    )
    assert REGISTRY.get_sample_value("headroom_webhook_connections") == 3
    assert REGISTRY.get_sample_value("headroom_webhook_certificate_expiry_seconds") == 1_800_000_000.0
