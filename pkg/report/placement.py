"""Decides whether what a pod says of nodes lets it onto one: its node selector, and the required terms of its node
affinity. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from operator import gt, lt
from typing import Final

from kubeloop.api.core import Affinity, Node, Pod, PodSpec
from kubeloop.api.meta import LabelSelectorRequirement, Struct
from kubeloop.api.registry import Resource

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


def may_run_on(pod: PlacedPod, node: Node) -> bool:
    """Reports whether the node has the labels that the pod requires."""
    selected = (pod.spec.node_selector or {}).items() <= node.labels.items()
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    return selected and (not required or any(_matches(term, node) for term in required.node_selector_terms or ()))


def requirement_text(pod: PlacedPod) -> str:
    """Returns what the pod requires of its node, for people: beyond that it takes VMs."""
    labels = [
        f"{name}={value}" for name, value in sorted((pod.spec.node_selector or {}).items()) if name != SCHEDULABLE
    ]
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    return ", ".join([*labels, *["its node affinity"] * bool(affinity)])


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
