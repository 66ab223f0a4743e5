"""The figures of a run follow from the records of its namespaces; report.json has the documented keys; the page loads
nothing."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.headroom import growth, requests_of_client, requests_of_server
from lab.scale import report as reports
from lab.scale.measurements import Measurements, percentile
from lab.scale.plan import SIZES, Plan, Settings
from lab.scale.report import GIB, Costs, Moment
from tests.lab.builder import NAMESPACE, RecordBuilder

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


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([], 0.5, 0.0, id="none"),
        pytest.param([4.0, 1.0], 0.5, 1.0, id="the lower of two"),
        pytest.param([float(n) for n in range(1, 101)], 0.99, 99.0, id="nearest rank"),
        pytest.param([1.0, 2.0, 3.0], 1.0, 3.0, id="all"),
    ],
)
def test_percentiles(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


FULL, RAISED, POD = ("2", "2Gi"), ("3", "3Gi"), ("1", "1Gi")


def start_measurements() -> tuple[Measurements, RecordBuilder]:
    """Two pods that fill the quota to the brim; counting from second 1, two migrations, of which one is refused."""
    measurements, builder = Measurements(), RecordBuilder()
    measurements.records[NAMESPACE] = builder.record
    builder.pod(0, "a", "Running", takes=POD)
    builder.pod(0, "b", "Running", takes=POD)
    builder.quota(0, FULL)
    measurements.begin(1)
    for name in ("m1", "m2"):
        builder.migration(1, "", name=name, vm=name)
    builder.migration(2, "Pending", vm="m1", refused=True)
    builder.event(2, "exceeded quota: default-abc, limited: limits.cpu=2", vmi="m1", name="e", count=2)
    return measurements, builder


def measured() -> Measurements:
    """The same, and the quota raised at 3, taken at 4.5, refused once more, and restored at 7."""
    measurements, builder = start_measurements()
    assert (measurements.pending_count(), measurements.is_settled()) == (1, False)
    builder.quota(3, RAISED, POD, "harvesterhci.io/migrating-m1")
    assert measurements.memory() == (3 * GIB, 2 * GIB)
    builder.pod(4.5, "target", "Pending", vm="m1", job="m1", takes=POD)
    builder.event(5, "exceeded quota: default-abc, limited: limits.cpu=3", vmi="m1", name="e", count=3)
    builder.migration(5, "Failed", name="m2", vm="m2")
    builder.migration(6, "Succeeded", vm="m1")
    assert (measurements.pending_count(), measurements.is_settled()) == (0, False), "the quota is still raised"
    builder.pod(6, "a", "Succeeded", takes=POD)
    builder.quota(7, FULL)
    assert measurements.is_settled()
    measurements.end(9)
    builder.quota(10, RAISED)
    return measurements


def built(costs: Costs | None = None) -> dict[str, object]:
    return reports.build(Settings(), measured(), costs or Costs(), wall=31.0, restored=True)


def test_the_figures() -> None:
    served = {"PATCH pods": 20.0, "PUT resourcequotas/status": 4.0, "LIST pods": 9.0}
    report = built(Costs(OWN, requests={"PATCH": 8.0}, api_requests=served))
    api = {"cpu_seconds": 0.0, "rss_peak_bytes": 0, "writes_per_migration": 12.0, "writes_per_second": 0.77}
    expected = {
        "migrations": 2,
        "succeeded": 1,
        "failed": 1,
        "refused_before_raise": 2,
        "refused_after_raise": 1,
        "pending_quota_seconds": {"p50": 0.0, "p99": 2.5, "max": 2.5},
        "migrations_per_minute": 12.0,
        "quota_writes": 2,
        "quota_writes_per_migration": 1.0,
        "requests_per_migration": {"PATCH": 4.0},
        "overshoot": {"cpu_core_seconds": 2.5, "memory_gib_seconds": 2.5},
        "headroom": OWN,
        "api_server": api,
    }
    assert {name: report[name] for name in expected} == expected


def test_vms_run_where_their_instances_say() -> None:
    measurements, builder = start_measurements()
    builder.instance("vm1", phase="Running", nodeName="n1")
    builder.instance("vm2", phase="Scheduled", nodeName="n1")
    builder.instance("vm3", phase="Running")
    assert measurements.nodes() == {f"{NAMESPACE}/vm1": "n1"}


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


@pytest.mark.parametrize("moments", [[], [Moment(5.0, 0, 1, 1, 0, 0.1, 10**8)] * 3])
def test_the_page_is_one_file_that_loads_nothing(moments: list[Moment]) -> None:
    page, unmeasured = (reports.page(built(costs), moments, [0.0, 0.5]) for costs in (Costs(OWN), Costs()))
    assert not re.search(r"(?:src|href)=|url\((?!#)|@import", page)
    (drawing,) = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    ElementTree.fromstring(drawing)
    assert (page.count("┤"), unmeasured.count("┤")) == (60, 40), "headroom was not measured"


def test_counters_are_added_up_by_verb_and_resource() -> None:
    start = requests_of_server(SERVER)
    assert start == {"PATCH resourcequotas": 5.0, "PATCH pods/status": 2.0}
    end = {"PATCH resourcequotas": 9.0, "PATCH pods/status": 2.0, "GET nodes": 1.0}
    assert growth(start, end) == {"PATCH resourcequotas": 4.0, "GET nodes": 1.0}


def test_requests_of_headroom_are_counted_by_method() -> None:
    text = 'rest_client_requests_total{code="200",host="h",method="PATCH"} 3.0\n'
    text += 'rest_client_requests_total{code="409",host="h",method="PATCH"} 1.0\n'
    assert requests_of_client(text) == {"PATCH": 4.0}


def test_the_same_seed_gives_the_same_vms() -> None:
    plan, same_plan = (Plan(Settings(vms=40, namespaces=3, seed=7), "run") for _ in range(2))
    other_plan = Plan(Settings(vms=40, namespaces=3, seed=8), "run")
    assert plan.vms() == same_plan.vms() != other_plan.vms()
    sizes = {str(body["spec"]["template"]["spec"]["domain"]["cpu"]["cores"]) for body in plan.vms()}
    assert len(sizes) > 2
    assert sizes <= {str(cores) for cores, _ in SIZES}
    assert {body["metadata"]["namespace"] for body in plan.vms()} == set(plan.namespaces)
