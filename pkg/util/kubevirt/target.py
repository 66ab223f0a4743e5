"""A migration's target pod as quota will count it, before it exists. Pure.

KubeVirt renders the target from the same VMI spec as the source, so the source pod as quota counts it is the answer,
except for what has changed since: the overhead by another ratio, and CPUs and memory that were plugged into the VM. An
observed pod beats the formula, whose constants move between releases."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import msgspec

from kubeloop.api.core import Pod, PodSpec, ResourceQuotaSpec
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, maximum, total
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.kubevirt.compute_container import compute_container
from pkg.util.kubevirt.launcher import (
    attachment_container,
    current_containers,
    foreign_containers,
    has_hotplugged_volumes,
    is_sized,
    rendered_pod,
)
from pkg.util.kubevirt.overhead import is_resized, overhead_difference, rendered_overhead
from pkg.util.kubevirt.profiles import LARGEST
from pkg.util.kubevirt.rendering import MAX_RATIO, Rendering
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.quotacount.usage import REQUESTS_PREFIX, is_charged, is_extended, pod_usage


@dataclass(frozen=True, slots=True)
class Side:
    """A launcher pod and its attachment pod."""

    launcher: Pod
    attachments: tuple[Pod, ...] = ()

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (self.launcher, *self.attachments)


def usage_of(pods: Iterable[Pod], spec: ResourceQuotaSpec, releases: Releases = NEWEST) -> ResourceList:
    """Returns what a quota charges for these pods together."""
    return total([pod_usage(pod, releases=releases) for pod in pods if is_charged(pod, spec, releases=releases)])


def target_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """Returns what the quota will charge for the migration's target side. Raises QuantityError."""
    return add(launcher_usage(vmi, source, rendering, spec), attachments_usage(vmi, source, rendering, spec))


def source_usage_today(
    vmi: VirtualMachineInstance, source: Side, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """Returns what the quota would charge for the source side if KubeVirt rendered it today for the VM as it was then,
    with what operators decide: overhead ratio and support containers. The base pays for what a LimitRange, perhaps a
    tenant's, gives to later pods, and for a quota's limit that came after the source. Raises QuantityError."""
    limits = rendering.quota_limits - younger_limits(source.launcher, rendering)
    then = replace(rendering, limit_ranges=(), quota_limits=limits)
    launcher = launcher_usage(vmi, source, then, spec, is_grown=False)
    return add(launcher, attachments_usage(vmi, source, then, spec))


def younger_limits(launcher: Pod, rendering: Rendering) -> frozenset[str]:
    """Returns the limits ("cpu", "memory") that a launcher lacks and the next one gets, as a quota requires them."""
    compute = compute_container(launcher)
    return rendering.quota_limits.difference((compute and compute.resources.limits) or ())


def launcher_usage(
    vmi: VirtualMachineInstance,
    source: Side | None,
    rendering: Rendering,
    spec: ResourceQuotaSpec,
    *,
    is_grown: bool = True,
) -> ResourceList:
    """Returns the usage of the launcher pod that comes after the source's; empty if the quota's scopes do not match it.
    `is_grown`: with the CPUs and memory that were plugged in since."""
    if source is None:
        return usage_of([rendered_pod(vmi, rendering)], spec, rendering.kubernetes)
    pod, resized = source.launcher, is_grown and is_resized(vmi)
    if not is_charged(pod, spec, releases=rendering.kubernetes):
        return {}
    pod = _with_resize(vmi, pod, rendering) if resized else _as_of_today(vmi, pod, rendering)
    if rendering.pod_overhead:  # of the RuntimeClass that the KubeVirt CR names now; else the source pod tells
        pod = _with_spec(pod, overhead=rendering.pod_overhead)
    # What a pod lacks, a LimitRange that came after it will give to the next one.
    usage = pod_usage(apply_limit_ranges(pod, rendering.limit_ranges), releases=rendering.kubernetes)
    difference = 0 if resized else overhead_difference(vmi, source.launcher, rendering)
    if difference:
        # As it counts: nothing for a limit that a LimitRange sets, twice where KubeVirt sets it to twice the request.
        overhead = rendered_overhead(vmi, source.launcher, rendering) or 0
        pods = [rendered_pod(vmi, rendering, size) for size in (overhead, overhead + difference)]
        before, after = (pod_usage(rendered, releases=rendering.kubernetes) for rendered in pods)
        changed_names = [name for name in usage if name in before and after[name] != before[name]]
        usage = add(usage, {name: after[name] - before[name] for name in changed_names})
    return usage


def attachments_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """Returns the usage of the attachment pod of hotplugged volumes: the source's, unless the KubeVirt CR sizes it."""
    if not has_hotplugged_volumes(vmi):
        return {}
    if source is not None and source.attachments and not is_sized(constants.APP_HOTPLUG_DISK, rendering.kubevirt):
        return reduce(maximum, (usage_of([pod], spec, rendering.kubernetes) for pod in source.attachments))
    containers = [attachment_container(rendering)]
    pod = Pod(spec=PodSpec(containers=containers, priority_class_name=vmi.spec.priority_class_name))
    return usage_of([apply_limit_ranges(pod, rendering.limit_ranges)], spec, rendering.kubernetes)


def _with_resize(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """Returns the pod that the VMI's spec of today makes, with plugged CPUs and memory. What others than KubeVirt have
    put into the source they will put into the target, such as containers, and devices of networks."""
    rendered_spec, source = rendered_pod(vmi, rendering).spec, compute_container(pod)
    if source is None:
        return pod
    compute, *support_containers = rendered_spec.containers
    devices = {name: text for name, text in (source.resources.requests or {}).items() if is_extended(name)}
    resources = msgspec.structs.replace(compute.resources, requests=devices | (compute.resources.requests or {}))
    compute = msgspec.structs.replace(compute, resources=resources)
    init_containers = [*(rendered_spec.init_containers or ()), *foreign_containers(pod.spec.init_containers)]
    containers = [compute, *support_containers, *foreign_containers(pod.spec.containers)]
    return _with_spec(pod, containers=containers, init_containers=init_containers)


def _as_of_today(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """Returns the source pod with the containers that the KubeVirt CR requires now, and with limits that it lacks."""
    containers = current_containers(pod.spec.containers, vmi, rendering)
    compute, missing_names = compute_container(pod), younger_limits(pod, rendering)
    if compute and missing_names:
        rendered = rendered_pod(vmi, rendering, rendered_overhead(vmi, pod, rendering)).spec.containers[0].resources
        missing_limits = {name: text for name, text in (rendered.limits or {}).items() if name in missing_names}
        resources = msgspec.structs.replace(compute.resources, limits=(compute.resources.limits or {}) | missing_limits)
        completed = msgspec.structs.replace(compute, resources=resources)
        containers = [completed if container is compute else container for container in containers]
    init_containers = current_containers(pod.spec.init_containers or (), vmi, rendering)
    return _with_spec(pod, containers=containers, init_containers=init_containers)


def _with_spec(pod: Pod, **changed: object) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changed))


class UsageBound(NamedTuple):
    """The largest usage that one side of a VM can have."""

    launcher: ResourceList
    attachment: ResourceList


def bound_of(
    vmi: VirtualMachineInstance, rendering: Rendering, spec: ResourceQuotaSpec, launcher: Pod | None = None
) -> UsageBound:
    """Returns the usage of the VMI's own spec at the largest overhead that any known release gives at any ratio, with
    support containers and sidecars, and KubeVirt's own attachment pod; without the parts that webhooks of others put
    into launcher pods. The pod overhead of the RuntimeClass that the KubeVirt CR names for launchers is the
    `launcher`'s own: the API server sets it from that cluster object and admits no other. Raises QuantityError."""
    runtime_class = rendering.kubevirt.default_runtime_class
    if runtime_class and launcher and launcher.spec.runtime_class_name == runtime_class and launcher.spec.overhead:
        rendering = replace(rendering, pod_overhead=launcher.spec.overhead)
    pods = (rendered_pod(vmi, replace(rendering, profile=profile, ratio=str(MAX_RATIO))) for profile in LARGEST)
    largest = reduce(maximum, (pod_usage(pod, releases=rendering.kubernetes) for pod in pods))
    return UsageBound(largest, attachments_usage(vmi, None, rendering, spec))


def bounded_usage(
    usage: Mapping[str, Quantity], bound: Mapping[str, Quantity], vmi: VirtualMachineInstance
) -> ResourceList:
    """Returns `usage` as far as the bound goes. An extended resource that the VMI's spec does not name may come from
    one of its networks, whose definition is not read: at most as many as it has interfaces."""
    interfaces, bounded = Quantity.of(len(vmi.spec.domain.devices.interfaces or ())), {}
    for name, amount in usage.items():
        may_be_network = name not in bound and is_extended(name.removeprefix(REQUESTS_PREFIX))
        bounded[name] = min(amount, interfaces if may_be_network else bound.get(name, ZERO))
    return bounded
