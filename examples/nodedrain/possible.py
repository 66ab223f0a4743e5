"""What a drain of a node would mean for its VMs, and whether the cluster can do without the node; decides alone."""

from __future__ import annotations

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
    members = [each for each in nodes if _is_control_plane(each)]
    if len(members) == 1:
        raise DrainNotPossible("single control plane cluster, it cannot be placed in maintenance mode")
    if sum(MAINTAIN_STATUS not in each.annotations for each in members) != _AVAILABLE:
        raise DrainNotPossible("another control plane node is in maintenance mode already")


def last_replicas(node_name: str, replicas: Iterable[Replica]) -> Iterator[str]:
    """Volumes whose only working replica is on this node."""
    working: dict[str, list[str | None]] = defaultdict(list)
    for replica in replicas:
        if replica.status.started:
            working[replica.spec.volume_name or ""].append(replica.spec.node_id)
    return (volume for volume, places in working.items() if places == [node_name])


def not_migratable(instances: Iterable[VirtualMachineInstance]) -> dict[str, list[str]]:
    """VMs that say they cannot be migrated, by the reason that they say."""
    found: dict[str, list[str]] = defaultdict(list)
    for instance in instances:
        condition = find_condition(instance.status.conditions, "LiveMigratable")
        if condition is not None and condition.status == "False":
            found[condition.reason or ""].append(instance.key)
    return dict(found)


def without_another_node(node: Node, nodes: Iterable[Node], instances: Iterable[VirtualMachineInstance]) -> list[str]:
    """VMs that no other node is ready for, by their node affinity and node selector."""
    others = [other for other in nodes if other.name != node.name and _is_ready(other)]
    return [each.key for each in instances if not any(_fits(each, other) for other in others)]


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
    """One without requirements matches nothing, as in component-helpers."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    name = {"metadata.name": node.name}
    return bool(expressions or fields) and all(
        _holds(requirement, labels)
        for requirements, labels in ((expressions, node.labels), (fields, name))
        for requirement in requirements
    )


def _holds(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", ())
    if operator not in ("Gt", "Lt"):
        wanted = LabelSelectorRequirement(key=key, operator=operator, values=values)
        return selector(LabelSelector(match_expressions=[wanted]))(labels)
    try:
        has, limit = int(labels[key]), int(values[0])
    except (KeyError, ValueError):
        return False
    return has > limit if operator == "Gt" else has < limit
