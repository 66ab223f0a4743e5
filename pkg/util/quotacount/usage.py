"""What ResourceQuota counts of a pod, as kube-apiserver's quota admission and the quota controller do.

Source: kubernetes pkg/quota/v1/evaluator/core/pods.go and component-helpers resource/helpers.go, 1.34 with its
default feature gates (pod-level resources and in-place resize are on).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from kubeloop.api.core import Container, ContainerStatus, Pod, ResourceQuotaSpec, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY, PODS, REQUESTS_CPU, REQUESTS_MEMORY
from pkg.util.quantity import Quantity
from pkg.util.quotacount.limit_ranges import apply_limit_ranges
from pkg.util.quotacount.scopes import matches_scopes
from pkg.util.resource_list import ResourceList, add, add_to, maximum, parse_resource_list, total

__all__ = ["apply_limit_ranges", "counted", "pod_limits", "pod_requests", "pod_usage"]

COUNT_PODS = "count/pods"
REQUESTS_PREFIX = "requests."
HUGEPAGES_PREFIX = "hugepages-"
_EPHEMERAL_STORAGE = "ephemeral-storage"
_ONE = Quantity.of(1)
_REQUEST_NAMES = {
    CPU: (CPU, REQUESTS_CPU),
    MEMORY: (MEMORY, REQUESTS_MEMORY),
    _EPHEMERAL_STORAGE: (_EPHEMERAL_STORAGE, "requests.ephemeral-storage"),
}
_LIMIT_NAMES = {CPU: LIMITS_CPU, MEMORY: LIMITS_MEMORY, _EPHEMERAL_STORAGE: "limits.ephemeral-storage"}
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_EXTENDED = re.compile(
    rf"(?=[^/]{{1,244}}/){_LABEL}(?:\.{_LABEL})*/(?=.{{1,63}}$)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
)

_Pick = Callable[[ResourceRequirements], RawResourceList | None]


def pod_usage(pod: Pod, now: float | None = None) -> ResourceList:
    """What a quota counts of the pod, under every name that a quota may limit.

    A pod that is over (`is_live`) counts as an object only, `count/pods`. QuantityError if a quantity is none.
    """
    if not is_live(pod, now):
        return {COUNT_PODS: _ONE}
    usage: ResourceList = {COUNT_PODS: _ONE, PODS: _ONE}
    for name, quantity in pod_requests(pod).items():
        for counted_name in _counted_names(name):
            usage[counted_name] = quantity
    for name, quantity in pod_limits(pod).items():
        if name in _LIMIT_NAMES:
            usage[_LIMIT_NAMES[name]] = quantity
    return usage


def counted(pod: Pod, spec: ResourceQuotaSpec, now: float | None = None) -> bool:
    """Whether the quota charges the pod: not over, and matched by all of the quota's scopes."""
    return is_live(pod, now) and matches_scopes(pod, spec)


def is_live(pod: Pod, now: float | None = None) -> bool:
    """Whether the pod's resources count: its phase is not terminal and, where `now` (Unix seconds) is given, it
    is not stuck in deletion beyond its grace period."""
    if pod.terminal:
        return False
    deleted, grace = pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds
    if now is None or deleted is None or grace is None:
        return True
    return now <= datetime.fromisoformat(deleted).timestamp() + grace


def pod_requests(pod: Pod) -> ResourceList:
    """The pod's effective requests: containers, init containers, pod level, overhead."""
    requests = _aggregate(pod, lambda resources: resources.requests, _requests_in_force)
    requests |= _pod_level(pod, lambda resources: resources.requests)
    return add(requests, parse_resource_list(pod.spec.overhead))


def pod_limits(pod: Pod) -> ResourceList:
    """The pod's effective limits; the overhead is added to limits that are there and not zero."""
    limits = _aggregate(pod, lambda resources: resources.limits, _limits_in_force)
    limits |= _pod_level(pod, lambda resources: resources.limits)
    overhead = parse_resource_list(pod.spec.overhead)
    return add(limits, {name: quantity for name, quantity in overhead.items() if limits.get(name)})


def _counted_names(name: str) -> Iterable[str]:
    if name in _REQUEST_NAMES:
        return _REQUEST_NAMES[name]
    if name.startswith(HUGEPAGES_PREFIX):
        return (name, REQUESTS_PREFIX + name)
    return (REQUESTS_PREFIX + name,) if is_extended(name) else ()


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one, such as a device: a qualified name outside kubernetes.io."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith(REQUESTS_PREFIX):
        return False
    return _EXTENDED.fullmatch(name) is not None


_InForce = Callable[[ResourceList, ContainerStatus, bool], ResourceList]


def _aggregate(pod: Pod, pick: _Pick, in_force: _InForce) -> ResourceList:
    """All containers together, or what the heaviest moment of the start needs, whichever is more.

    A restartable init container runs on beside the others and is added; a plain one runs beside the restartable
    ones before it, and only sets a minimum.
    """
    infeasible = _resize_is_infeasible(pod)

    def resources_of(container: Container, statuses: Mapping[str, ContainerStatus]) -> ResourceList:
        resources = parse_resource_list(pick(container.resources))
        status = statuses.get(container.name)
        if status is None or status.resources is None:
            return resources
        return in_force(resources, status, infeasible)

    statuses = {
        s.name: s
        for s in [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]
    }
    together = total(resources_of(container, statuses) for container in pod.spec.containers)
    restartable: ResourceList = {}
    heaviest: ResourceList = {}
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            resources = resources_of(container, statuses)
            add_to(together, resources)
            add_to(restartable, resources)
            beside = _of(restartable, resources)
        else:
            resources = resources_of(container, {})
            beside = add(resources, _of(restartable, resources))
        # Only what the container names itself becomes more: a pod may have thousands of them.
        heaviest |= maximum(_of(heaviest, beside), beside)
    return maximum(together, heaviest)


def _of(resources: ResourceList, names: Iterable[str]) -> ResourceList:
    return {name: resources[name] for name in names if name in resources}


def _requests_in_force(spec: ResourceList, status: ContainerStatus, infeasible: bool) -> ResourceList:
    actual = status.resources.requests if status.resources else None
    in_force = maximum(parse_resource_list(actual), parse_resource_list(status.allocated_resources))
    return in_force if infeasible else maximum(spec, in_force)


def _limits_in_force(spec: ResourceList, status: ContainerStatus, infeasible: bool) -> ResourceList:
    actual = parse_resource_list(status.resources.limits if status.resources else None)
    return actual if infeasible else maximum(spec, actual)


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = [c for c in pod.status.conditions or () if c.type == "PodResizePending"]
    return bool(pending) and pending[0].reason == "Infeasible"


def _pod_level(pod: Pod, pick: _Pick) -> ResourceList:
    """The pod-level resources, which stand for what the containers sum up to."""
    if pod.spec.resources is None:
        return {}
    resources = parse_resource_list(pick(pod.spec.resources))
    return {
        name: quantity
        for name, quantity in resources.items()
        if name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)
    }
