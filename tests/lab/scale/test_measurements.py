"""The figures follow from what the records of the namespaces say, and from nothing else."""

from __future__ import annotations

import pytest

from lab.scale.measurements import Measurements, percentile
from tests.lab.builder import ENTRY, NAMESPACE, RecordBuilder

GIB = 1024.0**3
FULL, RAISED, POD = ("2", "2Gi"), ("3", "3Gi"), ("1", "1Gi")


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


def measured() -> tuple[Measurements, RecordBuilder]:
    """Two pods that fill the quota to the brim; counting from second 1, one migration that is refused."""
    found, builder = Measurements(), RecordBuilder()
    found.records[NAMESPACE] = builder.record
    builder.pod(0, "a", "Running", takes=POD)
    builder.pod(0, "b", "Running", takes=POD)
    builder.quota(0, FULL)
    found.begin(1)
    builder.migration(1, "")
    builder.migration(2, "Pending", refused=True)
    builder.event(2, "exceeded quota: default-abc, limited: limits.cpu=2", name="e", count=2)
    return found, builder


def test_a_run() -> None:
    found, builder = measured()
    assert (found.pending(), found.settled()) == (1, False)
    builder.quota(3, RAISED, POD, ENTRY)
    assert found.totals() == ((3.0, 3 * GIB), (2.0, 2 * GIB))
    builder.pod(4.5, "target", "Pending", of="m1", takes=POD)
    builder.event(5, "exceeded quota: default-abc, limited: limits.cpu=3", name="e", count=3)
    builder.migration(6, "Succeeded")
    assert (found.pending(), found.settled()) == (0, False), "the quota is still raised"
    builder.pod(6, "a", "Succeeded", takes=POD)
    builder.quota(7, FULL)
    assert found.settled()
    found.end(9)
    builder.quota(10, RAISED)
    assert found.waits() == [2.5]
    assert found.quota_writes() == 2
    assert found.refusals() == (3, 1)
    assert found.overshoot() == (2.5, 2.5 * GIB)


def test_vms_run_where_their_instances_say() -> None:
    found, builder = measured()
    builder.instance("vm1", phase="Running", nodeName="n1")
    builder.instance("vm2", phase="Scheduled", nodeName="n1")
    builder.instance("vm3", phase="Running")
    assert found.nodes() == {f"{NAMESPACE}/vm1": "n1"}
