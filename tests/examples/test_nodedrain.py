"""The ported `nodedrain` controller: upstream's cases (nodedrain_controller_test.go, drainhelper/helper_test.go)."""

from typing import Any

import pytest

from examples.nodedrain.controller import DRAIN_FORCED, DRAIN_REQUESTED, RESTART_NODE, NodeDrainHandler, register
from examples.nodedrain.kinds import REPLICAS, VOLUMES
from examples.nodedrain.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VirtualMachineInstance
from examples.nodedrain.possible import (
    MAINTAIN_STATUS,
    STRATEGY,
    DrainNotPossible,
    check_control_plane,
    stays,
    without_another_node,
)
from kubeloop.api.core import Node, Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import edit
from kubeloop.api.registry import NODES, PODS
from kubeloop.client.client import Client
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import settle, virtual_time

KINDS = (NODES, PODS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VOLUMES, REPLICAS)
PLANE, ETCD = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"
TAINTED = {MAINTAIN_STATUS: "running"}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def node(name: str, *roles: str, **annotations: str) -> Node:
    labels = dict.fromkeys(roles, "true")
    return Node(metadata=ObjectMeta(name=name, labels=labels, annotations=annotations))


ONE, TWO, THREE = node("cp-1", PLANE), node("cp-2", PLANE, ETCD), node("cp-3", ETCD)
# upstream's name: the node, all nodes, what forbids it
CONTROL_PLANES: dict[str, tuple[Node, list[Node], str | None]] = {
    "meets control plane requirements HA, worker": (node("worker"), [ONE, TWO, THREE], None),
    "meets control plane requirements HA": (TWO, [ONE, TWO, THREE, node("worker")], None),
    "fails control plane requirements HA": (
        TWO,
        [edit(ONE, metadata={"annotations": TAINTED}), TWO, THREE],
        "in maintenance mode already",
    ),
    "fails control plane requirements single node": (ONE, [ONE, node("worker")], "single control plane"),
    "meets worker requirement": (node("worker"), [node("worker")], None),
}


@pytest.mark.parametrize("case", CONTROL_PLANES)
def test_drain_possible(case: str) -> None:
    drained_node, nodes, problem = CONTROL_PLANES[case]
    if problem is None:
        check_control_plane(drained_node, nodes)
    else:
        with pytest.raises(DrainNotPossible, match=problem):
            check_control_plane(drained_node, nodes)


VM = {"harvesterhci.io/vmName": "vm"}
FILTERED: dict[str, tuple[dict[str, str], bool]] = {
    "skip on shutdown": (VM | {STRATEGY: "Shutdown"}, True),
    "skip on shutdown and restart after enable": (VM | {STRATEGY: "ShutdownAndRestartAfterEnable"}, True),
    "skip on shutdown and restart after disable": (VM | {STRATEGY: "ShutdownAndRestartAfterDisable"}, True),
    "okay without labels": ({}, False),
    "okay for a VM that migrates": (VM | {STRATEGY: "Migrate"}, False),
    "okay for a pod that is not a VM's": ({STRATEGY: "Shutdown"}, False),
}


@pytest.mark.parametrize("case", FILTERED)
def test_maintain_mode_strategy_filter(case: str) -> None:
    labels, expected = FILTERED[case]
    assert stays(Pod(metadata=ObjectMeta(name="p", labels=labels))) is expected


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": operator} | ({"values": [*values]} if values else {})
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


HOST = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
MANAGED = term("network.harvesterhci.io/mgmt", "In", "true")
# spec of a VMI on n1 -> whether n2 or n3 could take it
SCHEDULED: dict[str, tuple[dict[str, Any], bool]] = {
    "a VM pinned to its host has no other node, whatever its affinity": (HOST | MANAGED, False),
    "a VM pinned to its host by a masquerade network has no other node": (HOST, False),
    "an affinity that all nodes meet leaves other nodes": (MANAGED, True),
    "an affinity that no node meets leaves none": (term("gpu", "Exists"), False),
    "an affinity for more leaves a node with more": (term("rank", "Gt", "2"), True),
    "an affinity for less leaves no node with less": (term("rank", "Lt", "2"), False),
    "a VM without requirements fits every node": ({}, True),
}


@pytest.mark.parametrize("case", SCHEDULED)
def test_check_vmi_scheduling_requirements(case: str) -> None:
    spec, expected = SCHEDULED[case]
    cluster = FakeCluster(*KINDS)
    for number, name in enumerate(("n1", "n2", "n3"), 1):
        labels = {"kubernetes.io/hostname": name, "network.harvesterhci.io/mgmt": "true", "rank": str(number)}
        cluster.put(NODES, {"metadata": {"name": name, "labels": labels}, "status": READY})
    cluster.put(NODES, {"metadata": {"name": "n4", "labels": {"gpu": "x"}}, "spec": {"unschedulable": True}})
    metadata = {"namespace": "default", "name": "vm"}
    instance = cluster.put(VIRTUAL_MACHINE_INSTANCES, {"metadata": metadata, "spec": spec})
    drained_node, *_ = nodes = cluster.all(NODES)
    assert without_another_node(drained_node, nodes, [instance]) == ([] if expected else ["default/vm"])


def put_volume(cluster: FakeCluster, name: str, vm: str, replicas: dict[str, bool]) -> None:
    longhorn = {"namespace": "longhorn-system"}
    workloads = [{"workloadName": vm, "workloadType": "VirtualMachineInstance"}]
    status = {"kubernetesStatus": {"namespace": "default", "workloadsStatus": workloads}}
    cluster.put(VOLUMES, {"metadata": longhorn | {"name": name}, "status": status})
    for place, started in replicas.items():
        cluster.put(
            REPLICAS,
            {
                "metadata": longhorn | {"name": f"{name}-{place}"},
                "spec": {"volumeName": name, "nodeID": place},
                "status": {"started": started},
            },
        )


def put_vm(cluster: FakeCluster, name: str, node: str = "n1", **fields: Any) -> VirtualMachineInstance:
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": "u"}
    metadata = {"namespace": "default", "name": name}
    labels = {"kubevirt.io/nodeName": node} | fields.pop("labels", {})
    cluster.put(VIRTUAL_MACHINES, {"metadata": metadata, "spec": {"runStrategy": "RerunOnFailure"}})
    owned = metadata | {"labels": labels, "ownerReferences": [owner]}
    return cluster.put(VIRTUAL_MACHINE_INSTANCES, {"metadata": owned, **fields})


async def test_list_vmi() -> None:
    """A VM of three has its last working replica on the node."""
    cluster = FakeCluster(*KINDS)
    put_volume(cluster, "healthy", "healthy-vm", {"n1": True, "n2": True, "n3": True})
    put_volume(cluster, "failing", "failing-vm", {"n1": True, "n2": False, "n3": False})
    put_volume(cluster, "failing2", "failing-vm2", {"n1": False, "n2": True, "n3": False})
    for name in ("healthy-vm", "failing-vm", "failing-vm2"):
        put_vm(cluster, name)
    management = ControllerFactory(cluster.client())
    handler = NodeDrainHandler(management)
    await management.start()
    await management.wait_for_sync()
    assert [vmi.name for vmi in handler.with_last_replica(node("n1"))] == ["failing-vm"]
    assert handler.non_migratable_vms(node("n1"))["LastHealthyReplica"] == ["default/failing-vm"]
    await management.stop()


PINNED = {"conditions": [{"type": "LiveMigratable", "status": "False", "reason": "HostDevice"}]}
# annotations of the node, VMs by name -> what the node says afterwards, VMs that are stopped, whether pods are left
DRAINS: dict[str, tuple[dict[str, str], dict[str, dict[str, Any]], str | None, set[str], bool]] = {
    "a VM that can migrate is not stopped": ({}, {"a": {}}, "running", set(), False),
    "a VM that cannot migrate stops the drain": ({}, {"a": {"status": PINNED}}, None, set(), True),
    "a forced drain stops a VM that cannot migrate": (
        {DRAIN_FORCED: "true"},
        {"a": {"status": PINNED}, "b": {}},
        "running",
        {"a"},
        False,
    ),
    "VMs with a shutdown label are stopped": (
        {},
        {"a": {"labels": {STRATEGY: "Shutdown"}}, "b": {"labels": {STRATEGY: "ShutdownAndRestartAfterEnable"}}},
        "running",
        {"a", "b"},
        False,
    ),
}


@virtual_time
@pytest.mark.parametrize("case", DRAINS)
async def test_on_node_change(case: str) -> None:
    annotations, vms, status, stopped, pods_remain = DRAINS[case]
    cluster = FakeCluster(*KINDS)
    for name in ("n1", "n2"):
        cluster.put(NODES, {"metadata": {"name": name}, "status": READY})
    for name, fields in vms.items():
        put_vm(cluster, name, **fields)
    cluster.put(PODS, {"metadata": {"namespace": "default", "name": "p"}, "spec": {"nodeName": "n1"}})
    management = ControllerFactory(cluster.client())
    register(management)
    await management.start()
    drain_request = {"metadata": {"annotations": {DRAIN_REQUESTED: "true"} | annotations}}
    await management.client.resource(NODES).merge_patch(drain_request, name="n1")
    await settle(200)
    drained_node = cluster.get(NODES, "n1")
    assert drained_node is not None
    assert drained_node.annotations == ({} if status is None else {MAINTAIN_STATUS: status})
    assert drained_node.spec.unschedulable is (status is not None)
    machines = cluster.all(VIRTUAL_MACHINES)
    assert {vm.name for vm in machines if vm.spec.run_strategy == "Halted"} == stopped
    restarted = {vm.name for vm in machines if vm.annotations.get(RESTART_NODE) == "n1"}
    assert restarted == ({"b"} if case == "VMs with a shutdown label are stopped" else set())
    assert bool(cluster.all(PODS)) is pods_remain
    await management.stop()


async def scenario(client: Client) -> None:
    """A node without VMs."""
    management = ControllerFactory(client)
    register(management)
    await management.start()
    nodes = client.resource(NODES)
    await nodes.create({"metadata": {"name": "n1", "annotations": {DRAIN_REQUESTED: "true"}}})

    async def drained() -> bool:
        node = await nodes.get(name="n1")
        return node.spec.unschedulable and node.annotations.get(MAINTAIN_STATUS) == "running"

    await until(drained)
    await management.stop()
