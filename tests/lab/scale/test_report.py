"""report.json has the documented keys; the page loads nothing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.headroom import added, requests_of_client, requests_of_server
from lab.scale import report as reports
from lab.scale.measurements import Measurements
from lab.scale.plan import SIZES, Plan, Settings
from lab.scale.report import Costs, Moment
from tests.lab.builder import BASE, RAISED, RecordBuilder

DOCS = Path(__file__).parents[3] / "docs" / "scale.md"
OWN: dict[str, float | None] = {
    "cpu_seconds": 1.5,
    "rss_peak_bytes": 10**8,
    "ready_seconds": 1.0,
    "idle_cpu_percent": 0.1,
}
SERVER = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="resourcequotas",subresource="",verb="PATCH"} 4
apiserver_request_total{code="409",resource="resourcequotas",subresource="",verb="PATCH"} 1
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 2
apiserver_request_total{code="200",resource="",subresource="",verb="GET"} 9
apiserver_request_total_other{code="200",resource="pods",verb="GET"} 9
"""


def measured() -> Measurements:
    """Two migrations, of which one succeeds, and three writes of a quota."""
    found, builder = Measurements(), RecordBuilder()
    found.records["ns"] = builder.record
    builder.quota(0, BASE)
    found.begin(0)
    for name in ("a", "b"):
        builder.migration(10, "", name=name, vm=name)
    builder.migration(11, "Pending", name="a", vm="a", refused=True)
    builder.pod(11.5, "target", "Pending", vm="a", of="a")
    for at, hard in ((12, RAISED), (13, BASE), (14, RAISED)):
        builder.quota(at, hard)
    builder.migration(30, "Failed", name="b", vm="b")
    builder.migration(40, "Succeeded", name="a", vm="a")
    found.end(41)
    return found


def built(costs: Costs | None = None) -> dict[str, object]:
    settings = Settings()
    return reports.build(settings, measured(), costs or Costs(), wall=31.0, restored=True)


def test_the_figures() -> None:
    served = {"PATCH pods": 20.0, "PUT resourcequotas/status": 4.0, "LIST pods": 9.0}
    costs = Costs(OWN, requests={"PATCH": 8.0}, api_requests=served)
    report = built(costs)
    assert report["migrations"] == 2
    assert report["succeeded"] == 1
    assert report["failed"] == 1
    assert report["pending_quota_seconds"] == {"p50": 0.0, "p99": 0.5, "max": 0.5}
    assert report["quota_writes_per_migration"] == 1.5
    assert report["requests_per_migration"] == {"PATCH": 4.0}
    assert report["migrations_per_minute"] == 2.0
    assert report["api_server"] == {
        "cpu_seconds": 0.0,
        "rss_peak_bytes": 0,
        "writes_per_migration": 12.0,
        "writes_per_second": 0.77,
    }
    assert report["headroom"] == OWN


def test_every_key_is_documented() -> None:
    text = DOCS.read_text("utf-8")
    for key, value in built().items():
        assert f"`{key}`" in text, key
        if isinstance(value, dict):
            assert all(f"`{name}`" in text for name in value), key


def test_another_controllers_costs_are_not_known() -> None:
    report = built()
    assert report["headroom"] == dict.fromkeys(("cpu_seconds", "rss_peak_bytes", "ready_seconds", "idle_cpu_percent"))
    assert report["requests_per_migration"] is None
    assert reports.rows(report)


@pytest.mark.parametrize("moments", [[], [Moment(5.0, 0, 1, (1.0, 1.0), (0.0, 0.0), 0.1, 10**8)] * 3])
def test_the_page_is_one_file_that_loads_nothing(moments: list[Moment]) -> None:
    page, unmeasured = (reports.page(built(costs), moments, [0.0, 0.5]) for costs in (Costs(OWN), Costs()))
    assert not re.search(r"(?:src|href)=|url\((?!#)|@import", page)
    (drawing,) = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    ElementTree.fromstring(drawing)
    assert (page.count("up&#160;to"), unmeasured.count("up&#160;to")) == (6, 4), "headroom was not measured"


def test_counters_are_added_up_by_verb_and_resource() -> None:
    before = requests_of_server(SERVER)
    assert before == {"PATCH resourcequotas": 5.0, "PATCH pods/status": 2.0}
    after = {"PATCH resourcequotas": 9.0, "PATCH pods/status": 2.0, "GET nodes": 1.0}
    assert added(before, after) == {"PATCH resourcequotas": 4.0, "GET nodes": 1.0}


def test_requests_of_headroom_are_counted_by_method() -> None:
    text = 'rest_client_requests_total{code="200",host="h",method="PATCH"} 3.0\n'
    text += 'rest_client_requests_total{code="409",host="h",method="PATCH"} 1.0\n'
    assert requests_of_client(text) == {"PATCH": 4.0}


def test_the_same_seed_gives_the_same_vms() -> None:
    first, again = (Plan(Settings(vms=40, namespaces=3, seed=7), "run") for _ in range(2))
    other = Plan(Settings(vms=40, namespaces=3, seed=8), "run")
    assert first.machines() == again.machines() != other.machines()
    sizes = {str(body["spec"]["template"]["spec"]["domain"]["cpu"]["cores"]) for body in first.machines()}
    assert len(sizes) > 2
    assert sizes <= {str(cores) for cores, _ in SIZES}
    assert {body["metadata"]["namespace"] for body in first.machines()} == set(first.namespaces)
