"""What ResourceQuota counts of a pod, as kube-apiserver's quota admission and the quota controller do.

Source: kubernetes pkg/quota/v1/evaluator/core/pods.go; what differs by release stands in `releases`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce

from kubeloop.api.core import Pod, ResourceQuotaSpec, ResourceRequirements
from kubeloop.api.meta import from_rfc3339
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY, PODS, REQUESTS_CPU, REQUESTS_MEMORY
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.pod_resources import HUGEPAGES_PREFIX, pod_limits, pod_requests
from pkg.util.quotacount.releases import NEWEST, Release, Releases
from pkg.util.quotacount.scopes import matches_scopes
from pkg.util.resource_list import ResourceList, maximum, subtract

COUNT_PODS = "count/pods"
REQUESTS_PREFIX = "requests."
_EPHEMERAL_STORAGE = "ephemeral-storage"
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
_ONE = Quantity.of(1)
_REQUEST_NAMES = {
    CPU: (CPU, REQUESTS_CPU),
    MEMORY: (MEMORY, REQUESTS_MEMORY),
    _EPHEMERAL_STORAGE: (_EPHEMERAL_STORAGE, "requests.ephemeral-storage"),
}
_LIMIT_NAMES = {CPU: LIMITS_CPU, MEMORY: LIMITS_MEMORY, _EPHEMERAL_STORAGE: "limits.ephemeral-storage"}
_TO_BE_NAMED = frozenset({CPU, MEMORY, REQUESTS_CPU, REQUESTS_MEMORY, LIMITS_CPU, LIMITS_MEMORY})
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_EXTENDED = re.compile(
    rf"(?=[^/]{{1,244}}/){_LABEL}(?:\.{_LABEL})*/(?=.{{1,63}}$)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
)


def pod_usage(pod: Pod, now: float | None = None, releases: Releases = NEWEST) -> ResourceList:
    """What a quota counts of the pod, under every name that a quota may limit; of several releases the largest.

    A pod that is over (`is_live`) counts as an object only, `count/pods`. QuantityError if a quantity is none.
    """
    if not is_live(pod, now):
        return {COUNT_PODS: _ONE}
    return reduce(maximum, [_usage(pod, release) for release in releases])


def resize_usage(old: Pod, new: Pod, releases: Releases = NEWEST) -> ResourceList:
    """What quota is asked for when a pod is resized: what counts more than before. Of several releases the most; one
    that does not check resizes asks for nothing."""
    asked: ResourceList = {}
    for release in releases:
        if release.resize_is_charged:
            grown = subtract(pod_usage(new, releases=(release,)), pod_usage(old, releases=(release,)))
            asked = maximum(asked, {name: more for name, more in grown.items() if more > ZERO})
    return asked


def unnamed(pod: Pod, hard: Iterable[str]) -> list[str]:
    """What a quota limits of CPU and memory and some container does not name: such a pod is not admitted, whatever is
    left. With pod-level resources nothing: an API server without them removes them. Source: pods.go, Constraints."""
    whole = pod.spec.resources or ResourceRequirements()
    if whole.limits or whole.requests:
        return []
    named = _TO_BE_NAMED
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        limits, requests = container.resources.limits or {}, container.resources.requests or {}
        asked = {name for given in (*limits, *requests) for name in _REQUEST_NAMES.get(given, ())}  # a limit is both
        named = named & (asked | {_LIMIT_NAMES[given] for given in limits if given in _LIMIT_NAMES})
    return sorted(_TO_BE_NAMED.intersection(hard) - named)


def _usage(pod: Pod, release: Release) -> ResourceList:
    usage: ResourceList = {COUNT_PODS: _ONE, PODS: _ONE}
    for name, quantity in pod_requests(pod, release).items():
        for counted_name in _counted_names(name, release):
            usage[counted_name] = quantity
    for name, quantity in pod_limits(pod, release).items():
        if name in _LIMIT_NAMES:
            usage[_LIMIT_NAMES[name]] = quantity
    return usage


def counted(pod: Pod, spec: ResourceQuotaSpec, now: float | None = None, releases: Releases = NEWEST) -> bool:
    """Whether the quota charges the pod, in one of the releases: not over, and matched by all of the quota's scopes."""
    return is_live(pod, now) and matches_scopes(pod, spec, releases)


def is_live(pod: Pod, now: float | None = None) -> bool:
    """Whether the pod's resources count: its phase is not terminal and, where `now` (Unix seconds) is given, it
    is not stuck in deletion beyond its grace period."""
    if pod.terminal:
        return False
    deleted, grace = pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds
    if now is None or deleted is None or grace is None:
        return True
    return now <= from_rfc3339(deleted) + grace


def _counted_names(name: str, release: Release) -> Iterable[str]:
    if name in _REQUEST_NAMES:
        return _REQUEST_NAMES[name]
    if name.startswith(HUGEPAGES_PREFIX):
        return (name, REQUESTS_PREFIX + name)
    device_class = release.device_class_requests and name.startswith(DEVICE_CLASS_PREFIX)
    return (REQUESTS_PREFIX + name,) if device_class or is_extended(name) else ()


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one, such as a device: a qualified name outside kubernetes.io."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith(REQUESTS_PREFIX):
        return False
    return _EXTENDED.fullmatch(name) is not None
