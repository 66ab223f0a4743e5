"""Decisions about a node's drain: its effect on VMs, and whether the cluster can do without the node. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from examples.nodedrain.kinds import Replica
from examples.nodedrain.kubevirt import VirtualMachineInstance
from kubeloop.api.core import Node, Pod
from kubeloop.api.meta import LabelSelector, LabelSelectorRequirement
from kubeloop.api.objects import condition_is_true, find_condition
from kubeloop.api.selectors import selector

MAINTAIN_STATUS = "harvesterhci.io/maintain-status"
STRATEGY = "harvesterhci.io/maintain-mode-strategy"
RESTARTED = ("ShutdownAndRestartAfterEnable", "ShutdownAndRestartAfterDisable")
SHUTDOWN = (*RESTARTED, "Shutdown")
_ROLES = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd")
_AVAILABLE = 3
"""Control plane nodes that must be there for one of them to go."""


class DrainNotPossible(Exception):
    """No later attempt will do better."""


def check_control_plane(node: Node, nodes: Iterable[Node]) -> None:
    """Raises DrainNotPossible where the control plane would not survive it."""
    if not _is_control_plane(node):
        return
    members = [member for member in nodes if _is_control_plane(member)]
    if len(members) == 1:
        raise DrainNotPossible("single control plane cluster, it cannot be placed in maintenance mode")
    if sum(MAINTAIN_STATUS not in member.annotations for member in members) != _AVAILABLE:
        raise DrainNotPossible("another control plane node is in maintenance mode already")


def last_replicas(node_name: str, replicas: Iterable[Replica]) -> Iterator[str]:
    """Volumes whose only working replica is on this node."""
    working: dict[str, list[str | None]] = defaultdict(list)
    for replica in replicas:
        if replica.status.started:
            working[replica.spec.volume_name or ""].append(replica.spec.node_id)
    return (volume for volume, places in working.items() if places == [node_name])


def not_migratable(instances: Iterable[VirtualMachineInstance]) -> dict[str, list[str]]:
    """Returns the keys of VMIs whose condition LiveMigratable is False, by the condition's reason."""
    vms_by_reason: dict[str, list[str]] = defaultdict(list)
    for instance in instances:
        condition = find_condition(instance.status.conditions, "LiveMigratable")
        if condition is not None and condition.status == "False":
            vms_by_reason[condition.reason or ""].append(instance.key)
    return dict(vms_by_reason)


def without_another_node(node: Node, nodes: Iterable[Node], instances: Iterable[VirtualMachineInstance]) -> list[str]:
    """VMs that no other node is ready for, by their node affinity and node selector."""
    other_nodes = [candidate for candidate in nodes if candidate.name != node.name and _is_ready(candidate)]
    return [vmi.key for vmi in instances if not any(_fits(vmi, candidate) for candidate in other_nodes)]


def stays(pod: Pod) -> bool:
    """Pods of VMs that are shut down are not evicted."""
    return "harvesterhci.io/vmName" in pod.labels and pod.labels.get(STRATEGY) in SHUTDOWN


def _is_control_plane(node: Node) -> bool:
    return any(role in node.labels for role in _ROLES)


def _is_ready(node: Node) -> bool:
    return not node.spec.unschedulable and condition_is_true(node.status.conditions, "Ready")


def _fits(instance: VirtualMachineInstance, node: Node) -> bool:
    affinity = instance.spec.affinity and instance.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    terms = required.get("nodeSelectorTerms", ()) if required else None
    if terms is not None and not any(_term_matches(term, node) for term in terms):
        return False
    return selector(instance.spec.node_selector or {})(node.labels)


def _term_matches(term: Mapping[str, Any], node: Node) -> bool:
    """Reports whether a node selector term matches. A term without requirements does not, as in component-helpers."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    name = {"metadata.name": node.name}
    return bool(expressions or fields) and all(
        _requirement_matches(requirement, labels)
        for requirements, labels in ((expressions, node.labels), (fields, name))
        for requirement in requirements
    )


def _requirement_matches(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", ())
    if operator not in ("Gt", "Lt"):
        label_requirement = LabelSelectorRequirement(key=key, operator=operator, values=values)
        return selector(LabelSelector(match_expressions=[label_requirement]))(labels)
    try:
        has, limit = int(labels[key]), int(values[0])
    except (KeyError, ValueError):
        return False
    return has > limit if operator == "Gt" else has < limit
