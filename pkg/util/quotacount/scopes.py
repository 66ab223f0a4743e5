"""Which pods a quota's scopes match.

Source: kubernetes pkg/quota/v1/evaluator/core/pods.go and pkg/apis/core/v1/helper/qos; what differs by release stands
in `releases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kubeloop.api.core import (
    Pod,
    PodAffinityTerm,
    ResourceQuotaSpec,
    ResourceRequirements,
    ScopedResourceSelectorRequirement,
)
from pkg.util.constants import CPU, MEMORY
from pkg.util.quantity import ZERO
from pkg.util.quotacount.pod_resources import is_pod_level
from pkg.util.quotacount.releases import NEWEST, Release, Releases
from pkg.util.resource_list import parse_resource_list

_EXISTS = "Exists"


def has_scopes(spec: ResourceQuotaSpec) -> bool:
    """Whether a quota counts some of its namespace's objects only."""
    return bool(spec.scopes or spec.scope_selector)


def matches_scopes(pod: Pod, spec: ResourceQuotaSpec, releases: Releases = NEWEST) -> bool:
    """Whether the pod matches all of the quota's scopes in one of the releases; a quota without any matches every pod.
    A scope that is unknown, or for other objects, matches no pod."""
    wanted = [ScopedResourceSelectorRequirement(scope_name=scope, operator=_EXISTS) for scope in spec.scopes or ()]
    if spec.scope_selector is not None:
        wanted += spec.scope_selector.match_expressions or ()
    return any(all(_matches(pod, requirement, release) for requirement in wanted) for release in releases)


def is_terminating(pod: Pod) -> bool:
    """Whether the pod ends by itself at a deadline; nothing to do with its deletion."""
    deadline = pod.spec.active_deadline_seconds
    return deadline is not None and deadline >= 0


def is_best_effort(pod: Pod, release: Release) -> bool:
    """Whether the pod's QoS class is BestEffort, reported or worked out: no cpu or memory asked for at all."""
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    resources = [c.resources for c in (*pod.spec.containers, *(pod.spec.init_containers or ()))]
    if release.pod_level_resources and (pod_level := pod.spec.resources) is not None:
        names = [*(pod_level.requests or ()), *(pod_level.limits or ())]
        if release.empty_pod_level_decides or any(map(is_pod_level, names)):
            resources = [pod_level]
    return not any(_asks_for_compute(entry) for entry in resources)


def uses_cross_namespace_affinity(pod: Pod) -> bool:
    """Whether a pod (anti-)affinity looks into other namespaces."""
    affinity = pod.spec.affinity
    sides = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ()
    terms: list[PodAffinityTerm] = []
    for side in sides:
        if side is not None:
            preferred = side.preferred_during_scheduling_ignored_during_execution or ()
            terms += side.required_during_scheduling_ignored_during_execution or ()
            terms += [weighted.pod_affinity_term for weighted in preferred]
    return any(bool(term.namespaces) or term.namespace_selector is not None for term in terms)


_SCOPES: Mapping[str, Callable[[Pod, Release], bool]] = {
    "Terminating": lambda pod, _: is_terminating(pod),
    "NotTerminating": lambda pod, _: not is_terminating(pod),
    "BestEffort": is_best_effort,
    "NotBestEffort": lambda pod, release: not is_best_effort(pod, release),
    "CrossNamespacePodAffinity": lambda pod, _: uses_cross_namespace_affinity(pod),
}


def _matches(pod: Pod, requirement: ScopedResourceSelectorRequirement, release: Release) -> bool:
    if requirement.scope_name == "PriorityClass":
        return _selects(requirement, pod.spec.priority_class_name or "")
    matches = _SCOPES.get(requirement.scope_name)
    return matches is not None and matches(pod, release)


def _selects(requirement: ScopedResourceSelectorRequirement, name: str) -> bool:
    """Whether the requirement selects what has a class of that name, "" for none."""
    values = requirement.values or ()
    selects = {
        "Exists": name != "",
        "DoesNotExist": name == "",
        "In": name in values and name != "",
        "NotIn": bool(values) and name not in values,
    }
    return selects.get(requirement.operator, False)


def _asks_for_compute(resources: ResourceRequirements) -> bool:
    for raw in (resources.requests, resources.limits):
        quantities = parse_resource_list({name: raw[name] for name in (CPU, MEMORY) if raw and name in raw})
        if any(quantity > ZERO for quantity in quantities.values()):
            return True
    return False
