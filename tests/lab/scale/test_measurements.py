"""The figures follow from the versions that the watches showed, and from nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Event, Pod, ResourceQuota
from lab.scale.measurements import Measurements, percentile
from pkg.api.kubevirt import VirtualMachineInstanceMigration

BASE = {"limits.cpu": "2", "limits.memory": "2Gi"}
RAISED = {"limits.cpu": "3", "limits.memory": "3Gi"}
GIB = 1024.0**3
ENTRY = {"harvesterhci.io/migrating-vm1": '{"limits.cpu":"1","limits.memory":"1Gi"}'}


def quota(hard: dict[str, str], annotations: dict[str, str] | None = None, **status: Any) -> ResourceQuota:
    body = {
        "metadata": {"name": "default", "namespace": "ns", "annotations": annotations or {}},
        "spec": {"hard": hard},
        "status": status,
    }
    return msgspec.convert(body, ResourceQuota)


def migration(phase: str, *, refused: bool = False, name: str = "m1") -> VirtualMachineInstanceMigration:
    conditions = [{"type": "migrationRejectedByResourceQuota", "status": "True"}] if refused else []
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "spec": {"vmiName": "vm1"},
        "status": {"phase": phase, "conditions": conditions},
    }
    return msgspec.convert(body, VirtualMachineInstanceMigration)


def pod(name: str, *, phase: str = "Running", job: str = "") -> Pod:
    body = {
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubevirt.io/migrationJobUID": job}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


def refusal(limited: str, *, count: int = 1, name: str = "e1") -> Event:
    message = f"exceeded quota: default, requested: limits.cpu=1, used: limits.cpu=2, limited: {limited}"
    body = {
        "metadata": {"name": name, "namespace": "ns"},
        "involvedObject": {"kind": "VirtualMachineInstance", "name": "vm1", "namespace": "ns"},
        "message": message,
        "count": count,
    }
    return msgspec.convert(body, Event)


@pytest.fixture
def found() -> Measurements:
    """Two source pods that fill the quota to the brim; counting from second 0."""
    made = Measurements()
    for name in ("a", "b"):
        made.see_pod(-1, pod(name))
    made.see_quota(-1, quota(BASE))
    made.begin(0, {"ns": (2.0, 2 * GIB)})
    return made


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


def test_a_migration_waits_from_its_refusal_to_its_target_pod(found: Measurements) -> None:
    found.see_migration(1, migration(""))
    found.see_migration(2, migration("Pending", refused=True))
    found.see_migration(3, migration("Pending", refused=True))
    found.see_pod(4.5, pod("target", job="uid-m1"))
    found.see_migration(6, migration("Succeeded"))
    track = found.migrations["ns/m1"]
    assert (track.created, track.pending_by_quota, track.ended) == (1, 2.5, 6)


def test_a_migration_that_quota_let_in_at_once_has_waited_for_nothing(found: Measurements) -> None:
    found.see_migration(1, migration("Pending"))
    found.see_pod(2, pod("target", job="uid-m1"))
    assert found.migrations["ns/m1"].pending_by_quota == 0


def test_overshoot_is_what_was_allowed_beyond_what_pods_took(found: Measurements) -> None:
    """Raised at 10, taken at 12, left at 20, restored at 23: two and three seconds of one core and 1 GiB."""
    found.see_quota(10, quota(RAISED, ENTRY))
    found.see_pod(12, pod("target", job="uid-m1"))
    found.see_pod(20, pod("a", phase="Succeeded"))
    found.see_quota(23, quota(BASE))
    found.end(30)
    assert found.rooms["ns"].over == (5.0, 5 * GIB)


def test_pods_below_the_base_are_no_overshoot(found: Measurements) -> None:
    found.lose_pod(1, pod("a"))
    found.end(10)
    assert found.rooms["ns"].over == (0.0, 0.0)


def test_a_write_is_a_change_of_what_people_write(found: Measurements) -> None:
    found.see_quota(1, quota(BASE, used={"limits.cpu": "1"}))
    assert found.quota_writes == 0
    found.see_quota(2, quota(BASE, ENTRY))
    found.see_quota(3, quota(RAISED, ENTRY))
    found.see_quota(4, quota(RAISED, ENTRY, used={"limits.cpu": "3"}))
    assert found.quota_writes == 2


@pytest.mark.parametrize(
    ("versions", "limited", "after"),
    [
        pytest.param([quota(BASE)], "limits.cpu=2", 0, id="the base"),
        pytest.param([quota(RAISED, ENTRY)], "limits.cpu=2", 0, id="admission still went by the base"),
        pytest.param([quota(RAISED, ENTRY)], "limits.cpu=3", 1, id="admission went by the raised limit"),
        pytest.param(
            [quota(RAISED, ENTRY)], "limits.cpu=3,limits.memory=3Gi", 1, id="several resources named"
        ),
        pytest.param(
            [quota(RAISED, {"harvesterhci.io/migrating-vm2": "{}"})],
            "limits.cpu=3",
            0,
            id="raised for another VM",
        ),
        pytest.param([quota(RAISED)], "limits.cpu=3", 1, id="raised without entries"),
        pytest.param([quota(RAISED)], "limits.cpu=2", 0, id="raised without entries, not yet enforced"),
    ],
)
def test_a_refusal_counts_by_the_limit_that_admission_went_by(
    found: Measurements, versions: list[ResourceQuota], limited: str, after: int
) -> None:
    found.see_migration(1, migration("Pending", refused=True))
    for version in versions:
        found.see_quota(2, version)
    found.see_event(3, refusal(limited))
    assert sum(each.count for each in found.refusals) == 1
    assert found.refused_after_raise() == after


def test_an_event_that_is_counted_up_adds_what_it_counts_up(found: Measurements) -> None:
    """And one of before the migration is about the VM's own pod."""
    found.see_event(1, refusal("limits.cpu=2", name="e0"))
    found.see_migration(1, migration("Pending"))
    found.see_event(1, refusal("limits.cpu=2"))
    found.see_event(2, refusal("limits.cpu=2", count=3))
    found.see_event(3, refusal("limits.cpu=2", name="e2"))
    assert [each.count for each in found.refusals] == [1, 2, 1]


def test_it_is_over_when_all_have_ended_and_the_quota_is_back(found: Measurements) -> None:
    found.see_migration(1, migration("Pending"))
    found.see_quota(2, quota(RAISED, ENTRY))
    assert not found.settled()
    found.see_migration(3, migration("Succeeded"))
    assert not found.settled()
    found.see_quota(4, quota(BASE))
    assert found.settled()


def test_what_pods_take_follows_them(found: Measurements) -> None:
    assert found.taken() == {"ns": (2.0, 2 * GIB)}
    found.lose_pod(1, pod("b"))
    found.lose_pod(1, pod("b"))
    assert found.taken() == {"ns": (1.0, GIB)}
