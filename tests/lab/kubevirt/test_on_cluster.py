"""The stand-in on a real control plane: real quota admission says who gets a pod."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.registry import EVENTS
from kubeloop.api.registry import PERSISTENT_VOLUME_CLAIMS as CLAIMS
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import PATIENCE, eventually
from lab.cluster import EmbeddedCluster, Options
from pkg.api.kubevirt import KUBEVIRTS
from pkg.util.quotacount.usage import pod_usage
from tests.e2e.api import Api
from tests.e2e.conftest import started_with
from tests.lab.kubevirt.live import (
    LASTING,
    PODS,
    QUOTAS,
    ROOMY,
    SEED,
    VMIMS,
    VMIS,
    VMS,
    Body,
    Live,
    conditions,
    phases,
    status,
    used,
)
from tests.lab.kubevirt.samples import HOTPLUG_VOLUME
from tests.objects import SEED_DOMAIN
from tests.pkg.util.vectors import recorded

pytestmark = pytest.mark.cluster

REJECTED = "migrationRejectedByResourceQuota"
WAY = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"]
ONE = {"cpu": "2015m", "memory": "4797464313"}
BOTH = {"cpu": "4030m", "memory": "9594928626"}
SETTING = {
    "apiVersion": "harvesterhci.io/v1beta1",
    "kind": "Setting",
    "metadata": {"name": "additional-guest-memory-overhead-ratio"},
    "value": "1.5",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedCluster(options=Options(kubevirt=True, rancher=True, nodes=3)) as cluster:
        Api(cluster.kubeconfig).create("/apis/harvesterhci.io/v1beta1/settings", SETTING)
        yield cluster


@pytest.fixture
def seed(cluster: Cluster) -> Live:
    """A namespace with the seed's quota."""
    live = Live(cluster, SEED)
    live.quota()
    return live


@pytest.fixture
def free(cluster: Cluster) -> Live:
    """A namespace without a quota."""
    return Live(cluster)


def test_the_seed_s_vm_runs_and_counts_what_the_seed_saw(seed: Live) -> None:
    seed.started()
    seed.quota(used(**ONE))
    vmi = seed.get(VMIS, "vm1")
    (pod,) = seed.launchers()
    assert vmi["status"]["nodeName"] == pod["spec"]["nodeName"]
    assert vmi["status"]["activePods"] == {pod["metadata"]["uid"]: pod["spec"]["nodeName"]}
    assert conditions(vmi) == {"Ready": "True", "LiveMigratable": "True"}
    assert vmi["metadata"]["ownerReferences"][0]["kind"] == "VirtualMachine"
    vm = seed.get(VMS, "vm1")
    assert (vm["status"]["created"], vm["status"]["ready"]) == (True, True)


def test_a_migration_is_refused_by_quota_and_goes_through_when_there_is_room(seed: Live) -> None:
    seed.started(source_linger_seconds="0.5")
    seed.migrate(phase_seconds=f"Running={LASTING}")
    refused = seed.wait(VMIMS, "m1", lambda m: conditions(m).get(REJECTED) == "True")
    assert refused["status"]["phase"] == "Pending"
    assert refused["metadata"]["finalizers"] == ["kubevirt.io/migrationJobFinalize"]
    said = events(seed, "FailedCreate")
    assert "exceeded quota" in said[0]["message"]
    assert "requested: limits.cpu=2015m,limits.memory=4797464313" in said[0]["message"]
    assert (said[0]["involvedObject"]["kind"], said[0]["involvedObject"]["name"]) == (
        "VirtualMachineInstance",
        "vm1",
    )
    seed.set_hard({"limits.cpu": "5", "limits.memory": "9980344313"})
    seed.phase("m1", "Running")
    seed.quota(used(**BOTH))
    seed.hurry("m1")
    done = seed.phase("m1", "Succeeded")
    assert phases(done) == WAY
    assert "conditions" not in done["status"]
    vmi = seed.get(VMIS, "vm1")
    state = vmi["status"]["migrationState"]
    assert state == done["status"]["migrationState"]
    assert state["completed"] is True
    assert vmi["status"]["nodeName"] == state["targetNode"] != state["sourceNode"]
    seed.wait(PODS, state["sourcePod"], status("phase", "Succeeded"))
    seed.quota(used(**ONE))
    assert seed.get(PODS, state["targetPod"])["status"]["phase"] == "Running"


def test_a_refused_pod_is_asked_for_again_when_the_quota_changes(cluster: Cluster, seed: Live) -> None:
    """Not when its backoff ends."""
    with started_with(cluster, "kubevirt", "--first-retry", "300"):
        seed.started()
        seed.migrate()
        seed.wait(VMIMS, "m1", lambda m: conditions(m).get(REJECTED) == "True")
        seed.set_hard(ROOMY)
        seed.phase("m1", "Succeeded")


def events(live: Live, reason: str) -> list[Body]:
    found: list[Body] = eventually(
        lambda: [event for event in live.items(EVENTS) if event["reason"] == reason]
    )
    return found


def test_a_migrated_pod_looks_like_kubevirt_s_own(free: Live) -> None:
    free.started()
    free.migrate()
    free.phase("m1", "Succeeded")
    vmi = free.get(VMIS, "vm1")
    ours = free.get(PODS, vmi["status"]["migrationState"]["targetPod"])
    theirs = recorded("pod-t1-virt-launcher-vm1-hq9zx")
    meta, expected = ours["metadata"], theirs["metadata"]
    harvester = {"harvesterhci.io/migrationState", "harvesterhci.io/migrationUID", "kubevirt.io/nonroot"}
    assert meta["labels"].keys() == expected["labels"].keys()
    assert meta["annotations"].keys() == expected["annotations"].keys() - harvester
    assert meta["generateName"] == expected["generateName"]
    assert [ref["kind"] for ref in meta["ownerReferences"]] == ["VirtualMachineInstance"]
    ours_used, theirs_used = pod_usage(msgspec.convert(ours, Pod)), pod_usage(msgspec.convert(theirs, Pod))
    # Another release's constants and a ratio: memory is compared with the seed elsewhere.
    memory = {"memory", "limits.memory", "requests.memory"}
    assert ours_used.keys() == theirs_used.keys()
    assert {k: v for k, v in ours_used.items() if k not in memory} == {
        k: v for k, v in theirs_used.items() if k not in memory
    }
    migration = free.get(VMIMS, "m1")
    state = recorded("virtualmachineinstancemigration-t1-m1")["status"]["migrationState"]
    beyond = {"migrationConfiguration", "targetDirectMigrationNodePorts", "targetMemoryOverhead"}
    assert migration["status"]["migrationState"].keys() == state.keys() - beyond


def test_a_deleted_vm_goes_with_everything(free: Live) -> None:
    free.started()
    free.delete(VMS, "vm1")
    free.wait(VMIS, "vm1", lambda body: not body)
    assert free.launchers() == []


def test_a_launcher_that_quota_refuses_leaves_the_vm_waiting(seed: Live) -> None:
    seed.started("vm1")
    seed.start("vm2")
    seed.wait(VMS, "vm2", status("printableStatus", "ErrorUnschedulable"))
    vmi = seed.get(VMIS, "vm2")
    assert vmi["status"]["phase"] == "Pending"
    assert conditions(vmi)["Synchronized"] == "False"
    seed.set_hard(ROOMY)
    seed.runs("vm2")
    assert "Synchronized" not in conditions(seed.get(VMIS, "vm2"))


def test_deleting_a_running_migration_aborts_it(free: Live) -> None:
    free.started()
    free.migrate(phase_seconds=f"Running={LASTING}")
    running = free.phase("m1", "Running")
    free.delete(VMIMS, "m1")
    free.wait(VMIMS, "m1", lambda body: not body)
    vmi = free.get(VMIS, "vm1")
    state = vmi["status"]["migrationState"]
    assert (state["abortRequested"], state["abortStatus"], state["failed"]) == (True, "Succeeded", True)
    assert vmi["status"]["nodeName"] == state["sourceNode"]
    assert state["migrationUid"] == running["metadata"]["uid"]
    free.wait(PODS, state["targetPod"], status("phase", "Failed"))
    free.migrate("m2")
    free.phase("m2", "Succeeded")


def test_hotplugged_volumes_bring_an_attachment_pod_to_the_target(free: Live) -> None:
    free.create(
        VMIS, {"metadata": {"name": "vm1"}, "spec": {"domain": SEED_DOMAIN, "volumes": [HOTPLUG_VOLUME]}}
    )
    vmi = free.wait(VMIS, "vm1", lambda v: _volume_phase(v) == "Ready")
    first = vmi["status"]["volumeStatus"][0]["hotplugVolume"]["attachPodName"]
    free.migrate(source_linger_seconds="0")
    done = free.phase("m1", "Succeeded")
    moved = free.wait(VMIS, "vm1", lambda v: _volume_phase(v) == "Ready" and _attachment(v) != first)
    pod = free.get(PODS, _attachment(moved))
    assert pod["metadata"]["name"].startswith("hp-volume-")
    assert pod["metadata"]["labels"]["kubevirt.io/migrationJobUID"] == done["metadata"]["uid"]
    assert pod["spec"]["nodeName"] == moved["status"]["nodeName"]
    assert pod["metadata"]["uid"] == moved["status"]["migrationState"]["targetAttachmentPodUID"]
    free.wait(PODS, first, lambda body: not body)


def test_a_migration_that_fails_takes_its_claim_of_the_vm_s_state_with_it(free: Live) -> None:
    domain = {**SEED_DOMAIN, "devices": {"tpm": {"persistent": True}}}
    free.create(VMIS, {"metadata": {"name": "vm1"}, "spec": {"domain": domain}})
    free.wait(VMIS, "vm1", status("phase", "Running"))
    own = [claim["metadata"]["name"] for claim in free.items(CLAIMS)]
    free.migrate(fail_at_phase="Scheduled")
    failed = free.phase("m1", "Failed")
    state = failed["status"]["migrationState"]
    assert state["sourcePersistentStatePVCName"] == own[0] != state["targetPersistentStatePVCName"]
    free.wait(CLAIMS, state["targetPersistentStatePVCName"], lambda body: not body)
    assert [claim["metadata"]["name"] for claim in free.items(CLAIMS)] == own


def _volume_phase(vmi: Body) -> Any:
    volumes = vmi.get("status", {}).get("volumeStatus") or [{}]
    return volumes[0].get("phase")


def _attachment(vmi: Body) -> str:
    name: str = vmi["status"]["volumeStatus"][0]["hotplugVolume"]["attachPodName"]
    return name


def test_no_more_migrations_run_than_kubevirt_s_configuration_allows(cluster: Cluster, free: Live) -> None:
    limits = {"migrations": {"parallelMigrationsPerCluster": 3, "parallelOutboundMigrationsPerNode": 2}}
    free.create(KUBEVIRTS, {"metadata": {"name": "kubevirt"}, "spec": {"configuration": limits}})
    free.wait(KUBEVIRTS, "kubevirt", status("phase", "Deployed"))
    names = [f"vm{number}" for number in range(8)]
    for name in names:
        free.start(name)
    free.runs(*names)
    for name in names:
        free.migrate(name, vmi=name, phase_seconds=f"Running={LASTING}")

    def how_many(*phases: str) -> int:
        found = [m.get("status", {}).get("phase", "") for m in free.items(VMIMS)]
        assert "Failed" not in found
        assert sum(phase not in ("", "Pending", "Succeeded") for phase in found) <= 3
        return sum(phase in phases for phase in found)

    eventually(lambda: how_many("Running") == 3)
    free.hurry(*names)
    eventually(lambda: how_many("Succeeded") == len(names))
    free.delete(KUBEVIRTS, "kubevirt")


@pytest.mark.parametrize("kill_after", ["Pending", "Scheduling", "PreparingTarget", "Running"])
def test_killed_and_started_again_it_goes_on(cluster: Cluster, seed: Live, kill_after: str) -> None:
    seed.started(source_linger_seconds="1")
    seed.migrate(phase_seconds=f"{kill_after}={LASTING}")
    if kill_after != "Pending":
        seed.set_hard(ROOMY)
    seed.phase("m1", kill_after)
    cluster.restart("kubevirt")
    seed.hurry("m1")
    seed.set_hard(ROOMY)
    done = seed.phase("m1", "Succeeded")
    assert phases(done) == WAY
    # Never two targets, and quota was charged for nothing that does not exist.
    assert len(seed.launchers()) == 2
    seed.quota(used(**ONE))


def test_thirty_vms_are_charged_once_each(cluster: Cluster) -> None:
    """A pod asked for twice would be charged twice until the quota is next counted."""
    live = Live(cluster, '{"limit":{"limitsCpu":"60450m"}}')
    live.quota()
    names = [f"vm{number}" for number in range(30)]
    for name in names:
        live.start(name)
    live.runs(*names)
    assert live.quota()["status"]["used"]["limits.cpu"] == "60450m"
    assert len(live.items(QUOTAS)) == 1


def test_sigterm_ends_it(cluster: Cluster) -> None:
    argv = [sys.executable, "-m", "lab.kubevirt", "--kubeconfig", str(cluster.kubeconfig)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "caches synced" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_kubeconfig_that_is_not_there_is_one_line_and_2() -> None:
    argv = [sys.executable, "-m", "lab.kubevirt", "--kubeconfig", "/no/such/file"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
