"""Plans the evacuation of each node: whether the quotas, KubeVirt and the capacity of the other nodes let all its VMs
leave. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import gt, lt
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.core import Affinity, Node, Pod, PodSpec, ResourceQuotaSpec
from kubeloop.api.meta import LabelSelectorRequirement, Struct
from kubeloop.api.objects import condition_is_true
from kubeloop.api.quantity import ZERO
from kubeloop.api.registry import Resource
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import unmigratable_reason
from pkg.report.plan import MigrationPlan, Violation, VmPlan, plan_evacuations
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.sides import sides_of
from pkg.util.kubevirt.target import target_usage
from pkg.util.quotacount.usage import pod_usage

_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
_EVERYWHERE: Final = ResourceQuotaSpec()

SCHEDULABLE: Final = "kubevirt.io/schedulable"
"""KubeVirt's label of the nodes that take VMs, by which every launcher is placed (virt-handler sets it)."""


class NodeSelectorTerm(Struct):
    match_expressions: list[LabelSelectorRequirement] | None = None
    match_fields: list[LabelSelectorRequirement] | None = None


class NodeSelector(Struct):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Struct):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PlacedAffinity(Affinity):
    """core/v1 Affinity with the nodes' part."""

    node_affinity: NodeAffinity | None = None


class PlacedPodSpec(PodSpec):
    """core/v1 PodSpec with what the scheduler reads of nodes: too much for the caches of the processes."""

    node_selector: dict[str, str] | None = None
    affinity: PlacedAffinity | None = None


class PlacedPod(Pod):
    spec: PlacedPodSpec = PlacedPodSpec()


PLACED_PODS = Resource("", "v1", "pods", "Pod", PlacedPod)


def _matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Reports whether a node fulfils a term; none fulfils an empty one."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    return bool(expressions or fields) and (
        all(_fulfils(requirement, node.labels) for requirement in expressions)
        and all(_fulfils(requirement, {"metadata.name": node.name}) for requirement in fields)
    )


def _fulfils(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or []
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:
        return bool({"Gt": gt, "Lt": lt}[requirement.operator](int(value or ""), int(values[0])))
    except (KeyError, ValueError, IndexError):
        return False


class Evacuation(Document, frozen=True):
    """The evacuation of every node in turn while the others stay. `worst` is the node that most VMs would not leave, of
    several the one with the most VMs; None if no node has VMs. `remarks` name what is not looked at."""

    ratio: str | None = field(name="overheadRatio")
    nodes: Sequence[MigrationPlan]
    worst: str | None
    remarks: Sequence[str]

    def document(self) -> dict[str, Any]:
        """Returns the JSON."""
        document = super().document()
        for node in document["nodes"]:
            del node["overheadRatio"]
        nodes = [{"node": node.pop("evacuate"), **node} for node in document["nodes"]]
        return {"evacuate": "all", **document, "nodes": nodes}


@dataclass(frozen=True)
class NodeCapacity:
    """The nodes and all pods of the cluster; None if they may not be read."""

    nodes: Sequence[Node] | None = None
    pods: Sequence[PlacedPod] | None = None

    @property
    def remarks(self) -> list[str]:
        """Sentences about what is not looked at."""
        unread = [name for name, objects in (("nodes", self.nodes), ("pods", self.pods)) if objects is None]
        if unread:
            return [f"{' and '.join(unread)} may not be listed: whether other nodes have room is not known"]
        return ["of placement, affinities to other pods and the nodes of volumes are not looked at"]

    def allowed_nodes(self, launcher: Pod | None) -> tuple[set[str], str]:
        """Returns the nodes that have the labels that a launcher requires, and what it requires, for people: beyond
        that they take VMs."""
        pod = self._pods_by_key.get(launcher.key) if launcher else None
        if pod is None:
            return {node.name for node in self.nodes or ()}, ""
        selector, affinity = pod.spec.node_selector or {}, pod.spec.affinity and pod.spec.affinity.node_affinity
        required = affinity and affinity.required_during_scheduling_ignored_during_execution
        allowed = {
            node.name
            for node in self.nodes or ()
            if selector.items() <= node.labels.items()
            and (not required or any(_matches(term, node) for term in required.node_selector_terms or ()))
        }
        labels = [f"{name}={value}" for name, value in sorted(selector.items()) if name != SCHEDULABLE]
        return allowed, ", ".join([*labels, *["its node affinity"] * bool(affinity)])

    @cached_property
    def _pods_by_key(self) -> dict[str, PlacedPod]:
        return {pod.key: pod for pod in self.pods or ()}

    def of_other_nodes(self, evacuated: str) -> dict[str, ResourceList] | None:
        """Returns what is free on each node that takes VMs, except the evacuated one, by quota's names of resources;
        None if that is not known."""
        if self._free_by_node is None:
            return None
        return {name: dict(amounts) for name, amounts in self._free_by_node.items() if name != evacuated}

    @cached_property
    def _free_by_node(self) -> dict[str, ResourceList] | None:
        """The resources that are free on each node that takes VMs."""
        if self.nodes is None or self.pods is None:
            return None
        free_by_node: dict[str, ResourceList] = {}
        for node in self.nodes:
            if _takes_vms(node, self.nodes):
                allocatable = parse_resource_list(node.status.allocatable or {})
                free_by_node[node.name] = {
                    f"requests.{name}": allocatable[name] for name in ("cpu", "memory") if name in allocatable
                }
        for pod in self.pods:
            free = free_by_node.get(pod.spec.node_name or "")
            if free is not None and not pod.terminal:
                free |= {name: free[name] - amount for name, amount in pod_usage(pod).items() if name in free}
        return free_by_node


def evacuations(snapshot: Snapshot, capacity: NodeCapacity, ratio: str | None = None) -> Evacuation:
    """Plans every node that has VMs. `ratio` None: the configured one."""
    names = {trusted_status(vmi).node_name or "" for vmi in snapshot.instances} - {""}
    nodes = [_evacuation(snapshot, capacity, plan, ratio) for plan in plan_evacuations(snapshot, names, ratio)]
    worst = max(nodes, key=lambda node: (len(node.violations), len(node.vms)), default=None)
    return Evacuation(nodes[-1].ratio if nodes else ratio, nodes, worst.node if worst else None, capacity.remarks)


def evacuation(snapshot: Snapshot, capacity: NodeCapacity, node: str, ratio: str | None = None) -> MigrationPlan:
    """Plans one node."""
    (plan,) = plan_evacuations(snapshot, [node], ratio)
    return _evacuation(snapshot, capacity, plan, ratio)


def _evacuation(snapshot: Snapshot, capacity: NodeCapacity, plan: MigrationPlan, ratio: str | None) -> MigrationPlan:
    unplaced = _unplaced_vms(snapshot, plan, capacity, ratio)
    return structs.replace(plan, violations=[*_blocked_by_quota(snapshot, plan), *unplaced])


def _blocked_by_quota(snapshot: Snapshot, plan: MigrationPlan) -> Iterator[Violation]:
    """Yields the VMs that the quotas, or KubeVirt, do not let go."""
    for vm in plan.vms:
        instance = _instance(snapshot, vm)
        reasons = [f"{fit.quota}: {fit.action}" for fit in vm.fits if not (fit.fits_then or fit.waits_for_leftover)]
        reasons += filter(None, [unmigratable_reason(snapshot, instance)] if instance else [])
        if reasons:
            yield Violation(vm.namespace, vm.vm, "; ".join(reasons))


def _unplaced_vms(
    snapshot: Snapshot, plan: MigrationPlan, capacity: NodeCapacity, ratio: str | None
) -> Iterator[Violation]:
    """Yields the VMs for whose target no node has capacity, when the largest are placed first, each where most memory
    is free."""
    free_by_node = capacity.of_other_nodes(plan.node or "")
    if free_by_node is None:
        return
    targets = [(*_target(snapshot, vm, ratio), vm) for vm in plan.vms if not vm.migrates]
    for requests, launcher, vm in sorted(
        targets, key=lambda target: target[0].get("requests.memory", ZERO), reverse=True
    ):
        allowed, requirement = capacity.allowed_nodes(launcher)
        fitting = [
            node
            for node in allowed & free_by_node.keys()
            if all(
                amount <= free_by_node[node][name] for name, amount in requests.items() if name in free_by_node[node]
            )
        ]
        if not fitting:
            reason = f"no other node has room for its target pod: {format_amounts(requests)}"
            if requirement:
                reason += f", and has what it requires: {requirement}"
            yield Violation(vm.namespace, vm.vm, reason)
            continue
        free = free_by_node[max(fitting, key=lambda node: (free_by_node[node].get("requests.memory", ZERO), node))]
        free |= {name: free[name] - amount for name, amount in requests.items() if name in free}


def _target(snapshot: Snapshot, vm: VmPlan, ratio: str | None) -> tuple[ResourceList, Pod | None]:
    """Returns the target pod's requests, and the source's launcher, which requires the same of nodes."""
    instance = _instance(snapshot, vm)
    if instance is None:
        return {}, None
    rendering = snapshot.rendering(vm.namespace, ratio)
    sides = sides_of(instance, snapshot.migrations_of(vm.namespace, vm.vm), snapshot.controlled(vm.namespace))
    source = sides.source[0] if sides.source else None
    usage = target_usage(instance, source, rendering, _EVERYWHERE)
    requests = {name: usage[name] for name in ("requests.cpu", "requests.memory") if usage.get(name)}
    return requests, source.launcher if source else None


def _takes_vms(node: Node, nodes: Iterable[Node]) -> bool:
    """Reports whether launchers can be placed on a node: KubeVirt labels the nodes where it runs."""
    if any(SCHEDULABLE in other.labels for other in nodes) and node.labels.get(SCHEDULABLE) != "true":
        return False
    tainted = any(taint.effect in _KEEPS_AWAY for taint in node.spec.taints or ())
    return not node.spec.unschedulable and not tainted and condition_is_true(node.status.conditions, "Ready")


def _instance(snapshot: Snapshot, vm: VmPlan) -> VirtualMachineInstance | None:
    return snapshot.source.instances.get(namespace=vm.namespace, name=vm.vm)
