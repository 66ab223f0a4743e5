"""A pod's resources: as the API server's defaulting and the LimitRanger admission plugin complete them, and the
effective requests and limits that containers, what their status says, pod level and overhead come to.

Source: kubernetes pkg/apis/core/v1/defaults.go (SetDefaults_ResourceList, SetDefaults_Pod, SetDefaults_LimitRangeItem),
pkg/api/pod/util.go (DefaultPodLevelResources) and plugin/pkg/admission/limitranger, the same from 1.30 to 1.37 but for
pod-level resources (see `releases`); component-helpers resource/helpers.go, PodRequests and PodLimits, with the options
of the quota evaluator. It never looks at the pod-level resources of the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import attrgetter

import msgspec

from kubeloop.api.core import Container, ContainerStatus, LimitRange, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawQuantity, RawResourceList
from kubeloop.api.quantity import Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList, add, add_to, maximum, parse_resource_list, total
from pkg.util.constants import CPU, MEMORY
from pkg.util.quotacount.releases import NEWEST, PodLevelDefaults, Release, StatusRule

HUGEPAGES_PREFIX = "hugepages-"
_CONTAINER = "Container"
_MILLI_IN_NANOS = 10**6

Pick = Callable[[ResourceRequirements], RawResourceList | None]
REQUESTS: Pick = attrgetter("requests")
LIMITS: Pick = attrgetter("limits")
_Reported = Sequence[RawResourceList | None]


def pod_requests(pod: Pod, release: Release) -> ResourceList:
    """The pod's effective requests. QuantityError if a quantity is none."""
    return add(_effective(pod, REQUESTS, release), parse_resource_list(pod.spec.overhead))


def pod_limits(pod: Pod, release: Release) -> ResourceList:
    """The pod's effective limits; the overhead is added to limits that are there and not zero."""
    limits = _effective(pod, LIMITS, release)
    overhead = parse_resource_list(pod.spec.overhead)
    return add(limits, {name: quantity for name, quantity in overhead.items() if limits.get(name)})


def _aggregate(
    spec: PodSpec,
    resources_of: Callable[[Container], ResourceList],
    of_plain_init: Callable[[Container], ResourceList] | None = None,
) -> ResourceList:
    """All containers together, or what the heaviest moment of the start needs, whichever is more.

    A restartable init container runs on beside the others and is added; a plain one runs beside the restartable
    ones before it, and only sets a minimum.
    """
    together = total(resources_of(container) for container in spec.containers)
    restartable: ResourceList = {}
    heaviest: ResourceList = {}
    for container in spec.init_containers or ():
        always = container.restart_policy == "Always"
        resources = resources_of(container) if always else (of_plain_init or resources_of)(container)
        if not resources:
            continue
        if always:
            add_to(together, resources)
            add_to(restartable, resources)
            beside = _of(restartable, resources)
        else:
            beside = add(resources, _of(restartable, resources))
        # Only what the container names itself becomes more: a pod may have thousands of them.
        heaviest |= maximum(_of(heaviest, beside), beside)
    return maximum(together, heaviest)


def _in_spec(pick: Pick) -> Callable[[Container], ResourceList]:
    """What the container's spec requests, or limits."""
    return lambda container: parse_resource_list(pick(container.resources))


def is_pod_level(name: str) -> bool:
    """Whether the resource may be given for the pod as a whole."""
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)


def _effective(pod: Pod, pick: Pick, release: Release) -> ResourceList:
    statuses = [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]
    rule = release.container_status
    counts = (each for each in statuses if each.resources is not None or rule is not StatusRule.BY_CONTAINER)
    reported = {status.name: _reported(status, pick) for status in counts}
    match rule:
        case StatusRule.BY_CONTAINER:
            resources = _larger_by_container(pod, pick, reported)
        case StatusRule.BY_SUM:
            resources = _largest_sum(pod, pick, reported)
        case StatusRule.IGNORED:
            resources = _aggregate(pod.spec, _in_spec(pick))
    if release.pod_level_resources and pod.spec.resources is not None:
        level = parse_resource_list(pick(pod.spec.resources))
        resources |= {name: quantity for name, quantity in level.items() if is_pod_level(name)}
    return resources


def _reported(status: ContainerStatus, pick: Pick) -> _Reported:
    """What is actual and, of requests, what is allocated."""
    actual = pick(status.resources) if status.resources is not None else None
    return [actual, status.allocated_resources] if pick is REQUESTS else [actual]


def _larger_by_container(pod: Pod, pick: Pick, reported: Mapping[str, _Reported]) -> ResourceList:
    infeasible, of_spec = _resize_is_infeasible(pod), _in_spec(pick)

    def resources_of(container: Container) -> ResourceList:
        if container.name not in reported:
            return of_spec(container)
        said = reduce(maximum, map(parse_resource_list, reported[container.name]))
        return said if infeasible else maximum(of_spec(container), said)

    return _aggregate(pod.spec, resources_of, of_spec)


def _largest_sum(pod: Pod, pick: Pick, reported: Mapping[str, _Reported]) -> ResourceList:
    infeasible = _resize_is_infeasible(pod)
    if not infeasible and _as_in_spec(pod.spec, pick, reported):
        return _aggregate(pod.spec, _in_spec(pick))
    of_spec: Callable[[Container], ResourceList] = (lambda _: {}) if infeasible else _in_spec(pick)

    def resources_from(first: int) -> Callable[[Container], ResourceList]:
        """What is reported from the `first` place on, else the spec."""

        def resources_of(container: Container) -> ResourceList:
            said = [each for each in reported.get(container.name, ())[first:] if each is not None]
            return parse_resource_list(said[0]) if said else of_spec(container)

        return resources_of

    sums = [_aggregate(pod.spec, resources_from(first)) for first in range(2 if pick is REQUESTS else 1)]
    return reduce(maximum, [_aggregate(pod.spec, of_spec), *sums])


def _as_in_spec(spec: PodSpec, pick: Pick, reported: Mapping[str, _Reported]) -> bool:
    """Whether no status says anything but the spec, as of all pods but those that are resized: all sums are alike."""
    return all(
        said is None or said == pick(container.resources)
        for container in (*spec.containers, *(spec.init_containers or ()))
        for said in reported.get(container.name, ())
    )


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = next((c for c in pod.status.conditions or () if c.type == "PodResizePending"), None)
    return pending is not None and pending.reason == "Infeasible"


def _of(resources: ResourceList, names: Iterable[str]) -> ResourceList:
    return {name: resources[name] for name in names if name in resources}


# ---- defaults ------------------------------------------------------------------------------------------------


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
    container_limits = _aggregate(spec, _in_spec(LIMITS))
    for name, quantity in container_limits.items():
        if name.startswith(HUGEPAGES_PREFIX) and name not in requests:
            limits.setdefault(name, str(quantity))
    if limits or rule is PodLevelDefaults.WHEN_CREATED:
        asked = _aggregate(spec, lambda container: _in_spec(LIMITS)(container) | _in_spec(REQUESTS)(container))
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
