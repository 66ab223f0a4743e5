"""Which change of one object has which others handled, and in which namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.client.errors import Forbidden
from lab.kubevirt.creation import Refusals
from lab.kubevirt.options import Options
from lab.kubevirt.register import (
    OperatorHandler,
    active_migrations,
    instances_of,
    migrations_of,
    own_key,
    refused_by,
    within,
)
from pkg.api.kubevirt import KUBEVIRTS, KubeVirt
from tests.kinds import Kind
from tests.lab.kubevirt.fakes import Cluster
from tests.lab.kubevirt.samples import (
    NOW,
    attachment,
    launcher,
    made,
    running,
    vm,
    vmim,
)


class Gate:
    """Counts."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


async def change(kubevirt: KubeVirt | None, *, known: bool = True) -> tuple[Kind[KubeVirt], Gate]:
    kind, gate = Kind(KUBEVIRTS), Gate()
    waker: Any = gate
    if kubevirt is not None and known:
        kind.seed(kubevirt)
        kubevirt = kind.cached("t1/kubevirt")
    await OperatorHandler(kind.client, waker, Options()).on_kubevirt_changed("t1/kubevirt", kubevirt)
    return kind, gate


def kubevirt(phase: str | None = None, **meta: Any) -> KubeVirt:
    status = {"phase": phase} if phase else {}
    return made(KubeVirt, "kubevirt", status=status, **meta)


async def test_a_new_kubevirt_is_deployed() -> None:
    kind, gate = await change(kubevirt())
    assert kind.objects["t1/kubevirt"]["status"] == {"phase": "Deployed", "observedKubeVirtVersion": "v1.8.0"}
    assert kind.verbs == [("patch", "kubevirt", "status")]
    assert gate.woken == 1


LEFT_ALONE = {
    "one that is Deployed": kubevirt("Deployed"),
    "one whose phase is set already": kubevirt("Deploying"),
    "one that is being deleted": kubevirt(deletionTimestamp=NOW),
}


@pytest.mark.parametrize("found", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
async def test_left_alone(found: KubeVirt) -> None:
    kind, gate = await change(found)
    assert kind.verbs == []
    assert gate.woken == 1


async def test_a_kubevirt_that_goes_may_change_the_limits() -> None:
    _, gate = await change(None)
    assert gate.woken == 1


async def test_a_kubevirt_that_goes_meanwhile_is_no_failure() -> None:
    kind, _ = await change(kubevirt(), known=False)
    assert kind.objects == {}


QUOTA = made(ResourceQuota, "q")
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


def test_a_vm_and_its_vmi_have_one_key() -> None:
    assert own_key(vm()) == own_key(running()) == ["t1/vm1"]


def refused(*keys: str) -> Refusals:
    refusals = Refusals()
    for key in keys:
        refusals.refused(key, Forbidden("exceeded quota", status=403), generation=0, now=0.0)
    return refusals


def test_a_quota_concerns_what_was_refused_in_its_namespace() -> None:
    refusals = refused("t1/m1", "t2/m1")
    assert refused_by(refusals, lag=Cluster().lag)(QUOTA) == ["t1/m1"]
    assert refusals.wait("t1/m1", 0.0) == 0.0


def test_but_not_who_waits_for_a_place_first() -> None:
    refusals = refused("t1/m1", "t1/m2")
    assert refused_by(refusals, {"t1/m2"}.__contains__, lag=Cluster().lag)(QUOTA) == ["t1/m1"]
    assert refusals.wait("t1/m2", 0.0) == 0.0


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
