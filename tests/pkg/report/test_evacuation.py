"""`headroom plan --evacuate all`: which VMs would stay where they are, and on which node most would."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from kubeloop.api.core import Node, Pod
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.plan import Evacuation, NodeCapacity, PlacedPod, evacuations
from pkg.report.snapshot import Snapshot
from tests.decisions import charged, sentences
from tests.kinds import edited
from tests.objects import HARD, MARKS, build, launcher, quota, vmi
from tests.pkg.util.resourcequota.snapshots import cluster

ROOMY = {"limits.cpu": "60", "limits.memory": "100Gi"}
GRANTS_MUCH = '{"limit":{"limitsCpu":"60","limitsMemory":"100Gi"}}'


def node(name: str, cpu: str = "8", memory: str = "16Gi", ready: str = "True", **spec: Any) -> Node:
    body = {
        "metadata": {"name": name, "labels": {"kubevirt.io/schedulable": "true"}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory}, "conditions": [{"type": "Ready", "status": ready}]},
    }
    return msgspec.convert(body, Node)


def snapshot_of(
    instances: Sequence[VirtualMachineInstance], hard: Mapping[str, str] = ROOMY, **fields: Any
) -> Snapshot:
    pods = [launcher(instance, node=instance.status.node_name or "") for instance in instances]
    return cluster([quota(dict(hard), MARKS)], [], pods, instances, limits=GRANTS_MUCH, **fields)


def on(name: str, *names: str) -> list[VirtualMachineInstance]:
    return [vmi(vm_name, nodeName=name) for vm_name in names]


def planned(
    instances: Sequence[VirtualMachineInstance], nodes: Sequence[Node] | None, *more_pods: Pod, **fields: Any
) -> Evacuation:
    snapshot = snapshot_of(instances, **fields)
    return evacuations(snapshot, NodeCapacity(nodes, None if nodes is None else placed(*snapshot.pods, *more_pods)))


def placed(*pods: Pod, **placement: Any) -> list[PlacedPod]:
    documents = [msgspec.to_builtins(pod) for pod in pods]
    return [msgspec.convert({**each, "spec": {**each["spec"], **placement}}, PlacedPod) for each in documents]


def stays(evacuation: Evacuation) -> list[tuple[str | None, str, str]]:
    return [(plan.node, violation.vm, violation.why) for plan in evacuation.nodes for violation in plan.violations]


def other_pod(phase: str) -> Pod:
    """A large pod on node-2 that is no VM's."""
    containers = [{"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "14Gi"}}}]
    return build(Pod, "other", {"containers": containers, "nodeName": "node-2"}, {"phase": phase})


NO_ROOM = "no other node has room for its target pod: requests.cpu "
OTHER = node("node-2")
PLACES: Mapping[str, tuple[Node | None, Sequence[Pod], int]] = {
    "another node has room": (OTHER, [], 0),
    "there is no other node": (None, [], 1),
    "the other one is cordoned": (node("node-2", unschedulable=True), [], 1),
    "the other one is not ready": (node("node-2", ready="Unknown"), [], 1),
    "the other one is tainted": (node("node-2", taints=[{"key": "a", "effect": "NoSchedule"}]), [], 1),
    "a taint that only prefers others": (node("node-2", taints=[{"key": "a", "effect": "PreferNoSchedule"}]), [], 0),
    "KubeVirt places nothing there": (edited(OTHER, metadata={"labels": {"kubevirt.io/schedulable": "false"}}), [], 1),
    "it is too small": (node("node-2", memory="1Gi"), [], 1),
    "other pods fill it": (OTHER, [other_pod(phase="Running")], 1),
    "a pod that has ended fills nothing": (OTHER, [other_pod(phase="Succeeded")], 0),
}


@sentences(PLACES)
def test_whether_the_targets_have_room_on_the_other_nodes(case: tuple[Node | None, Sequence[Pod], int]) -> None:
    other, more_pods, count = case
    evacuation = planned(on("node-1", "vm1"), [node("node-1"), *filter(None, [other])], *more_pods)
    staying = [(name, vm, reason.startswith(NO_ROOM)) for name, vm, reason in stays(evacuation)]
    assert staying == [("node-1", "vm1", True)] * count


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def affinity(*terms: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Of each term its expressions; all have `more`."""
    selector_terms = [{"matchExpressions": term, **more} for term in terms]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": selector_terms}}
    return {"affinity": {"nodeAffinity": required}}


IN_ZONE_B = expression("zone", "In", "b")
HAS_GPU, NO_GPU = expression("gpu", "Exists"), expression("gpu", "DoesNotExist")
BY_AFFINITY = "its node affinity"
REQUIRED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a label that it has": ({"nodeSelector": {"zone": "b"}}, ""),
    "one that it has not": ({"nodeSelector": {"zone": "b", "gpu": "a"}}, "gpu=a, zone=b"),
    "a value": (affinity([IN_ZONE_B]), ""),
    "another value": (affinity([expression("zone", "NotIn", "b")]), BY_AFFINITY),
    "both of a term": (affinity([IN_ZONE_B, HAS_GPU]), BY_AFFINITY),
    "one of two terms": (affinity([HAS_GPU], [NO_GPU]), ""),
    "a number, which is not looked at": (affinity([expression("cores", "Gt", "8")]), BY_AFFINITY),
    "nothing, in an empty term": (affinity([]), BY_AFFINITY),
    "a field beside it, which is not looked at": (
        affinity([IN_ZONE_B], matchFields=[expression("metadata.name", "In", "node-2")]), BY_AFFINITY,
    ),
}  # fmt: skip


@sentences(REQUIRED)
def test_what_a_target_requires_of_its_node(case: tuple[Mapping[str, Any], str]) -> None:
    placement, requirement = case
    labels = {"kubevirt.io/schedulable": "true", "zone": "b", "cores": "16"}
    nodes = [node("node-1"), edited(node("node-2"), metadata={"labels": labels})]
    snapshot = snapshot_of(on("node-1", "vm1"))
    evacuation = evacuations(snapshot, NodeCapacity(nodes, placed(*snapshot.pods, **placement)))
    reasons = [reason.partition(", and has what it requires: ")[2] for _name, _vm, reason in stays(evacuation)]
    assert reasons == [requirement] * bool(requirement)


def test_two_that_fit_one_by_one_may_not_fit_together() -> None:
    """Room for one target on each of two nodes; for the third VM there is none."""
    nodes = [node("node-1"), node("node-2", memory="4Gi"), node("node-3", memory="4Gi")]
    assert stays(planned(on("node-1", "vm1", "vm2"), nodes)) == []
    third = stays(planned(on("node-1", "vm1", "vm2", "vm3"), nodes))
    assert [(name, reason.startswith(NO_ROOM)) for name, _vm, reason in third] == [("node-1", True)]


def test_every_node_in_turn_and_the_worst() -> None:
    nodes = [node("node-1"), node("node-2", memory="4Gi")]
    evacuation = planned([*on("node-1", "vm1", "vm2"), *on("node-2", "vm3")], nodes)
    assert [node_plan.node for node_plan in evacuation.nodes] == ["node-1", "node-2"]
    assert ({name for name, _vm, _reason in stays(evacuation)}, evacuation.worst) == ({"node-1"}, "node-1")


def test_the_quota_and_kubevirt_keep_vms_where_they_are() -> None:
    bound = edited(
        vmi("vm2", nodeName="node-1"),
        status={"conditions": [{"type": "LiveMigratable", "status": "False", "message": "its disk is not shared"}]},
    )
    snapshot = snapshot_of([*on("node-1", "vm1"), bound])
    stuck = replace(snapshot, quotas=[charged(quota(dict(HARD), labels={"a": "b"}), snapshot.pods)])
    evacuation = evacuations(stuck, NodeCapacity([node("node-1"), node("node-2")], placed(*stuck.pods)))
    assert [
        (vm, "no label" in reason, "its disk is not shared" in reason) for _name, vm, reason in stays(evacuation)
    ] == [("vm1", True, False), ("vm2", True, True)]


def test_a_vm_that_would_stay_for_two_reasons_is_counted_once() -> None:
    snapshot = snapshot_of(on("node-1", "vm1"))
    stuck = replace(snapshot, quotas=[charged(quota(dict(HARD), labels={"a": "b"}), snapshot.pods)])
    ((_node, _vm, reason),) = stays(evacuations(stuck, NodeCapacity([node("node-1")], placed(*stuck.pods))))
    assert ("no label" in reason, f"; {NO_ROOM}" in reason) == (True, True)


def test_where_nodes_may_not_be_read_that_is_said() -> None:
    evacuation = planned(on("node-1", "vm1"), None)
    assert stays(evacuation) == []
    assert evacuation.remarks == ["nodes and pods may not be listed: whether other nodes have room is not known"]


def test_the_document() -> None:
    document = planned(on("node-1", "vm1"), [node("node-1")]).document()
    (of_node,) = document["nodes"]
    assert (document["evacuate"], document["worst"], of_node["node"]) == ("all", "node-1", "node-1")
    (violation,) = of_node["violations"]
    assert (violation["namespace"], violation["vm"], violation["why"].startswith(NO_ROOM)) == ("ns1", "vm1", True)
    assert [vm["vm"] for vm in of_node["vms"]] == ["vm1"]
    assert of_node["together"][0]["raisedBy"] == {"limits.cpu": "2015m", "limits.memory": "4797464313"}
