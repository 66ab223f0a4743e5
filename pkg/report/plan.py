"""Plans which VMs could migrate, at today's overhead ratio or another one, and what would be added for them; and
whether the quotas, KubeVirt and the capacity of the other nodes let all VMs leave a node. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec import field, structs

from kubeloop.api.core import Affinity, Node, Pod, PodSpec, ResourceQuotaSpec
from kubeloop.api.meta import LabelSelector
from kubeloop.api.objects import condition_is_true
from kubeloop.api.quantity import ZERO
from kubeloop.api.registry import Resource
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from kubeloop.api.selectors import selector
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.explain import unmigratable_reason, vm_notes
from pkg.report.fit import Fit, fits
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.evidence import is_running, trusted_status
from pkg.util.kubevirt.migration import is_finished, is_refused
from pkg.util.kubevirt.target import target_usage
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.facts import Cache

_MEMORY: Final = "requests.memory"
_Planned = tuple["VmPlan", VirtualMachineInstance]
SCHEDULABLE: Final = "kubevirt.io/schedulable"
"""KubeVirt's label of the nodes that take VMs, by which every launcher is placed (virt-handler sets it)."""


class VmPlan(Document, frozen=True):
    """The plan of one VM by itself; one that `migrates` already has none: whether its target fits at today's ratio, at
    the one that was asked about, and there once headroom has done what it does; `fits` are at that ratio."""

    namespace: str
    vm: str
    node: str | None
    migrates: bool
    fits_now: bool
    fits_at_ratio: bool
    fits_with_headroom: bool
    fits: Sequence[Fit] = field(name="quotas")
    notes: Sequence[str]


class Violation(Document, frozen=True):
    namespace: str
    vm: str
    why: str


class MigrationPlan(Document, frozen=True):
    """The plan of several VMs. `together` has the namespaces' quotas when all the VMs of an evacuated node migrate at
    once, `violations` those that would not move."""

    ratio: str | None = field(name="overheadRatio")
    node: str | None = field(name="evacuate")
    vms: Sequence[VmPlan]
    together: Sequence[Fit] = ()
    violations: Sequence[Violation] = ()


class Evacuation(Document, frozen=True):
    """The evacuation of every node in turn while the others stay. `worst` is the node that most VMs would not leave, of
    several the one with the most VMs; None if no node has VMs. `remarks` name what is not looked at."""

    ratio: str | None = field(name="overheadRatio")
    nodes: Sequence[MigrationPlan]
    worst: str | None
    remarks: Sequence[str]

    def document(self) -> dict[str, Any]:
        document = super().document()
        nodes = [{**plan, "node": plan["evacuate"]} for plan in document["nodes"]]
        return {"evacuate": "all", **document, "nodes": nodes}


def plan_migrations(snapshot: Snapshot) -> MigrationPlan:
    return MigrationPlan(snapshot.ratio_in_use, None, [vm for vm, _ in _plans(snapshot, snapshot.instances)])


def _plans(snapshot: Snapshot, instances: Iterable[VirtualMachineInstance]) -> Iterator[_Planned]:
    configured = replace(snapshot, ratio=None, cache=Cache())  # one cache would hold one ratio's values at a time
    active = {(m.namespace, m.spec.vmi_name): m for m in snapshot.migrations if not is_finished(m)}
    running = (vmi for vmi in instances if is_running(vmi) and not vmi.deleting)
    for vmi in sorted(running, key=lambda vmi: vmi.key):
        namespace, name, node = vmi.namespace, vmi.name, trusted_status(vmi).node_name or None
        if migration := active.get((namespace, name)):
            note = "waits for quota" if is_refused(migration) else f"phase {migration.phase or 'unset'}"
            yield VmPlan(namespace, name, node, True, True, True, True, (), [note]), vmi
            continue
        ratio_fits = fits(snapshot, namespace, [vmi], would=True)
        now_fits = ratio_fits if snapshot.ratio is None else fits(configured, namespace, [vmi], would=True)
        fits_now, fits_at_ratio = (all(fit.fits for fit in quota_fits) for quota_fits in (now_fits, ratio_fits))
        fits_then, notes = all(fit.fits_then for fit in ratio_fits), vm_notes(snapshot, vmi)
        yield VmPlan(namespace, name, node, False, fits_now, fits_at_ratio, fits_then, ratio_fits, notes), vmi


class PlacedAffinity(Affinity):
    node_affinity: dict[str, Any] | None = None


class PlacedPodSpec(PodSpec):
    """core/v1 PodSpec with what the scheduler reads of nodes: too much for the caches of the processes."""

    node_selector: dict[str, str] | None = None
    affinity: PlacedAffinity | None = None


class PlacedPod(Pod):
    spec: PlacedPodSpec = PlacedPodSpec()

    @property
    def terms(self) -> list[dict[str, Any]] | None:
        """The terms of node affinity of which a node has to fulfil one; None for a pod without."""
        affinity = self.spec.affinity and self.spec.affinity.node_affinity
        required = affinity and affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        return required["nodeSelectorTerms"] if required else None

    def may_be_placed_on(self, node: Node) -> bool:
        is_selected = selector(self.spec.node_selector or {})(node.labels)
        return is_selected and (self.terms is None or any(_fulfils(term, node) for term in self.terms))

    @property
    def requirement(self) -> str:
        """Returns for people what the pod requires of its node, except that it takes VMs."""
        pairs = sorted((self.spec.node_selector or {}).items())
        labels = [f"{name}={value}" for name, value in pairs if name != SCHEDULABLE]
        return ", ".join([*labels, *(["its node affinity"] if self.terms is not None else ())])


PLACED_PODS = Resource("", "v1", "pods", "Pod", PlacedPod)


def _fulfils(term: Mapping[str, Any], node: Node) -> bool:
    """Reports whether a node fulfils a term of node affinity; none an empty one, nor what labels' selectors lack."""
    requirements = msgspec.convert(term, LabelSelector)
    try:
        is_readable = bool(requirements.match_expressions) and not term.get("matchFields")
        return is_readable and selector(requirements)(node.labels)
    except ValueError:  # Gt, Lt
        return False


@dataclass(frozen=True)
class NodeCapacity:
    """The nodes and all pods of the cluster; None if they may not be read."""

    nodes: Sequence[Node] | None = None
    pods: Sequence[PlacedPod] | None = None

    @property
    def remarks(self) -> list[str]:
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
            tainted = any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.spec.taints or ())
            is_ready = condition_is_true(node.status.conditions, "Ready") and not (tainted or node.spec.unschedulable)
            if is_ready and (not is_labelled or node.labels.get(SCHEDULABLE) == "true"):
                allocatable = parse_resource_list(node.status.allocatable or {}).items()
                free_by_node[node.name] = {f"requests.{name}": amount for name, amount in allocatable}
        for pod in self.pods or ():
            if pod.spec.node_name in free_by_node and not pod.terminal:
                _take(free_by_node[pod.spec.node_name], pod_usage(pod))
        return free_by_node


def _take(free: ResourceList, requests: ResourceList) -> None:
    free |= {name: free[name] - amount for name, amount in requests.items() if name in free}


def evacuations(snapshot: Snapshot, capacity: NodeCapacity) -> Evacuation:
    names = {trusted_status(vmi).node_name or "" for vmi in snapshot.instances} - {""}
    nodes = plan_evacuations(snapshot, names, capacity)
    worst = max(nodes, key=lambda node: (len(node.violations), len(node.vms)), default=None)
    return Evacuation(snapshot.ratio_in_use, nodes, worst.node if worst else None, capacity.remarks)


def plan_evacuations(snapshot: Snapshot, nodes: Collection[str], capacity: NodeCapacity) -> list[MigrationPlan]:
    """Plans the VMs of each of these nodes, by themselves and all at once while the other nodes stay."""
    leaving: dict[str, list[_Planned]] = {node: [] for node in sorted(nodes)}
    for vm, vmi in _plans(snapshot, (vmi for vmi in snapshot.instances if trusted_status(vmi).node_name in leaving)):
        leaving[vm.node or ""].append((vm, vmi))
    plans = []
    for node, pairs in leaving.items():
        by_namespace = groupby(pairs, lambda pair: pair[0].namespace)
        together = [fit for namespace, group in by_namespace for fit in _together(snapshot, namespace, list(group))]
        violations, unplaced = list[Violation](), dict(_unplaced_vms(snapshot, node, pairs, capacity))
        for vm, vmi in pairs:
            blocking = [
                f"{fit.quota}: {fit.action}" for fit in vm.fits if not (fit.fits_then or fit.waits_for_leftover)
            ]
            reasons = filter(None, [*blocking, unmigratable_reason(snapshot, vmi), unplaced.get(vmi.key, "")])
            if reason := "; ".join(reasons):
                violations.append(Violation(vm.namespace, vm.vm, reason))
        plans.append(MigrationPlan(snapshot.ratio_in_use, node, [vm for vm, _ in pairs], together, violations))
    return plans


def _together(snapshot: Snapshot, namespace: str, leaving: Sequence[_Planned]) -> list[Fit]:
    quota_fits = fits(snapshot, namespace, [vmi for vm, vmi in leaving if not vm.migrates], would=True)
    if snapshot.source.budgets.list(namespace):  # a window at a time: none has to fit beside another
        all_fit, action = all(vm.fits_with_headroom for vm, _ in leaving), "one VM after another, under a lock each"
        quota_fits = [structs.replace(fit, fits_then=all_fit, action=action) for fit in quota_fits]
    return quota_fits


def _unplaced_vms(
    snapshot: Snapshot, evacuated: str, leaving: Sequence[_Planned], capacity: NodeCapacity
) -> Iterator[tuple[str, str]]:
    """Yields the VMs, by key, for whose target no node has capacity, and why: the largest are placed first, each where
    most memory is free. The target requires of its node what the source's launcher does."""
    if capacity.nodes is None or capacity.pods is None:
        return
    free_by_node = {name: dict(free) for name, free in capacity.free_by_node.items() if name != evacuated}
    nodes, targets = {node.name: node for node in capacity.nodes}, []
    for vm, vmi in leaving:
        if vm.migrates:
            continue
        source = snapshot.source_side(vmi)
        usage = target_usage(vmi, source, snapshot.source.rendering(vmi.namespace), ResourceQuotaSpec())
        requests = {name: usage[name] for name in ("requests.cpu", _MEMORY) if usage.get(name)}
        targets.append((vmi.key, requests, capacity.pods_by_key.get(source.launcher.key) if source else None))
    for key, requests, launcher in sorted(targets, key=lambda target: target[1].get(_MEMORY, ZERO), reverse=True):
        fitting = [
            (free.get(_MEMORY, ZERO), name)
            for name, free in free_by_node.items()
            if all(amount <= free.get(resource, amount) for resource, amount in requests.items())
            and (launcher is None or launcher.may_be_placed_on(nodes[name]))
        ]
        if fitting:
            _take(free_by_node[max(fitting)[1]], requests)
            continue
        reason = f"no other node has room for its target pod: {format_amounts(requests)}"
        if launcher and launcher.requirement:
            reason += f", and has what it requires: {launcher.requirement}"
        yield key, reason
