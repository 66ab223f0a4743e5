"""A pod's effective requests and limits: containers, what their status says, pod level, overhead.

Source: kubernetes component-helpers resource/helpers.go, PodRequests and PodLimits, with the options of the quota
evaluator. It never looks at the pod-level resources of the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import attrgetter

from kubeloop.api.core import Container, ContainerStatus, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from kubeloop.api.resource_list import ResourceList, add, add_to, maximum, parse_resource_list, total
from pkg.util.constants import CPU, MEMORY
from pkg.util.quotacount.releases import Release, StatusRule

HUGEPAGES_PREFIX = "hugepages-"


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


def aggregate(
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
        if container.restart_policy == "Always":
            resources = resources_of(container)
            add_to(together, resources)
            add_to(restartable, resources)
            beside = _of(restartable, resources)
        else:
            resources = (of_plain_init or resources_of)(container)
            beside = add(resources, _of(restartable, resources))
        # Only what the container names itself becomes more: a pod may have thousands of them.
        heaviest |= maximum(_of(heaviest, beside), beside)
    return maximum(together, heaviest)


def in_spec(pick: Pick) -> Callable[[Container], ResourceList]:
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
            resources = aggregate(pod.spec, in_spec(pick))
    if release.pod_level_resources and pod.spec.resources is not None:
        level = parse_resource_list(pick(pod.spec.resources))
        resources |= {name: quantity for name, quantity in level.items() if is_pod_level(name)}
    return resources


def _reported(status: ContainerStatus, pick: Pick) -> _Reported:
    """What is actual and, of requests, what is allocated."""
    actual = pick(status.resources) if status.resources is not None else None
    return [actual, status.allocated_resources] if pick is REQUESTS else [actual]


def _larger_by_container(pod: Pod, pick: Pick, reported: Mapping[str, _Reported]) -> ResourceList:
    infeasible, of_spec = _resize_is_infeasible(pod), in_spec(pick)

    def resources_of(container: Container) -> ResourceList:
        if container.name not in reported:
            return of_spec(container)
        said = reduce(maximum, map(parse_resource_list, reported[container.name]))
        return said if infeasible else maximum(of_spec(container), said)

    return aggregate(pod.spec, resources_of, of_spec)


def _largest_sum(pod: Pod, pick: Pick, reported: Mapping[str, _Reported]) -> ResourceList:
    infeasible = _resize_is_infeasible(pod)
    if not infeasible and _as_in_spec(pod.spec, pick, reported):
        return aggregate(pod.spec, in_spec(pick))
    of_spec: Callable[[Container], ResourceList] = (lambda _: {}) if infeasible else in_spec(pick)

    def resources_from(first: int) -> Callable[[Container], ResourceList]:
        """What is reported from the `first` place on, else the spec."""

        def resources_of(container: Container) -> ResourceList:
            said = [each for each in reported.get(container.name, ())[first:] if each is not None]
            return parse_resource_list(said[0]) if said else of_spec(container)

        return resources_of

    sums = [aggregate(pod.spec, resources_from(first)) for first in range(2 if pick is REQUESTS else 1)]
    return reduce(maximum, [aggregate(pod.spec, of_spec), *sums])


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
