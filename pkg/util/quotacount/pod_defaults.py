"""What the API server makes of resources when it reads or creates a pod or a LimitRange.

Source: kubernetes pkg/apis/core/v1/defaults.go (SetDefaults_ResourceList, SetDefaults_Pod) and pkg/api/pod/util.go
(DefaultPodLevelResources); what differs by release stands in `releases`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.core import Container, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawQuantity, RawResourceList
from pkg.util.constants import CPU, MEMORY
from pkg.util.quantity import Quantity
from pkg.util.quotacount.pod_resources import HUGEPAGES_PREFIX, aggregate, is_pod_level, spec_limits, spec_requests
from pkg.util.quotacount.releases import PodLevelDefaults
from pkg.util.resource_list import ResourceList, parse_wire

_MILLI_IN_NANOS = 10**6


def default_list(raw: Mapping[str, RawQuantity] | None) -> RawResourceList:
    """The list with what is finer than a thousandth rounded up; everything else as it was spelled."""
    return {name: _at_least_milli(value) for name, value in (raw or {}).items()}


def default_requirements(resources: ResourceRequirements) -> ResourceRequirements:
    """A container's resources on a pod: rounded, and a request that is not given equals the limit."""
    limits = default_list(resources.limits)
    requests = default_list(resources.requests)
    for name, limit in limits.items():
        requests.setdefault(name, limit)
    return ResourceRequirements(limits=limits or None, requests=requests or None)


def default_pod_level(spec: PodSpec, rule: PodLevelDefaults) -> ResourceRequirements | None:
    """A pod's own resources, completed from its containers'; as they are where the rule says so or they are empty."""
    given = spec.resources
    if rule is PodLevelDefaults.NONE or given is None or not (given.requests or given.limits):
        return given
    requests, limits = dict(given.requests or {}), dict(given.limits or {})
    container_limits = aggregate(spec, spec_limits)
    for name, quantity in container_limits.items():
        if name.startswith(HUGEPAGES_PREFIX) and name not in requests:
            limits.setdefault(name, str(quantity))
    if limits or rule is PodLevelDefaults.WHEN_CREATED:
        _complete_requests(requests, limits, aggregate(spec, _requests_else_limits))
    if rule is PodLevelDefaults.WHEN_CREATED:
        limits |= _missing_limits(spec, requests, limits, container_limits)
    return ResourceRequirements(limits=default_list(limits) or None, requests=default_list(requests) or None)


def _complete_requests(requests: RawResourceList, limits: RawResourceList, container_requests: ResourceList) -> None:
    for name in (CPU, MEMORY):
        if name in container_requests:
            requests.setdefault(name, str(container_requests[name]))
    for name, limit in limits.items():
        if is_pod_level(name):
            requests.setdefault(name, limit)


def _missing_limits(
    spec: PodSpec, requests: RawResourceList, limits: RawResourceList, container_limits: ResourceList
) -> RawResourceList:
    """Of what is requested and what every container limits: what the containers may have, the request at least."""
    containers = [*spec.containers, *(spec.init_containers or ())]
    names = [
        name
        for name in requests
        if is_pod_level(name)
        and name not in limits
        and all(name in (container.resources.limits or ()) for container in containers)
    ]
    return {name: str(max(container_limits[name], parse_wire(requests[name]))) for name in names}


def _requests_else_limits(container: Container) -> ResourceList:
    return spec_limits(container) | spec_requests(container)


def _at_least_milli(raw: RawQuantity) -> RawQuantity:
    quantity = parse_wire(raw)
    if quantity.nanos % _MILLI_IN_NANOS == 0:
        return raw
    return str(Quantity(quantity.milli_value() * _MILLI_IN_NANOS, quantity.format))
