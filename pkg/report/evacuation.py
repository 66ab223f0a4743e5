"""Plans the evacuation of each node: whether the quotas, KubeVirt and the capacity of the other nodes let all its VMs
leave. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import gt, lt
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.core import Affinity, Node, Pod, PodSpec, ResourceQuotaSpec
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
from pkg.util.kubevirt.target import target_usage
from pkg.util.quotacount.usage import pod_usage

_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
_EVERYWHERE: Final = ResourceQuotaSpec()
_MEMORY: Final = "requests.memory"
_Leaving = tuple[VmPlan, VirtualMachineInstance]

SCHEDULABLE: Final = "kubevirt.io/schedulable"
"""KubeVirt's label of the nodes that take VMs, by which every launcher is placed (virt-handler sets it)."""


class PlacedAffinity(Affinity):
    """core/v1 Affinity with the nodes' part."""

    node_affinity: dict[str, Any] | None = None


class PlacedPodSpec(PodSpec):
    """core/v1 PodSpec with what the scheduler reads of nodes: too much for the caches of the processes."""

    node_selector: dict[str, str] | None = None
    affinity: PlacedAffinity | None = None


class PlacedPod(Pod):
    spec: PlacedPodSpec = PlacedPodSpec()

    def may_be_placed_on(self, node: Node) -> bool:
        """Reports whether the node has the labels that the pod requires: one of its terms, of which none is empty."""
        terms = [(term.get("matchExpressions") or (), term.get("matchFields") or ()) for term in self._terms or ()]
        return (self.spec.node_selector or {}).items() <= node.labels.items() and (
            self._terms is None
            or any(
                (expressions or fields)
                and all(_fulfils(requirement, node.labels) for requirement in expressions)
                and all(_fulfils(requirement, {"metadata.name": node.name}) for requirement in fields)
                for expressions, fields in terms
            )
        )

    @property
    def requirement(self) -> str:
        """What the pod requires of its node, for people: beyond that it takes VMs."""
        selector = sorted((self.spec.node_selector or {}).items())
        labels = [f"{name}={value}" for name, value in selector if name != SCHEDULABLE]
        return ", ".join([*labels, *(["its node affinity"] if self._terms is not None else ())])

    @property
    def _terms(self) -> list[dict[str, Any]] | None:
        affinity = self.spec.affinity and self.spec.affinity.node_affinity
        required = affinity and affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        return required["nodeSelectorTerms"] if required else None


PLACED_PODS = Resource("", "v1", "pods", "Pod", PlacedPod)


def _fulfils(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or []
    if requirement["operator"] in ("Gt", "Lt"):
        compare = gt if requirement["operator"] == "Gt" else lt
        return value is not None and value.isdecimal() and compare(int(value), int(values[0]))
    is_fulfilled = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return is_fulfilled.get(requirement["operator"], False)


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

    @cached_property
    def pods_by_key(self) -> Mapping[str, PlacedPod]:
        return {pod.key: pod for pod in self.pods or ()}

    @cached_property
    def free_by_node(self) -> Mapping[str, ResourceList]:
        """The resources, by quota's names, that are free on each node that takes VMs."""
        nodes = self.nodes or ()
        is_labelled = any(SCHEDULABLE in node.labels for node in nodes)  # by KubeVirt, where it runs
        free_by_node: dict[str, ResourceList] = {}
        for node in nodes:
            if _is_open(node) and (not is_labelled or node.labels.get(SCHEDULABLE) == "true"):
                allocatable = parse_resource_list(node.status.allocatable or {})
                free_by_node[node.name] = {
                    f"requests.{name}": allocatable[name] for name in ("cpu", "memory") if name in allocatable
                }
        for pod in self.pods or ():
            if pod.spec.node_name in free_by_node and not pod.terminal:
                _take(free_by_node[pod.spec.node_name], pod_usage(pod))
        return free_by_node


def _is_open(node: Node) -> bool:
    tainted = any(taint.effect in _KEEPS_AWAY for taint in node.spec.taints or ())
    return not node.spec.unschedulable and not tainted and condition_is_true(node.status.conditions, "Ready")


def _has_room(free: ResourceList, requests: ResourceList) -> bool:
    return all(amount <= free[name] for name, amount in requests.items() if name in free)


def _take(free: ResourceList, requests: ResourceList) -> None:
    free |= {name: free[name] - amount for name, amount in requests.items() if name in free}


def evacuations(snapshot: Snapshot, capacity: NodeCapacity, ratio: str | None = None) -> Evacuation:
    """Plans every node that has VMs. `ratio` None: the configured one."""
    names = {trusted_status(vmi).node_name or "" for vmi in snapshot.instances} - {""}
    nodes = [_with_violations(snapshot, capacity, plan, ratio) for plan in plan_evacuations(snapshot, names, ratio)]
    worst = max(nodes, key=lambda node: (len(node.violations), len(node.vms)), default=None)
    return Evacuation(nodes[-1].ratio if nodes else ratio, nodes, worst.node if worst else None, capacity.remarks)


def evacuation(snapshot: Snapshot, capacity: NodeCapacity, node: str, ratio: str | None = None) -> MigrationPlan:
    """Plans one node."""
    (plan,) = plan_evacuations(snapshot, [node], ratio)
    return _with_violations(snapshot, capacity, plan, ratio)


def _with_violations(
    snapshot: Snapshot, capacity: NodeCapacity, plan: MigrationPlan, ratio: str | None
) -> MigrationPlan:
    instances = snapshot.source.instances
    leaving = [(vm, vmi) for vm in plan.vms if (vmi := instances.get(namespace=vm.namespace, name=vm.vm))]
    violations = [*_blocked_vms(snapshot, leaving)]
    if capacity.nodes is not None and capacity.pods is not None:
        violations += _unplaced_vms(snapshot, plan.node, leaving, capacity, ratio)
    return structs.replace(plan, violations=violations)


def _blocked_vms(snapshot: Snapshot, leaving: Sequence[_Leaving]) -> Iterator[Violation]:
    """Yields the VMs that the quotas, or KubeVirt, do not let go."""
    for vm, vmi in leaving:
        reasons = [f"{fit.quota}: {fit.action}" for fit in vm.fits if not (fit.fits_then or fit.waits_for_leftover)]
        if reason := "; ".join(filter(None, [*reasons, unmigratable_reason(snapshot, vmi)])):
            yield Violation(vm.namespace, vm.vm, reason)


def _unplaced_vms(
    snapshot: Snapshot, evacuated: str | None, leaving: Sequence[_Leaving], capacity: NodeCapacity, ratio: str | None
) -> Iterator[Violation]:
    """Yields the VMs for whose target no node has capacity, when the largest are placed first, each where most memory
    is free."""
    free_by_node = {name: dict(free) for name, free in capacity.free_by_node.items() if name != evacuated}
    open_nodes = [node for node in capacity.nodes or () if node.name in free_by_node]
    targets = [(vm, *_target(snapshot, vmi, capacity, ratio)) for vm, vmi in leaving if not vm.migrates]
    for vm, requests, launcher in sorted(targets, key=lambda target: target[1].get(_MEMORY, ZERO), reverse=True):
        fitting = [
            node.name
            for node in open_nodes
            if (launcher is None or launcher.may_be_placed_on(node)) and _has_room(free_by_node[node.name], requests)
        ]
        if fitting:
            _take(free_by_node[max(fitting, key=lambda name: (free_by_node[name].get(_MEMORY, ZERO), name))], requests)
            continue
        reason = f"no other node has room for its target pod: {format_amounts(requests)}"
        if launcher and launcher.requirement:
            reason += f", and has what it requires: {launcher.requirement}"
        yield Violation(vm.namespace, vm.vm, reason)


def _target(
    snapshot: Snapshot, vmi: VirtualMachineInstance, capacity: NodeCapacity, ratio: str | None
) -> tuple[ResourceList, PlacedPod | None]:
    """Returns the target pod's requests, and the source's launcher, which requires the same of nodes."""
    source = snapshot.source_side(vmi)
    usage = target_usage(vmi, source, snapshot.rendering(vmi.namespace, ratio), _EVERYWHERE)
    requests = {name: usage[name] for name in ("requests.cpu", _MEMORY) if usage.get(name)}
    return requests, capacity.pods_by_key.get(source.launcher.key) if source else None
