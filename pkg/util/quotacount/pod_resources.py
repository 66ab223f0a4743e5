"""A pod's resources: as the API server's defaulting and LimitRanger complete them, and the effective requests and
limits that containers, their status, pod level and overhead come to.

Source: kubernetes pkg/apis/core/v1/defaults.go (SetDefaults_ResourceList, SetDefaults_Pod, SetDefaults_LimitRangeItem),
pkg/api/pod/util.go (DefaultPodLevelResources) and plugin/pkg/admission/limitranger, the same from 1.30 to 1.37 but for
pod-level resources (see `releases`); component-helpers resource/helpers.go, PodRequests and PodLimits, with the options
of the quota evaluator. It never looks at the pod-level resources of the status."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from operator import attrgetter

import msgspec

from kubeloop.api.core import Container, LimitRange, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawQuantity, RawResourceList
from kubeloop.api.quantity import ZERO, Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList, add, add_to, maximum, parse_resource_list, total
from pkg.util.constants import CPU, MEMORY
from pkg.util.quotacount.releases import NEWEST, PodLevelDefaults, Release, StatusRule

HUGEPAGES_PREFIX = "hugepages-"
_MILLI_IN_NANOS = 10**6

Pick = Callable[[ResourceRequirements], RawResourceList | None]
REQUESTS: Pick = attrgetter("requests")
LIMITS: Pick = attrgetter("limits")
_View = Callable[[Container], ResourceList]


def effective_requirements(pod: Pod, release: Release) -> tuple[ResourceList, ResourceList]:
    """Returns the effective requests and limits; limits have the overhead unless zero. Raises QuantityError."""
    requests, limits = (
        reduce(maximum, [_aggregate(pod.spec, view) for view in _views(pod, pick, release.container_status)])
        for pick in (REQUESTS, LIMITS)
    )
    if release.pod_level_resources and (level := pod.spec.resources) is not None:
        requests |= parse_resource_list(_of_pod_level(level.requests))
        limits |= parse_resource_list(_of_pod_level(level.limits))
    overhead = parse_resource_list(pod.spec.overhead)
    return add(requests, overhead), add(limits, {name: overhead[name] for name in overhead if limits.get(name)})


def _aggregate(spec: PodSpec, view: _View) -> ResourceList:
    """Returns the sum of all containers, or what the heaviest moment of the start needs: a restartable init container
    is added to the others; a plain one runs beside the restartable ones before it, and only sets a minimum."""
    steady_total = total(view(container) for container in spec.containers)
    restartable_total: ResourceList = {}
    heaviest_start: ResourceList = {}
    for container in spec.init_containers or ():
        resources = view(container)
        if container.restart_policy == "Always":
            add_to(steady_total, resources)
            add_to(restartable_total, resources)
            concurrent_total = _select(restartable_total, resources)
        else:
            concurrent_total = add(resources, _select(restartable_total, resources))
        # Only what the container names itself becomes more: a pod may have thousands of them.
        heaviest_start |= maximum(_select(heaviest_start, concurrent_total), concurrent_total)
    return maximum(steady_total, heaviest_start)


def _select(resources: ResourceList, names: Iterable[str]) -> ResourceList:
    return {name: resources[name] for name in names if name in resources}


def is_pod_level(name: str) -> bool:
    """Reports whether the resource may be set for the pod as a whole."""
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)


def _of_pod_level(raw: RawResourceList | None) -> RawResourceList:
    """Returns the list without the names that the API server refuses there: a tenant may send thousands."""
    return {name: value for name, value in (raw or {}).items() if is_pod_level(name)}


def _spec_view(pick: Pick) -> _View:
    return lambda container: parse_resource_list(pick(container.resources))


def _views(pod: Pod, pick: Pick, rule: StatusRule) -> list[_View]:
    """Returns the views of a container of whose sums the largest counts: one, where the status agrees with the spec."""
    reported = {} if rule is StatusRule.IGNORED else _reported_lists(pod, pick, rule)
    pending = next((c for c in pod.status.conditions or () if c.type == "PodResizePending"), None)
    infeasible = pending is not None and pending.reason == "Infeasible"
    of_spec = _spec_view(pick)
    if not infeasible and all(
        amounts in (None, pick(container.resources))
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        for amounts in reported.get(container.name, ())
    ):
        return [of_spec]

    def of_possible_spec(container: Container) -> ResourceList:
        return {} if infeasible else of_spec(container)

    def larger(container: Container) -> ResourceList:
        if container.name not in reported:
            return of_spec(container)
        return reduce(maximum, map(parse_resource_list, reported[container.name]), of_possible_spec(container))

    def first_reported(start: int, container: Container) -> ResourceList:
        lists = [amounts for amounts in reported.get(container.name, ())[start:] if amounts is not None]
        return parse_resource_list(lists[0]) if lists else of_possible_spec(container)

    if rule is not StatusRule.BY_SUM:
        return [larger]
    return [of_possible_spec, *(partial(first_reported, start) for start in range(2 if pick is REQUESTS else 1))]


def _reported_lists(pod: Pod, pick: Pick, rule: StatusRule) -> Mapping[str, list[RawResourceList | None]]:
    """Returns, by container, its actual resources and, for requests, the allocated ones, as far as the rule looks."""
    statuses = [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]
    if rule is StatusRule.BY_CONTAINER:
        plain = {container.name for container in pod.spec.init_containers or () if container.restart_policy != "Always"}
        statuses = [status for status in statuses if status.resources is not None and status.name not in plain]
    return {
        status.name: [
            pick(status.resources) if status.resources is not None else None,
            *([status.allocated_resources] if pick is REQUESTS else []),
        ]
        for status in statuses
    }


def apply_limit_ranges(pod: Pod, limit_ranges: Iterable[LimitRange], release: Release = NEWEST[0]) -> Pod:
    """Returns the pod as it will be when quota admission looks at it; existing pods come out unchanged. First, an unset
    request becomes the limit, then each LimitRange in turn, whose order the API server does not define, fills what is
    still missing."""
    defaults = _container_defaults(limit_ranges)
    spec, rule = pod.spec, release.pod_level_defaults
    completed_spec = msgspec.structs.replace(
        spec,
        containers=[_complete(container, defaults) for container in spec.containers],
        init_containers=[_complete(container, defaults) for container in spec.init_containers or ()] or None,
        overhead=_round_up(spec.overhead) or None,
    )
    if spec.resources is not None:
        level_source = completed_spec if rule is PodLevelDefaults.WHEN_CREATED else spec
        completed_spec = msgspec.structs.replace(completed_spec, resources=_pod_level_resources(level_source, rule))
    return msgspec.structs.replace(pod, spec=completed_spec)


def default_requirements(
    limits: Mapping[str, RawQuantity] | None, requests: Mapping[str, RawQuantity] | None
) -> ResourceRequirements:
    """Returns a container's resources on a pod: rounded, and an unset request equals the limit."""
    rounded = _round_up(limits)
    return ResourceRequirements(limits=rounded or None, requests=rounded | _round_up(requests) or None)


def _complete(container: Container, defaults: tuple[RawResourceList, RawResourceList]) -> Container:
    own = default_requirements(container.resources.limits, container.resources.requests)
    limits, requests = defaults[0] | (own.limits or {}), defaults[1] | (own.requests or {})
    resources = ResourceRequirements(limits=limits or None, requests=requests or None)
    return msgspec.structs.replace(container, resources=resources)


def _container_defaults(limit_ranges: Iterable[LimitRange]) -> tuple[RawResourceList, RawResourceList]:
    """Returns the default limits and requests of containers: `max` is the default of `default`; `min` and `default` are
    those of `defaultRequest`. Of several items the last wins, of several LimitRanges the first."""
    limits: RawResourceList = {}
    requests: RawResourceList = {}
    items = (item for limit_range in reversed([*limit_ranges]) for item in limit_range.spec.limits)
    for item in items:
        if item.type == "Container":
            default = _round_up(item.max) | _round_up(item.default)
            limits |= default
            requests |= _round_up(item.min) | default | _round_up(item.default_request)
    return limits, requests


def _pod_level_resources(spec: PodSpec, rule: PodLevelDefaults) -> ResourceRequirements | None:
    """Returns a pod's own resources, completed from its containers' as the rule says."""
    level = spec.resources
    if rule is PodLevelDefaults.NONE or level is None or not (level.requests or level.limits):
        return level
    requests, limits = _of_pod_level(level.requests), _of_pod_level(level.limits)
    container_limits = _aggregate(spec, _spec_view(LIMITS))
    for name, quantity in container_limits.items():
        if name.startswith(HUGEPAGES_PREFIX) and name not in requests:
            limits.setdefault(name, str(quantity))
    if limits or rule is PodLevelDefaults.WHEN_CREATED:
        container_sums = _aggregate(spec, lambda c: _spec_view(LIMITS)(c) | _spec_view(REQUESTS)(c))
        container_requests = {name: str(container_sums[name]) for name in (CPU, MEMORY) if name in container_sums}
        requests = limits | container_requests | requests
    if rule is PodLevelDefaults.WHEN_CREATED:  # what is requested and every container limits: at least the request
        lists = [c.resources.limits or {} for c in (*spec.containers, *(spec.init_containers or ()))]
        missing = [name for name in requests if name not in limits and all(name in listed for listed in lists)]
        limits |= {name: str(max(container_limits.get(name, ZERO), parse_wire(requests[name]))) for name in missing}
    return ResourceRequirements(limits=_round_up(limits) or None, requests=_round_up(requests) or None)


def _round_up(raw: Mapping[str, RawQuantity] | None) -> RawResourceList:
    """Returns the list with amounts finer than a thousandth rounded up; all others as they were spelled."""
    rounded = dict(raw or {})
    for name, value in (raw or {}).items():
        quantity = parse_wire(value)
        if quantity.nanos % _MILLI_IN_NANOS:
            rounded[name] = str(Quantity(quantity.milli_value() * _MILLI_IN_NANOS, quantity.format))
    return rounded
