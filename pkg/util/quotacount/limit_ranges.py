"""A pod's resources after the API server's defaulting and the LimitRanger admission plugin.

Source: kubernetes pkg/apis/core/v1/defaults.go (SetDefaults_LimitRangeItem) and
plugin/pkg/admission/limitranger; their defaults are the same from 1.30 to 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kubeloop.api.core import Container, LimitRange, LimitRangeItem, Pod, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from pkg.util.quotacount.pod_defaults import default_list, default_pod_level, default_requirements
from pkg.util.quotacount.releases import NEWEST, PodLevelDefaults, Release

_CONTAINER = "Container"


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
        init_containers=[_complete(container, defaults) for container in spec.init_containers]
        if spec.init_containers
        else spec.init_containers,
        overhead=default_list(spec.overhead) if spec.overhead else spec.overhead,
    )
    if spec.resources is not None:
        completed = changed if rule is PodLevelDefaults.WHEN_CREATED else spec
        changed = msgspec.structs.replace(changed, resources=default_pod_level(completed, rule))
    return msgspec.structs.replace(pod, spec=changed)


def _complete(container: Container, defaults: list[ResourceRequirements]) -> Container:
    given = default_requirements(container.resources)
    limits, requests = given.limits or {}, given.requests or {}
    for default in defaults:
        limits = (default.limits or {}) | limits
        requests = (default.requests or {}) | requests
    resources = ResourceRequirements(limits=limits or None, requests=requests or None)
    return msgspec.structs.replace(container, resources=resources)


def _defaults(limit_range: LimitRange) -> ResourceRequirements:
    """Container defaults of one LimitRange; of several items the last wins."""
    limits: RawResourceList = {}
    requests: RawResourceList = {}
    for item in limit_range.spec.limits:
        if item.type == _CONTAINER:
            default, default_request = _defaulted(item)
            limits |= default
            requests |= default_request
    return ResourceRequirements(limits=limits, requests=requests)


def _defaulted(item: LimitRangeItem) -> tuple[RawResourceList, RawResourceList]:
    """(default, defaultRequest) as the API server completes them when a LimitRange is written."""
    default = default_list(item.max) | default_list(item.default)
    return default, default_list(item.min) | default | default_list(item.default_request)
