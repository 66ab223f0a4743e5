"""Whether all VMs of each node could leave it: by the quotas, by KubeVirt, and by the room of the other nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from msgspec import field

from kubeloop.api.core import Node, Pod, ResourceQuotaSpec
from kubeloop.api.objects import condition_is_true
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import hinders_migration
from pkg.report.plan import MigrationPlan, VmPlan, plan_migrations
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import listed
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.sides import sides_of
from pkg.util.kubevirt.target import target_usage
from pkg.util.quotacount.usage import pod_usage

_SCHEDULABLE: Final = "kubevirt.io/schedulable"
"""KubeVirt's label of the nodes that take VMs, by which every launcher is placed (virt-handler sets it)."""
_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
_EVERYWHERE: Final = ResourceQuotaSpec()


class Violation(Document, frozen=True):
    """A VM that would stay where it is, and why."""

    namespace: str
    vm: str
    why: str


class NodeEvacuation(Document, frozen=True):
    """One node that is left by all its VMs while the others stay: each VM by itself, the quotas of all of them at once,
    and the VMs that would not move."""

    node: str
    plan: MigrationPlan
    violations: Sequence[Violation]

    def document(self) -> dict[str, Any]:
        """For JSON: the plan's VMs and quotas beside the node and its violations."""
        plan = self.plan.document()
        violations = [violation.document() for violation in self.violations]
        return {"node": self.node, "vms": plan["vms"], "together": plan.get("together", []), "violations": violations}


class Evacuation(Document, frozen=True):
    """Every node in turn. `worst` is the one that most VMs would not leave, of several the one with the most VMs; None
    without nodes. `remarks` are what was not looked at."""

    ratio: str | None = field(name="overheadRatio")
    nodes: Sequence[NodeEvacuation]
    worst: str | None
    remarks: Sequence[str]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "evacuate": "all",
            "overheadRatio": self.ratio,
            "nodes": [node.document() for node in self.nodes],
            "worst": self.worst,
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class Room:
    """What the nodes offer, and all pods of the cluster; None: they may not be read."""

    nodes: Sequence[Node] | None = None
    pods: Sequence[Pod] | None = None

    @property
    def remarks(self) -> list[str]:
        """What is not looked at."""
        missing = [name for name, found in (("nodes", self.nodes), ("pods", self.pods)) if found is None]
        if missing:
            return [f"{' and '.join(missing)} may not be listed: whether other nodes have room is not known"]
        return ["of placement only requests and taints of nodes are looked at, not selectors and affinities"]

    def of_others(self, left: str) -> dict[str, ResourceList] | None:
        """Returns what is free on each node that takes VMs but the one that is left, by the names that quota has;
        None: it is not known."""
        if self._free is None:
            return None
        return {name: dict(amounts) for name, amounts in self._free.items() if name != left}

    @cached_property
    def _free(self) -> dict[str, ResourceList] | None:
        """What is free on each node that takes VMs."""
        if self.nodes is None or self.pods is None:
            return None
        free = {node.name: _offered(node) for node in self.nodes if _takes_vms(node, self.nodes)}
        for pod in self.pods:
            if (node := pod.spec.node_name or "") in free and not pod.terminal:
                for name, amount in pod_usage(pod).items():
                    if name in free[node]:
                        free[node][name] -= amount
        return free


def evacuations(snapshot: Snapshot, room: Room, ratio: str | None = None) -> Evacuation:
    """Plan every node that has VMs. `ratio` None: as it is configured."""
    names = {trusted_status(vmi).node_name or "" for vmi in snapshot.instances} - {""}
    nodes = [evacuation(snapshot, room, name, ratio) for name in sorted(names)]
    worst = max(nodes, key=lambda found: (len(found.violations), len(found.plan.vms)), default=None)
    asked = next((found.plan.ratio for found in nodes if found.plan.ratio), ratio)
    return Evacuation(asked, nodes, worst.node if worst else None, room.remarks)


def evacuation(snapshot: Snapshot, room: Room, node: str, ratio: str | None = None) -> NodeEvacuation:
    """Plan one node."""
    plan = plan_migrations(snapshot, ratio, node)
    placed = _unplaced(snapshot, plan, room.of_others(node), ratio)
    return NodeEvacuation(node, plan, [*_kept_by_quota(snapshot, plan), *placed])


def _kept_by_quota(snapshot: Snapshot, plan: MigrationPlan) -> Iterator[Violation]:
    """Those that the quotas, or KubeVirt, let not go."""
    for vm in plan.vms:
        instance = _instance(snapshot, vm)
        reasons = [f"{fit.quota}: {fit.action}" for fit in vm.fits if not (fit.fits_then or fit.waits_for_leftover)]
        reasons += filter(None, [hinders_migration(instance)] if instance else [])
        if reasons:
            yield Violation(vm.namespace, vm.vm, "; ".join(reasons))


def _unplaced(
    snapshot: Snapshot, plan: MigrationPlan, free: dict[str, ResourceList] | None, ratio: str | None
) -> Iterator[Violation]:
    """Those for whose target no node has room, when the largest are placed first, each where most memory is free."""
    if free is None:
        return
    asked = [(_requests(snapshot, vm, ratio), vm) for vm in plan.vms if not vm.migrates]
    for requests, vm in sorted(asked, key=lambda pair: pair[0].get("requests.memory", ZERO), reverse=True):
        fitting = [name for name, left in free.items() if _has_room(left, requests)]
        if not fitting:
            yield Violation(vm.namespace, vm.vm, f"no other node has room for its target pod: {listed(requests)}")
            continue
        chosen = max(fitting, key=lambda name: (free[name].get("requests.memory", ZERO), name))
        for name, amount in requests.items():
            if name in free[chosen]:
                free[chosen][name] -= amount


def _requests(snapshot: Snapshot, vm: VmPlan, ratio: str | None) -> ResourceList:
    """What the scheduler looks at of the target pod."""
    instance = _instance(snapshot, vm)
    if instance is None:
        return {}
    rendering = snapshot.rendering(vm.namespace, ratio)
    sides = sides_of(instance, snapshot.migrations_of(vm.namespace, vm.vm), snapshot.controlled(vm.namespace))
    usage = target_usage(instance, sides.home[0] if sides.home else None, rendering, _EVERYWHERE)
    return {name: usage[name] for name in ("requests.cpu", "requests.memory") if usage.get(name)}


def _has_room(left: Mapping[str, Any], requests: ResourceList) -> bool:
    return all(amount <= left[name] for name, amount in requests.items() if name in left)


def _offered(node: Node) -> ResourceList:
    """What pods may request of it, by the names that quota has for that."""
    allocatable = parse_resource_list(node.status.allocatable or {})
    return {f"requests.{name}": amount for name, amount in allocatable.items() if name in ("cpu", "memory")}


def _takes_vms(node: Node, nodes: Iterable[Node]) -> bool:
    """Whether launchers can be placed there: KubeVirt labels the nodes, where it runs."""
    if any(_SCHEDULABLE in each.labels for each in nodes) and node.labels.get(_SCHEDULABLE) != "true":
        return False
    tainted = any(taint.effect in _KEEPS_AWAY for taint in node.spec.taints or ())
    return not node.spec.unschedulable and not tainted and condition_is_true(node.status.conditions, "Ready")


def _instance(snapshot: Snapshot, vm: VmPlan) -> VirtualMachineInstance | None:
    return snapshot.source.instances.get(namespace=vm.namespace, name=vm.vm)
