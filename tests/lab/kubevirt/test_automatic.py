"""Migrations that KubeVirt's stand-in creates by itself: node maintenance and workload updates."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.registry import NODES, PODS
from kubeloop.testing.fake.server import FakeCluster
from lab.kubevirt.evacuation_controller import ANNOTATION, DRAIN_TAINT
from lab.kubevirt.lookup import Configuration, Migrations, Pods
from lab.kubevirt.objects import INSTALLED_KUBEVIRTS, MIGRATIONS, VMIS, VirtualMachineInstanceMigration
from lab.kubevirt.options import StandInOptions
from lab.kubevirt.register import register, register_automatic
from pkg.config.management import Management
from tests.lab.kubevirt import samples

pytestmark = pytest.mark.virtual_time

TAINT = {"key": DRAIN_TAINT, "value": "scheduling", "effect": "NoSchedule"}
MOVES = {"evictionStrategy": "LiveMigrate"}
OLD = {"launcherContainerImageVersion": "virt-launcher:v1.7.0"}


class Site:
    """Three nodes and VMIs on the first; the stand-in runs."""

    def __init__(self, profile: str, *, alone: bool) -> None:
        """`alone`: only what creates migrations runs, and nothing becomes of them."""
        self.cluster = FakeCluster()
        for number in (1, 2, 3):
            self.node(f"node-{number}")
        self.management = Management(self.cluster.client(), whole=True)
        options = StandInOptions(phase_delay=3600.0, overhead_profile=profile)
        if not alone:
            register(self.management, options)
            return
        lookup, pods = Migrations(self.management.controller(MIGRATIONS).cache()), Pods(self.management.pods.cache())
        register_automatic(self.management, options, lookup, pods, Configuration(self.management, options))

    def node(self, name: str, *taints: dict[str, Any]) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.cluster.put(NODES, {"metadata": {"name": name}, "spec": {"taints": list(taints)}, "status": ready})

    def vmi(self, name: str, *, status: dict[str, Any] | None = None, pods: int = 1, **spec: Any) -> None:
        instance = samples.running(name, spec={**MOVES, **spec}, status={"activePods": {}, **(status or {})})
        self.cluster.put(VMIS, instance)
        for number in range(pods):
            image = (status or {}).get("launcherContainerImageVersion")
            pod = samples.launcher(f"{name}-{number}", vmi_name=name)
            containers = [{"name": "compute", **({"image": image} if image else {})}]
            raw: dict[str, Any] = msgspec.to_builtins(pod)
            self.cluster.put(PODS, {**raw, "spec": {**raw["spec"], "containers": containers}})

    def migration(self, vmi: str, phase: str = "Running") -> None:
        self.cluster.put(MIGRATIONS, samples.vmim(f"by-hand-{vmi}", phase=phase, vmi_name=vmi))

    def kubevirt(self, *methods: str, phase: str = "Deployed") -> None:
        spec = {"workloadUpdateStrategy": {"workloadUpdateMethods": list(methods)}}
        metadata = {"name": "kubevirt", "namespace": "kubevirt"}
        self.cluster.put(INSTALLED_KUBEVIRTS, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})

    @property
    def created(self) -> list[VirtualMachineInstanceMigration]:
        """The migrations that nobody made by hand, by VMI."""
        created = [migration for migration in self.cluster.all(MIGRATIONS) if not migration.name.startswith("by-hand")]
        return sorted(created, key=lambda migration: migration.spec.vmi_name)

    @property
    def migrated_vmis(self) -> list[str]:
        return [migration.spec.vmi_name for migration in self.created]

    @property
    def targets(self) -> list[Pod]:
        return [pod for pod in self.cluster.all(PODS) if "kubevirt.io/migrationJobUID" in pod.labels]


@pytest.fixture(params=["1.9"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """On a KubeVirt with priorities, unless a test says otherwise."""
    running_site = Site(request.param, alone=request.param != "1.9")
    await running_site.management.start()
    assert await running_site.management.wait_for_sync(10.0)
    yield running_site
    await running_site.management.stop(0.1)


async def test_a_drained_node_has_each_of_its_vmis_migrated(site: Site) -> None:
    site.vmi("vm1")
    site.vmi("vm2", evictionStrategy="LiveMigrateIfPossible")
    await asyncio.sleep(1.0)
    assert not site.migrated_vmis
    site.node("node-1", TAINT)
    await asyncio.sleep(1.0)
    assert site.migrated_vmis == ["vm1", "vm2"]
    for migration in site.created:
        assert migration.name.startswith("kubevirt-evacuation-")
        assert migration.annotations[ANNOTATION] == "node-1"
        assert migration.spec.priority == "system-critical"


async def test_vmis_stay_that_must_not_or_cannot_migrate_or_already_do(site: Site) -> None:
    site.vmi("external", evictionStrategy="External")
    site.vmi("unset", evictionStrategy=None)
    site.vmi("stuck", status={"conditions": [{"type": "LiveMigratable", "status": "False"}]}, pods=0)
    site.vmi("moving")
    site.migration("moving", phase="Pending")
    site.vmi("arriving", pods=2)
    site.vmi("vm1")
    site.node("node-1", TAINT)
    await asyncio.sleep(1.0)
    assert site.migrated_vmis == ["vm1"]


async def test_another_taint_or_another_node_moves_nobody(site: Site) -> None:
    site.vmi("vm1")
    site.node("node-1", {**TAINT, "key": "node.kubernetes.io/unschedulable"}, {**TAINT, "effect": "NoExecute"})
    site.node("node-2", TAINT)
    await asyncio.sleep(1.0)
    assert not site.migrated_vmis


async def test_two_leave_at_a_time_and_no_target_comes_to_the_node(site: Site) -> None:
    for number in range(4):
        site.vmi(f"vm{number}")
    site.node("node-3", TAINT)
    site.node("node-1", TAINT)
    await asyncio.sleep(1.0)
    assert len(site.migrated_vmis) == 4
    assert [pod.spec.node_name for pod in site.targets] == ["node-2", "node-2"]


before_1_9 = pytest.mark.parametrize("site", ["1.8"], indirect=True)


@before_1_9
async def test_before_1_9_none_is_created_while_two_leave_the_node(site: Site) -> None:
    for number in range(4):
        site.vmi(f"vm{number}")
    site.migration("vm0")
    site.migration("vm1", phase="Scheduling")
    site.node("node-1", TAINT)
    await asyncio.sleep(30.0)
    assert not site.migrated_vmis
    site.migration("vm1", phase="Pending")
    await asyncio.sleep(10.0)
    assert site.migrated_vmis == ["vm2", "vm3"]
    assert site.created[0].spec.priority is None


@before_1_9
async def test_before_1_9_none_is_created_while_five_run(site: Site) -> None:
    for number in range(5):
        site.vmi(f"elsewhere{number}", status={"nodeName": "node-2"})
        site.migration(f"elsewhere{number}")
    site.vmi("vm1")
    site.node("node-1", TAINT)
    await asyncio.sleep(30.0)
    assert not site.migrated_vmis
    site.migration("elsewhere0", phase="Succeeded")
    await asyncio.sleep(10.0)
    assert site.migrated_vmis == ["vm1"]


async def test_a_workload_update_migrates_five_outdated_vmis_at_a_time(site: Site) -> None:
    for number in range(6):
        site.vmi(f"old{number}", status=OLD)
    site.vmi("new", status={"launcherContainerImageVersion": "virt-launcher:v1.9.0"})
    site.vmi("unknown")
    site.kubevirt("LiveMigrate")
    await asyncio.sleep(1.0)
    assert not site.migrated_vmis, "five seconds after the change, not before"
    await asyncio.sleep(6.0)
    assert len(site.migrated_vmis) == 5
    assert set(site.migrated_vmis) < {f"old{number}" for number in range(6)}
    assert all(migration.name.startswith("kubevirt-workload-update-") for migration in site.created)
    assert all(migration.annotations == {"kubevirt.io/workloadUpdateMigration": ""} for migration in site.created)


@pytest.mark.parametrize("methods", [(), ("Evict",)])
async def test_without_the_method_nobody_is_updated(site: Site, methods: tuple[str, ...]) -> None:
    site.vmi("old", status=OLD)
    site.kubevirt(*methods)
    await asyncio.sleep(60.0)
    assert not site.migrated_vmis
