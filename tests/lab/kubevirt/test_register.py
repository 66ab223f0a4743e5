"""Which change of one object has which others handled, and in which namespaces."""

from __future__ import annotations

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object
from lab.kubevirt.register import (
    active_migrations,
    instances_of,
    migrations_of,
    within,
)
from tests.lab.kubevirt.fakes import Cluster
from tests.lab.kubevirt.samples import (
    attachment,
    launcher,
    made,
    running,
    vmim,
)

PLAIN = made(Pod, "web")


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.pods.seed(launcher(), launcher("target", job="m1"))
    cluster.migrations.seed(
        vmim("m1", phase="Scheduling"), vmim("m2", phase="Pending"), vmim("m0", phase="Succeeded"),
        vmim("other", phase="Pending", vmi_name="vm2"),
    )  # fmt: skip
    return cluster


INSTANCES = {
    "a launcher's VMI": (launcher(), ["t1/vm1"]),
    "the VMI of the launcher that an attachment pod belongs to": (attachment(), ["t1/vm1"]),
    "none of an attachment pod whose launcher is gone": (attachment("gone"), []),
    "none of a foreign pod": (PLAIN, []),
}


@pytest.mark.parametrize(("pod", "keys"), INSTANCES.values(), ids=INSTANCES.keys())
def test_instances_of(cluster: Cluster, pod: Pod, keys: list[str]) -> None:
    assert instances_of(cluster.found_pods)(pod) == keys


MIGRATIONS = {
    "those that wait for a source to end": (launcher(), {"t1/m1", "t1/m2"}),
    "a target's own and those that wait for it": (launcher("target", job="m1"), {"t1/m1", "t1/m2"}),
    "an attachment pod's own": (
        attachment("target", annotations={"kubevirt.io/migrationJobName": "m1"}),
        {"t1/m1"},
    ),
    "none of a foreign pod": (PLAIN, set()),
}


@pytest.mark.parametrize(("pod", "keys"), MIGRATIONS.values(), ids=MIGRATIONS.keys())
def test_migrations_of(cluster: Cluster, pod: Pod, keys: set[str]) -> None:
    assert set(migrations_of(cluster.found_pods, cluster.found_migrations)(pod)) == keys


def test_a_vmi_concerns_its_migrations_that_have_not_ended(cluster: Cluster) -> None:
    assert set(active_migrations(cluster.found_migrations)(running())) == {"t1/m1", "t1/m2"}


SCALE = "headroom-scale-0123ab-001/vm"


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("", ["tenant/vm", "headroom-scaled/vm"]),
        ("headroom-scale-0123ab-", [SCALE]),
    ],
    ids=["all but those of scale runs", "those of one run alone"],
)
async def test_one_stand_in_leaves_the_other_its_namespaces(prefix: str, told: list[str]) -> None:
    seen: list[str] = []

    async def handle(key: str, obj: Object | None) -> None:
        seen.append(key)

    handler = within(prefix, handle)
    for key in ("tenant/vm", SCALE, "headroom-scaled/vm", "headroom-scale-4567cd-001/vm"):
        await handler(key, None)
    assert seen == told
