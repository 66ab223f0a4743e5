"""Alerts, runbooks and dashboard use metrics, labels and values that exist. `make observability` tries them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import CHART
from kubeloop.metrics import FRAMEWORK, Metric
from pkg.config.metrics import METRICS
from tests.monitoring.queries import ALERTS, queries

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
PROCESS = {
    name: Metric(name, "gauge", "prometheus-client's own")
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes")
}
TABLE = {**METRICS, **FRAMEWORK, **PROCESS}
OF_THE_TARGET = {"job", "pod", "instance", "le"}
"""Labels that Prometheus adds, and the label `le` of a histogram's buckets."""
FUNCTIONS = {"absent", "count", "histogram_quantile", "increase", "max", "min", "rate", "sum", "time", "vector"}
LANGUAGE = FUNCTIONS | {"and", "on", "or", "unless"}


def metric_of(name: str) -> Metric:
    """Returns the metric with this name, or the histogram of a series. Raises KeyError."""
    metric = TABLE.get(name)
    if metric is not None:
        return metric
    histogram = TABLE[re.sub(r"_(bucket|sum|count)$", "", name)]
    assert histogram.kind == "histogram"
    return histogram


def used(query: str) -> Iterator[tuple[str, dict[str, str], set[str]]]:
    """Yields each metric's name in a query, its label matchers, and the labels that the query groups by."""
    without_ranges = re.sub(r"\[[^]]*\]", "", query)
    grouped = {
        label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", without_ranges) for label in labels.split(",")
    }
    without_labels = re.sub(r"\b(?:by|on) \([^)]*\)", "", without_ranges)
    for name, matchers in re.findall(r"\b([a-z]\w+)\b(?:\{([^}]*)\})?", without_labels):
        if name not in LANGUAGE:
            yield name, dict(re.findall(r'(\w+)[!=~]+"([^"]*)"', matchers)), grouped


@pytest.mark.parametrize("query", queries())
def test_every_metric_and_label_exists(query: str) -> None:
    uses = list(used(query))
    assert uses
    for name, matchers, grouped in uses:
        metric = metric_of(name)
        assert matchers.keys() | grouped <= metric.labels.keys() | OF_THE_TARGET, name
        for label, value in matchers.items():
            values = set(re.findall(r"`([^`]+)`", metric.labels.get(label, "")))
            assert label == "job" or not values or set(value.split("|")) & values, f"{name}{{{label}}}"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    alert_rules: list[dict[str, Any]] = group["rules"]
    return alert_rules


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_and_has_a_page(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook_url"] == f"https://headroom.example.org/runbooks/{rule['alert']}.md"
    page = (RUNBOOKS / f"{rule['alert']}.md").read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert headings == [rule["alert"], "Meaning", "Impact", "Diagnosis", "Mitigation"]


def test_no_page_is_about_an_alert_that_is_not_there() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {rule["alert"] for rule in rules()}


def test_the_rules_for_the_operator_are_the_same() -> None:
    folder = CHART.parents[1] / "monitoring"
    shipped = yaml.safe_load((folder / "prometheusrule.yaml").read_text("utf-8"))
    assert shipped["kind"] == "PrometheusRule"
    assert shipped["spec"] == yaml.safe_load(ALERTS.read_text("utf-8"))
    assert yaml.safe_load((folder / "rules.yaml").read_text("utf-8")) == shipped["spec"]


def test_panels_do_not_overlap_and_have_a_title() -> None:
    board = json.loads((CHART.parents[1] / "monitoring" / "dashboard.json").read_text("utf-8"))
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert not covered & cells, panel["title"]
        assert max(x for x, _ in covered) < 24
        cells |= covered
