"""The objects that a run removes from a cluster, those that it never touches, and the clusters that it refuses."""

import contextlib
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.errors import ServerError
from kubeloop.testing.fake.server import FakeCluster
from lab.kubevirt.options import SCALE_NAMESPACES
from lab.scale.plan import LABEL_RUN, Plan, Settings
from lab.scale.removal import Removal
from lab.scale.workload import Workload, WrongCluster
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINES
from pkg.selfcheck.api_server import PROBE_CONFIGURATION
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME

VALIDATING, MUTATING = registry.VALIDATING_WEBHOOK_CONFIGURATIONS, registry.MUTATING_WEBHOOK_CONFIGURATIONS
CRDS = registry.CUSTOM_RESOURCE_DEFINITIONS
RUN = "headroom-scale-abc123"


def of_run(run: str) -> dict[str, str]:
    return {LABEL_RUN: run}


def put(cluster: FakeCluster, resource: Resource[Any], name: str, **fields: Any) -> None:
    metadata = {"name": name, **fields.pop("metadata", {})}
    cluster.put(resource, {"metadata": metadata, **fields})


def registered(cluster: FakeCluster, namespace: str) -> None:
    """headroom, installed in a namespace."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for resource in (VALIDATING, MUTATING):
        put(cluster, resource, WEBHOOK_CONFIGURATION_NAME, webhooks=[])
    put(cluster, MUTATING, PROBE_CONFIGURATION, webhooks=[{"name": "probe", "namespaceSelector": selector}])


def names_on(cluster: FakeCluster, *resources: Resource[Any]) -> set[str]:
    return {obj["metadata"]["name"] for resource in resources for obj in cluster.raw(resource).values()}


@pytest.fixture
def cluster() -> FakeCluster:
    """Two runs' leftovers beside what is the cluster's own."""
    fake = FakeCluster()
    for run in (f"{SCALE_NAMESPACES}aaa", f"{SCALE_NAMESPACES}bbb"):
        put(fake, registry.NAMESPACES, f"{run}-001", metadata={"labels": of_run(run)})
        put(fake, registry.NODES, f"{run}-node-001", metadata={"labels": of_run(run)})
        put(fake, VALIDATING, f"lock.{run}-001.com", webhooks=[])
    put(fake, CRDS, "kubevirts.kubevirt.io", metadata={"labels": of_run(f"{SCALE_NAMESPACES}aaa")})
    put(fake, CRDS, "virtualmachines.kubevirt.io", metadata={"labels": of_run(f"{SCALE_NAMESPACES}aaa")})
    put(fake, registry.NAMESPACES, "tenant")
    put(fake, registry.NODES, "metal")
    put(fake, VALIDATING, "lock.tenant.com", webhooks=[])
    put(fake, CRDS, "others.example.org")
    return fake


KINDS = (registry.NAMESPACES, registry.NODES, VALIDATING, MUTATING, CRDS)


async def test_one_run_is_removed_and_nothing_else(cluster: FakeCluster) -> None:
    run = f"{SCALE_NAMESPACES}aaa"
    registered(cluster, f"{run}-system")
    await Removal(cluster.client(), run).remove(lambda *_: None)
    peer = f"{SCALE_NAMESPACES}bbb"
    foreign = {"tenant", "metal", "lock.tenant.com", "others.example.org"}
    assert names_on(cluster, *KINDS) == foreign | {f"{peer}-001", f"{peer}-node-001", f"lock.{peer}-001.com"}


async def test_every_run_is_removed_and_nothing_else(cluster: FakeCluster) -> None:
    registered(cluster, f"{SCALE_NAMESPACES}ccc-system")
    await Removal(cluster.client()).remove(lambda *_: None)
    assert names_on(cluster, *KINDS) == {"tenant", "metal", "lock.tenant.com", "others.example.org"}


async def test_a_definition_that_is_used_by_now_stays(cluster: FakeCluster) -> None:
    """KubeVirt was installed since the run was killed."""
    put(cluster, VIRTUAL_MACHINES, "web", metadata={"namespace": "tenant"})
    await Removal(cluster.client()).remove(lambda *_: None)
    assert "virtualmachines.kubevirt.io" in names_on(cluster, CRDS)
    assert "kubevirts.kubevirt.io" not in names_on(cluster, CRDS)


@pytest.mark.parametrize("is_readable", [True, False], ids=["another's", "nobody knows whose"])
async def test_a_registration_that_is_not_a_runs_stays(cluster: FakeCluster, is_readable: bool) -> None:
    registered(cluster, "headroom-system")

    def fail(request: Any) -> None:
        if not is_readable and request.verb == "get" and request.plural == MUTATING.plural:
            raise ServerError("etcd leader changed", status=500)

    cluster.reactors.append(fail)
    with contextlib.nullcontext() if is_readable else pytest.raises(ServerError):
        await Removal(cluster.client()).remove(lambda *_: None)
    assert {WEBHOOK_CONFIGURATION_NAME, PROBE_CONFIGURATION} <= names_on(cluster, VALIDATING, MUTATING)


def workload(cluster: FakeCluster, *, external: bool = False) -> Workload:
    return Workload(cluster.client(), Plan(Settings(external=external), RUN))


async def test_pods_are_the_virt_controller_s_and_refusals_are_quoted() -> None:
    cluster = FakeCluster()
    assert await workload(cluster).virt_controller() == f"system:serviceaccount:{RUN}-system:kubevirt-controller"
    put(cluster, KUBEVIRTS, "kubevirt", metadata={"namespace": "harvester-system"})
    account = "system:serviceaccount:harvester-system:kubevirt-controller"
    assert await workload(cluster).virt_controller() == account
    assert await workload(cluster).refusal() == ""
    for namespace, message in ((f"{RUN}-001", "denied by a policy"), ("another", "another refusal")):
        event = {"reason": "FailedCreate", "message": message, "lastTimestamp": "2026-01-01T00:00:00Z"}
        put(cluster, registry.EVENTS, "e", metadata={"namespace": namespace}, **event)
    assert await workload(cluster).refusal() == "denied by a policy"


@pytest.mark.parametrize(
    ("is_registered", "held_ago", "refused"),
    [
        pytest.param(True, 60.0, r"ValidatingWebhookConfiguration headroom\.harv.*--external", id="webhooks"),
        pytest.param(False, 1.0, "Lease headroom-system/headroom", id="a lease that is held"),
        pytest.param(False, 60.0, "", id="a lease that was held"),
    ],
)
async def test_beside_another_headroom_only_that_one_is_measured(
    is_registered: bool, held_ago: float, refused: str
) -> None:
    cluster = FakeCluster()
    if is_registered:
        registered(cluster, "headroom-system")
    renewed = datetime.fromtimestamp(time.time() - held_ago, UTC).isoformat()
    spec = {"holderIdentity": "pod-0", "leaseDurationSeconds": 15, "renewTime": renewed}
    put(cluster, registry.LEASES, "headroom", metadata={"namespace": "headroom-system"}, spec=spec)
    with pytest.raises(WrongCluster, match=refused) if refused else contextlib.nullcontext():
        await workload(cluster).refuse_beside_another()
    await workload(cluster, external=True).refuse_beside_another()
