"""Every resource that a quota counts of a pod is raised, and only on quotas whose scopes match the pod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kubeloop.testing.polling import eventually
from pkg.util.quantity import Quantity
from tests.e2e.api import Api, ApiFailure, Raw
from tests.e2e.headroom.amounts import Amounts, hards, plus
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.headroom.shapes import SHAPES, Shape
from tests.e2e.tenant import by_value

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
HIGH, LOCAL = "headroom-test-high", "headroom-test-local"
RESOURCES = {
    "requests.cpu": SHAPES["the seed's VM"],
    "requests.memory": SHAPES["the seed's VM"],
    "cpu": SHAPES["the seed's VM"],
    "memory": SHAPES["the seed's VM"],
    "requests.ephemeral-storage": SHAPES["the seed's VM"],
    "pods": SHAPES["the seed's VM"],
    "count/pods": SHAPES["the seed's VM"],
    "requests.devices.kubevirt.io/kvm": SHAPES["the seed's VM"],
    "requests.hugepages-2Mi": SHAPES["huge pages"],
    "requests.nvidia.com/TU104GL": SHAPES["a GPU and a host device"],
    "requests.storage": SHAPES["a persistent TPM"],
    "persistentvolumeclaims": SHAPES["a persistent TPM"],
    "count/persistentvolumeclaims": SHAPES["a persistent TPM"],
    "headroom-test-local.storageclass.storage.k8s.io/requests.storage": SHAPES["a persistent TPM"],
    "headroom-test-local.storageclass.storage.k8s.io/persistentvolumeclaims": SHAPES["a persistent TPM"],
}
"""Resource to a VM that uses it. Harvester raises none of them."""


@pytest.fixture
def local(api: Api) -> Iterator[None]:
    """The cluster's default StorageClass; its volumes are for one node at a time."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    body = {
        "metadata": {"name": LOCAL, "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    api.create(STORAGE_CLASSES, body)
    yield
    api.delete(f"{STORAGE_CLASSES}/{LOCAL}")


@pytest.fixture
def high(api: Api) -> Iterator[str]:
    """A PriorityClass."""
    api.create(PRIORITY_CLASSES, {"metadata": {"name": HIGH}, "value": 1000})
    yield HIGH
    api.delete(f"{PRIORITY_CLASSES}/{HIGH}")


def full(on: Environment, resource: str) -> tuple[QuotaNamespace, Amounts]:
    """A namespace with one VM whose quota on one resource is used up to the last byte."""
    namespace = on.namespace()
    namespace.meter(resource)
    namespace.start("vm1", shape=RESOURCES[resource])
    return namespace, namespace.grant_what_is_used(resource)


@pytest.mark.usefixtures("local")
def test_each_counted_resource_is_refused_for_good_by_harvesters_estimate_and_not_by_ours(
    on: Environment,
) -> None:
    """The same namespaces, the same VMs: only the estimate changes."""
    on.run("--estimate", "harvester")
    filled = dict(zip(RESOURCES, on.together(lambda name: full(on, name), RESOURCES), strict=True))
    refused = {name: namespace.migrate("vm1") for name, (namespace, _) in filled.items()}
    on.together(lambda name: filled[name][0].stays_refused(refused[name]), refused)
    for namespace, base in filled.values():
        assert namespace.hard() == base
    on.together(lambda name: filled[name][0].delete_migration(refused[name]), refused)
    on.run("--no-compensate")

    def goes_through(name: str) -> None:
        namespace, base = filled[name]
        with namespace.watch() as versions:
            namespace.succeed(namespace.migrate("vm1", linger=0.5))
            if SHAPES["a persistent TPM"] is RESOURCES[name]:
                namespace.remove_ended()  # as KubeVirt 1.9 does: until then its claim is there and counts
            namespace.settle(base)
            assert hards(versions) == [base, plus(base, base), base], name

    on.together(goes_through, filled)


def test_disks_that_move_are_added_where_an_administrator_lets_them(on: Environment) -> None:
    """KubeVirt waits for the claim that the VM names, without a migration."""
    on.run()
    namespace = on.namespace()
    namespace.start_vm()
    base = {"requests.storage": "1Gi", "persistentvolumeclaims": "1"}
    namespace.make_quota("disks", base, managed=True)
    _claim(namespace, "old")
    moved = {
        "volumeName": "root",
        "sourcePVCInfo": {"claimName": "old"},
        "destinationPVCInfo": {"claimName": "new"},
    }
    namespace.api.patch(f"{namespace.instances}/vm1", {"status": {"migratedVolumes": [moved]}})
    with pytest.raises(ApiFailure, match="exceeded quota: disks"):
        _claim(namespace, "new")
    allowed = {"headroom.harvesterhci.io/storage-migration": "true"}
    namespace.api.patch(namespace.path, {"metadata": {"annotations": allowed}})
    namespace.wait_hard({"requests.storage": "2Gi", "persistentvolumeclaims": "2"}, "disks", 10.0)
    namespace.wait_counted("disks")
    _claim(namespace, "new")
    namespace.api.delete(f"{namespace.path}/persistentvolumeclaims/old")
    namespace.settle(by_value(base), "disks")


def _claim(namespace: QuotaNamespace, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": name}, "spec": {"storageClassName": "none", **spec}}
    namespace.api.create(f"{namespace.path}/persistentvolumeclaims", body)


def test_a_second_migration_where_finished_pods_count_too(on: Environment) -> None:
    """count/pods counts what has ended: its base is overrun after the first one, and compensation makes up for it."""
    on.run()
    namespace, base = full(on, "count/pods")
    for _ in range(2):
        namespace.succeed(namespace.migrate("vm1"))
        namespace.settle(base)


def test_scoped_quotas_are_raised_for_the_pods_they_count(on: Environment, high: str) -> None:
    on.run("--no-compensate")
    namespace = on.namespace(limits={"limits.cpu": "20", "limits.memory": "40Gi"})
    namespace.start("vm1").start("vm2", shape=Shape(spec={"priorityClassName": high}))
    one = by_value({"requests.memory": "3340109497", "pods": "1"})
    quotas: dict[str, tuple[Raw, Amounts]] = {
        "high": (_priority("In", high), one),
        "others": (_priority("DoesNotExist"), one),
        "burstable": ({"scopes": ["NotBestEffort"]}, plus(one, one)),
        "forever": ({"scopes": ["NotTerminating"]}, plus(one, one)),
        "besteffort": ({"scopes": ["BestEffort"]}, by_value({"pods": "1"})),
        "jobs": ({"scopes": ["Terminating"]}, one),
    }
    for name, (spec, base) in quotas.items():
        namespace.make_quota(name, {key: str(value) for key, value in base.items()}, managed=True, spec=spec)
    assert namespace.used("high") == namespace.used("others") == one, "the numbers of this test"
    matching = {"vm1": {"others", "burstable", "forever"}, "vm2": {"high", "burstable", "forever"}}
    for vm, raised in matching.items():
        migration = namespace.migrate(vm, phase_seconds=LASTING)
        namespace.wait_phase(migration, "Running")
        for name, (_, base) in quotas.items():
            assert namespace.hard(name) == (plus(base, one) if name in raised else base), (vm, name)
            assert len(namespace.entries(name)) == (name in raised), (vm, name)
        namespace.hurry(migration)
        namespace.succeed(migration)
        for name, (_, base) in quotas.items():
            namespace.settle(base, name)


def test_a_scoped_quota_that_takes_no_part_refuses(on: Environment, high: str) -> None:
    """The counterpart: without the label it is not raised."""
    on.run("--no-compensate")
    namespace = on.namespace(limits={"limits.cpu": "20", "limits.memory": "40Gi"})
    namespace.start("vm1").start("vm2", shape=Shape(spec={"priorityClassName": high}))
    namespace.make_quota("high", {"pods": "1"}, spec=_priority("In", high))
    refused = namespace.migrate("vm2")
    namespace.succeed(namespace.migrate("vm1"))
    namespace.stays_refused(refused, 1.0)
    namespace.patch_quota({"metadata": {"labels": {"headroom.harvesterhci.io/managed": "true"}}}, "high")
    namespace.succeed(refused)
    eventually(lambda: namespace.hard("high") == {"pods": Quantity.parse("1")})


def _priority(operator: str, *names: str) -> Raw:
    wanted: Raw = {"scopeName": "PriorityClass", "operator": operator}
    return {"scopeSelector": {"matchExpressions": [wanted | ({"values": list(names)} if names else {})]}}
