"""A pod's effective requests and limits: containers, what their status says, pod level, overhead.

Source: kubernetes component-helpers resource/helpers.go, PodRequests and PodLimits, with the options of the quota
evaluator. It never looks at the pod-level resources of the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from kubeloop.api.core import Container, ContainerStatus, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from pkg.util.constants import CPU, MEMORY
from pkg.util.quotacount.releases import Release, StatusRule
from pkg.util.resource_list import ResourceList, add, add_to, maximum, parse_resource_list, total

HUGEPAGES_PREFIX = "hugepages-"


_Pick = Callable[[ResourceRequirements], RawResourceList | None]


@dataclass(frozen=True, slots=True)
class _Side:
    """Requests or limits."""

    of: _Pick
    allocated: bool
    """Whether a container's status says besides the actual amounts which are allocated."""

    def reported(self, status: ContainerStatus) -> list[RawResourceList | None]:
        """What is actual and, of requests, what is allocated."""
        actual = self.of(status.resources) if status.resources is not None else None
        return [actual, status.allocated_resources] if self.allocated else [actual]


_REQUESTS = _Side(lambda resources: resources.requests, allocated=True)
_LIMITS = _Side(lambda resources: resources.limits, allocated=False)


def pod_requests(pod: Pod, release: Release) -> ResourceList:
    """The pod's effective requests. QuantityError if a quantity is none."""
    requests = _effective(pod, _REQUESTS, release)
    return add(requests, parse_resource_list(pod.spec.overhead))


def pod_limits(pod: Pod, release: Release) -> ResourceList:
    """The pod's effective limits; the overhead is added to limits that are there and not zero."""
    limits = _effective(pod, _LIMITS, release)
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


def spec_requests(container: Container) -> ResourceList:
    """What the container's spec requests."""
    return parse_resource_list(container.resources.requests)


def spec_limits(container: Container) -> ResourceList:
    """What the container's spec limits."""
    return parse_resource_list(container.resources.limits)


def is_pod_level(name: str) -> bool:
    """Whether the resource may be given for the pod as a whole."""
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)


def _effective(pod: Pod, side: _Side, release: Release) -> ResourceList:
    statuses = [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]
    match release.container_status:
        case StatusRule.BY_CONTAINER:
            resources = _larger_by_container(pod, side, statuses)
        case StatusRule.BY_SUM:
            resources = _largest_sum(pod, side, statuses)
        case StatusRule.IGNORED:
            resources = aggregate(pod.spec, _spec(side))
    if release.pod_level_resources and pod.spec.resources is not None:
        for name, quantity in parse_resource_list(side.of(pod.spec.resources)).items():
            if is_pod_level(name):
                resources[name] = quantity
    return resources


def _spec(side: _Side) -> Callable[[Container], ResourceList]:
    return lambda container: parse_resource_list(side.of(container.resources))


def _larger_by_container(pod: Pod, side: _Side, statuses: Iterable[ContainerStatus]) -> ResourceList:
    by_name = {status.name: status for status in statuses}
    infeasible, of_spec = _resize_is_infeasible(pod), _spec(side)

    def resources_of(container: Container) -> ResourceList:
        status = by_name.get(container.name)
        if status is None or status.resources is None:
            return of_spec(container)
        reported = reduce(maximum, map(parse_resource_list, side.reported(status)))
        return reported if infeasible else maximum(of_spec(container), reported)

    return aggregate(pod.spec, resources_of, of_spec)


def _largest_sum(pod: Pod, side: _Side, statuses: Iterable[ContainerStatus]) -> ResourceList:
    by_name: dict[str, list[RawResourceList | None]] = {}
    for status in statuses:
        by_name.setdefault(status.name, side.reported(status))
    infeasible = _resize_is_infeasible(pod)
    if not infeasible and _as_in_spec(pod.spec, side, by_name):
        return aggregate(pod.spec, _spec(side))
    of_spec: Callable[[Container], ResourceList] = (lambda _: {}) if infeasible else _spec(side)

    def resources_from(first: int) -> Callable[[Container], ResourceList]:
        """What is reported from the `first` place on, else the spec."""

        def resources_of(container: Container) -> ResourceList:
            reported = by_name.get(container.name, [])[first:]
            found = next((each for each in reported if each is not None), None)
            return of_spec(container) if found is None else parse_resource_list(found)

        return resources_of

    sums = [aggregate(pod.spec, resources_from(first)) for first in range(2 if side.allocated else 1)]
    return reduce(maximum, [aggregate(pod.spec, of_spec), *sums])


def _as_in_spec(spec: PodSpec, side: _Side, by_name: Mapping[str, Sequence[RawResourceList | None]]) -> bool:
    """Whether no status says anything but the spec, as of all pods but those that are resized: all sums are alike."""
    return all(
        said is None or said == side.of(container.resources)
        for container in (*spec.containers, *(spec.init_containers or ()))
        for said in by_name.get(container.name, ())
    )


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = next((c for c in pod.status.conditions or () if c.type == "PodResizePending"), None)
    return pending is not None and pending.reason == "Infeasible"


def _of(resources: ResourceList, names: Iterable[str]) -> ResourceList:
    return {name: resources[name] for name in names if name in resources}
