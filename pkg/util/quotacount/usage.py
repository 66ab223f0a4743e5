"""What ResourceQuota counts of a pod, a PersistentVolumeClaim and a ResourceClaim, and which pods its scopes match.

Source: kubernetes pkg/quota/v1/evaluator/core (pods.go, persistent_volume_claims.go, resource_claims.go) and
pkg/apis/core/v1/helper/qos; what differs by release stands in `releases`."""

import re
from collections.abc import Iterable
from functools import lru_cache, reduce

from kubeloop.api import core
from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.quantity import NANOS, ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, maximum, parse_resource_list, positive, subtract, total
from pkg.util.constants import CPU, MEMORY, PODS, REQUESTS_STORAGE
from pkg.util.quotacount.pod_resources import HUGEPAGES_PREFIX, effective_requirements, is_pod_level
from pkg.util.quotacount.releases import NEWEST, Release, Releases

COUNT_PODS = "count/pods"
REQUESTS_PREFIX = "requests."
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
DEVICES_SUFFIX = ".deviceclass.resource.k8s.io/devices"
STORAGE_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
ANNOTATION_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
_ONE = Quantity.of(1)
_COMPUTE = CPU, MEMORY, "ephemeral-storage"
_REQUEST_NAMES = {name: (name, REQUESTS_PREFIX + name) for name in _COMPUTE}
_LIMIT_NAMES = {name: f"limits.{name}" for name in _COMPUTE}
_REQUIRED_NAMES = {name for part in (CPU, MEMORY) for name in (*_REQUEST_NAMES[part], _LIMIT_NAMES[part])}
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_EXTENDED = re.compile(
    rf"(?=[^/]{{1,244}}/){_LABEL}(?:\.{_LABEL})*/(?=.{{1,63}}$)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
)


def pod_usage(pod: Pod, now: float | None = None, releases: Releases = NEWEST) -> ResourceList:
    """Returns what a quota counts of the pod, under every name that a quota may limit; of several releases the largest.
    A terminated pod (not `is_live`) counts as `count/pods` alone. Raises QuantityError if a quantity is invalid."""
    if not is_live(pod, now):
        return {COUNT_PODS: _ONE}
    return reduce(maximum, [_usage(pod, release) for release in releases])


def resize_usage(old: Pod, new: Pod, releases: Releases = NEWEST) -> ResourceList:
    """Returns what a pod's resize requests of quota, its usage's increase: the most of the releases that check it."""
    charging = [(release,) for release in releases if release.resize_is_charged]
    growth = [subtract(pod_usage(new, releases=release), pod_usage(old, releases=release)) for release in charging]
    return reduce(maximum, map(positive, growth), {})


def unnamed_resources(pod: Pod, hard: Iterable[str]) -> list[str]:
    """Returns the CPU and memory names that a quota limits and some container does not set: admission denies it.
    Empty for pod-level resources: an API server without them removes them. Source: pods.go, Constraints."""
    if (pod_level := pod.spec.resources) and (pod_level.limits or pod_level.requests):
        return []
    required, missing = _REQUIRED_NAMES.intersection(hard), set[str]()
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        limits, requests = container.resources.limits or {}, container.resources.requests or {}
        # A limit counts as a request too.
        names = [name for resource in (*limits, *requests) for name in _REQUEST_NAMES.get(resource, ())]
        missing |= required.difference(names, (_LIMIT_NAMES.get(resource, "") for resource in limits))
    return sorted(missing)


def _usage(pod: Pod, release: Release) -> ResourceList:
    usage: ResourceList = {COUNT_PODS: _ONE, PODS: _ONE}
    requests, limits = effective_requirements(pod, release)
    for name, quantity in requests.items():
        if name in _COMPUTE or name.startswith(HUGEPAGES_PREFIX):
            usage |= {name: quantity, REQUESTS_PREFIX + name: quantity}
        elif is_extended(name) or (release.device_class_requests and name.startswith(DEVICE_CLASS_PREFIX)):
            usage[REQUESTS_PREFIX + name] = quantity
    return usage | {_LIMIT_NAMES[name]: quantity for name, quantity in limits.items() if name in _LIMIT_NAMES}


def is_charged(pod: Pod, spec: ResourceQuotaSpec, now: float | None = None, releases: Releases = NEWEST) -> bool:
    """Reports whether the quota charges the pod in one of the releases: it is live and matches all scopes."""
    return is_live(pod, now) and matches_scopes(pod, spec, releases)


def is_live(pod: Pod, now: float | None = None) -> bool:
    """Reports whether the pod's resources count: its phase is not terminal and, if `now` (Unix seconds) is given, it is
    not stuck in deletion beyond its grace period."""
    if pod.terminal or now is None:
        return not pod.terminal
    charge_end = charged_until(pod)
    return charge_end is None or now <= charge_end


def charged_until(pod: Pod) -> float | None:
    """Returns when a pod that is being deleted ceases to count (Unix seconds), or None if that is unknown."""
    deleted, grace = pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds
    if pod.terminal or deleted is None or grace is None:
        return None
    # Nanoseconds of 64 bits, as Go's: a grace of 438 years, which a tenant may give, is over before it begins.
    return from_rfc3339(deleted) + ((grace * NANOS + 2**63) % 2**64 - 2**63) / NANOS


@lru_cache(16384)
def is_extended(name: str) -> bool:
    """Reports whether a resource is an extended one, such as a device: a qualified name outside kubernetes.io."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith(REQUESTS_PREFIX):
        return False
    return _EXTENDED.fullmatch(name) is not None


def has_scopes(spec: ResourceQuotaSpec) -> bool:
    """Reports whether a quota counts only some of its namespace's objects."""
    return bool(spec.scopes or spec.scope_selector)


def matches_scopes(pod: Pod, spec: ResourceQuotaSpec, releases: Releases = NEWEST) -> bool:
    """Reports whether the pod matches all of the quota's scopes in one of the releases; a quota without scopes matches
    every pod. A scope that is unknown, or for other objects, matches no pod."""
    requirements = [
        core.ScopedResourceSelectorRequirement(scope_name=scope, operator="Exists") for scope in spec.scopes or ()
    ]
    if spec.scope_selector is not None:
        requirements += spec.scope_selector.match_expressions or ()
    return any(all(_matches(pod, requirement, release) for requirement in requirements) for release in releases)


def _matches(pod: Pod, requirement: core.ScopedResourceSelectorRequirement, release: Release) -> bool:
    match scope := requirement.scope_name:
        case "Terminating" | "NotTerminating":  # nothing to do with its deletion
            deadline = pod.spec.active_deadline_seconds
            return (deadline is not None and deadline >= 0) is (scope == "Terminating")
        case "BestEffort" | "NotBestEffort":
            return _is_best_effort(pod, release) is (scope == "BestEffort")
        case "CrossNamespacePodAffinity":
            return _uses_cross_namespace_affinity(pod)
        case "PriorityClass":
            return _selects(requirement, pod.spec.priority_class_name or "")
    return False


def _is_best_effort(pod: Pod, release: Release) -> bool:
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    resources = [c.resources for c in (*pod.spec.containers, *(pod.spec.init_containers or ()))]
    if release.pod_level_resources and (pod_level := pod.spec.resources) is not None:
        names = [*(pod_level.requests or ()), *(pod_level.limits or ())]
        if release.empty_pod_level_decides or any(map(is_pod_level, names)):
            resources = [pod_level]
    lists = (raw or {} for entry in resources for raw in (entry.requests, entry.limits))
    compute = [{name: text for name, text in raw.items() if name in (CPU, MEMORY)} for raw in lists]
    return not any(quantity > ZERO for raw in compute for quantity in parse_resource_list(raw).values())


def _uses_cross_namespace_affinity(pod: Pod) -> bool:
    affinity, terms = pod.spec.affinity, list[core.PodAffinityTerm]()
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if side is not None:
            preferred = side.preferred_during_scheduling_ignored_during_execution or ()
            terms += side.required_during_scheduling_ignored_during_execution or ()
            terms += [weighted.pod_affinity_term for weighted in preferred]
    return any(bool(term.namespaces) or term.namespace_selector is not None for term in terms)


def _selects(requirement: core.ScopedResourceSelectorRequirement, name: str) -> bool:
    """Reports whether the requirement selects an object whose class has that name, "" for none."""
    values = requirement.values or ()
    selects = {
        "Exists": name != "",
        "DoesNotExist": name == "",
        "In": name in values and name != "",
        "NotIn": bool(values) and name not in values,
    }
    return selects.get(requirement.operator, False)


def storage_usage(claim: core.PersistentVolumeClaim, releases: Releases = NEWEST) -> ResourceList:
    """Returns what a quota counts of a claim, also by storage class. Raises QuantityError."""
    return reduce(maximum, [_storage_usage(claim, release) for release in releases])


def _storage_usage(claim: core.PersistentVolumeClaim, release: Release) -> ResourceList:
    usage = {"persistentvolumeclaims": _ONE}
    size = parse_resource_list(claim.spec.resources.requests).get("storage")
    if size is not None:
        if release.allocated_storage:
            size = max(size, parse_resource_list(claim.status.allocated_resources).get("storage", size))
        usage[REQUESTS_STORAGE] = Quantity.of(size.value(), size.format)
    storage_class = claim.annotations.get(ANNOTATION_STORAGE_CLASS, claim.spec.storage_class_name)
    by_class = {storage_class + STORAGE_CLASS_SUFFIX + name: usage[name] for name in usage} if storage_class else {}
    return {"count/persistentvolumeclaims": _ONE} | usage | by_class


def device_usage(claim: core.ResourceClaim, release: Release) -> ResourceList:
    """Returns what a quota counts of a ResourceClaim as such. Of one that the scheduler made for a pod's extended
    resources quota charges only what the pod is not charged, which is not looked at."""
    devices_by_class = total(_devices_by_class(request, release) for request in claim.spec.devices.requests or ())
    usage = {"count/resourceclaims.resource.k8s.io": _ONE}
    usage |= {name + DEVICES_SUFFIX: quantity for name, quantity in devices_by_class.items()}
    if release.device_class_claims:
        class_amounts = positive(devices_by_class).items()
        usage |= {REQUESTS_PREFIX + DEVICE_CLASS_PREFIX + name: quantity for name, quantity in class_amounts if name}
    return usage


def _devices_by_class(request: core.DeviceRequest, release: Release) -> ResourceList:
    """Returns the devices by device class; of alternatives the most of each class."""
    if request.first_available and release.prioritized_devices:
        return positive(reduce(maximum, map(_devices_of_request, request.first_available)))
    exact = request.exactly or (request if request.device_class_name else None)
    return _devices_of_request(exact) if exact else {}


def _devices_of_request(request: core.DeviceSubRequest) -> ResourceList:
    """Returns a request's devices: one by default, as the API server completes it; all are AllocationResultsMaxSize."""
    amounts = {"ExactCount": request.count or 1, "All": 32}
    return {request.device_class_name: Quantity.of(amounts.get(request.allocation_mode or "ExactCount", 0))}
