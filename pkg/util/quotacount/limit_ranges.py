"""A pod's resources after the API server's defaulting and the LimitRanger admission plugin.

Source: kubernetes pkg/apis/core/v1/defaults.go (SetDefaults_ResourceList, SetDefaults_Pod, SetDefaults_LimitRangeItem),
pkg/api/pod/util.go (DefaultPodLevelResources) and plugin/pkg/admission/limitranger, the same from 1.30 to 1.37 but for
pod-level resources: see `releases`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kubeloop.api.core import Container, LimitRange, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawQuantity, RawResourceList
from kubeloop.api.quantity import Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList
from pkg.util.constants import CPU, MEMORY
from pkg.util.quotacount.pod_resources import HUGEPAGES_PREFIX, LIMITS, REQUESTS, aggregate, in_spec, is_pod_level
from pkg.util.quotacount.releases import NEWEST, PodLevelDefaults, Release

_CONTAINER = "Container"
_MILLI_IN_NANOS = 10**6


def apply_limit_ranges(pod: Pod, limit_ranges: Iterable[LimitRange], release: Release = NEWEST[0]) -> Pod:
    """The pod as it will be when quota looks at it.

    First a request that is not given becomes the limit, then each LimitRange in turn fills what is still
    missing. Several of them: the first that has a default for a resource wins (the API server's own order is
    not defined). Pods that exist have been through this already and come out unchanged.
    """
    defaults = [_defaults(limit_range) for limit_range in limit_ranges]
    spec, rule = pod.spec, release.pod_level_defaults
    changed = msgspec.structs.replace(
        spec,
        containers=[_complete(container, defaults) for container in spec.containers],
        init_containers=[_complete(container, defaults) for container in spec.init_containers or ()] or None,
        overhead=_rounded(spec.overhead) or None,
    )
    if spec.resources is not None:
        completed = changed if rule is PodLevelDefaults.WHEN_CREATED else spec
        changed = msgspec.structs.replace(changed, resources=_pod_level(completed, rule))
    return msgspec.structs.replace(pod, spec=changed)


def default_requirements(
    limits: Mapping[str, RawQuantity] | None, requests: Mapping[str, RawQuantity] | None
) -> ResourceRequirements:
    """A container's resources on a pod: rounded, and a request that is not given equals the limit."""
    rounded = _rounded(limits)
    return ResourceRequirements(limits=rounded or None, requests=rounded | _rounded(requests) or None)


def _complete(container: Container, defaults: list[ResourceRequirements]) -> Container:
    given = default_requirements(container.resources.limits, container.resources.requests)
    limits, requests = given.limits or {}, given.requests or {}
    for default in defaults:
        limits = (default.limits or {}) | limits
        requests = (default.requests or {}) | requests
    resources = ResourceRequirements(limits=limits or None, requests=requests or None)
    return msgspec.structs.replace(container, resources=resources)


def _defaults(limit_range: LimitRange) -> ResourceRequirements:
    """What one LimitRange gives containers, as the API server completes it when it is written: `max` is the default of
    `default`, `min` and that are the default of `defaultRequest`. Of several items the last wins."""
    limits: RawResourceList = {}
    requests: RawResourceList = {}
    for item in limit_range.spec.limits:
        if item.type == _CONTAINER:
            default = _rounded(item.max) | _rounded(item.default)
            limits |= default
            requests |= _rounded(item.min) | default | _rounded(item.default_request)
    return ResourceRequirements(limits=limits, requests=requests)


def _pod_level(spec: PodSpec, rule: PodLevelDefaults) -> ResourceRequirements | None:
    """A pod's own resources, completed from its containers'; as they are where the rule says so or they are empty."""
    given = spec.resources
    if rule is PodLevelDefaults.NONE or given is None or not (given.requests or given.limits):
        return given
    requests, limits = dict(given.requests or {}), dict(given.limits or {})
    container_limits = aggregate(spec, in_spec(LIMITS))
    for name, quantity in container_limits.items():
        if name.startswith(HUGEPAGES_PREFIX) and name not in requests:
            limits.setdefault(name, str(quantity))
    if limits or rule is PodLevelDefaults.WHEN_CREATED:
        asked = aggregate(spec, lambda container: in_spec(LIMITS)(container) | in_spec(REQUESTS)(container))
        of_containers = {name: str(asked[name]) for name in (CPU, MEMORY) if name in asked}
        requests = {n: limit for n, limit in limits.items() if is_pod_level(n)} | of_containers | requests
    if rule is PodLevelDefaults.WHEN_CREATED:
        limits |= _missing_limits(spec, requests, limits, container_limits)
    return ResourceRequirements(limits=_rounded(limits) or None, requests=_rounded(requests) or None)


def _missing_limits(
    spec: PodSpec, requests: RawResourceList, limits: RawResourceList, container_limits: ResourceList
) -> RawResourceList:
    """Of what is requested and what every container limits: what the containers may have, the request at least."""
    containers = [*spec.containers, *(spec.init_containers or ())]
    names = (name for name in requests if is_pod_level(name) and name not in limits)
    limited = (name for name in names if all(name in (each.resources.limits or ()) for each in containers))
    return {name: str(max(container_limits[name], parse_wire(requests[name]))) for name in limited}


def _rounded(raw: Mapping[str, RawQuantity] | None) -> RawResourceList:
    """The list with what is finer than a thousandth rounded up; everything else as it was spelled."""
    return {name: _at_least_milli(value) for name, value in (raw or {}).items()}


def _at_least_milli(raw: RawQuantity) -> RawQuantity:
    quantity = parse_wire(raw)
    if quantity.nanos % _MILLI_IN_NANOS == 0:
        return raw
    return str(Quantity(quantity.milli_value() * _MILLI_IN_NANOS, quantity.format))
