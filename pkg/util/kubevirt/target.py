"""What quota will count of a migration's target pod, before it exists. Pure.

KubeVirt renders the target from the same VMI spec as the source, so the source pod as quota counts it is the
answer, except for the overhead's difference when the ratio was changed since, and for CPUs and memory that were
plugged into the VM since. An observed pod beats the formula: the formula's constants move between releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import msgspec

from kubeloop.api.core import Container, Pod, ResourceQuotaSpec
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, maximum, total
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.constants import LIMITS_MEMORY, MEMORY, REQUESTS_MEMORY
from pkg.util.kubevirt.compute_container import compute_container
from pkg.util.kubevirt.launcher import (
    HOTPLUG_DISK,
    attachment_pod,
    has_hotplugged_volumes,
    is_kubevirts,
    is_sized,
    rendered_pod,
    todays_containers,
)
from pkg.util.kubevirt.overhead import is_resized, overhead_difference, rendered_overhead
from pkg.util.kubevirt.profiles import LARGEST
from pkg.util.kubevirt.rendering import MAX_RATIO, Rendering
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.quotacount.usage import REQUESTS_PREFIX, counted, is_extended, pod_usage

_MEMORY_NAMES = (MEMORY, REQUESTS_MEMORY, LIMITS_MEMORY)


@dataclass(frozen=True, slots=True)
class Side:
    """One launcher pod and its attachment pod."""

    launcher: Pod
    attachments: tuple[Pod, ...] = ()

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (self.launcher, *self.attachments)


def usage_of(pods: Iterable[Pod], spec: ResourceQuotaSpec, releases: Releases = NEWEST) -> ResourceList:
    """What a quota charges for these pods together."""
    return total([pod_usage(pod, releases=releases) for pod in pods if counted(pod, spec, releases=releases)])


def target_usage(
    vmi: VirtualMachineInstance,
    source: Side | None,
    rendering: Rendering,
    spec: ResourceQuotaSpec,
    *,
    resized: bool | None = None,
) -> ResourceList:
    """What the quota will charge for the migration's target side: launcher pod and attachment pods. `resized` is
    `launcher_usage`'s.

    Raises QuantityError when a quantity of the VMI is none.
    """
    launcher = launcher_usage(vmi, source, rendering, spec, resized=resized)
    return add(launcher, attachments_usage(vmi, source, rendering, spec))


def side_as_it_was(
    vmi: VirtualMachineInstance, source: Side, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """What the quota would charge for the source side if KubeVirt rendered it today for the VM as it was then: only
    what operators decide has changed, the overhead ratio and support containers. What a LimitRange, perhaps a tenant's,
    gives to pods that come later, and a quota's limit that came after the source, the base pays.

    Raises QuantityError when a quantity of the VMI is none.
    """
    limits = rendering.quota_limits - limits_since(source.launcher, rendering)
    return target_usage(vmi, source, replace(rendering, limit_ranges=(), quota_limits=limits), spec, resized=False)


def limits_since(launcher: Pod, rendering: Rendering) -> frozenset[str]:
    """The limits ("cpu", "memory") that a launcher lacks and KubeVirt gives the next one, because a quota asks for
    them now."""
    compute = compute_container(launcher)
    return rendering.quota_limits.difference((compute and compute.resources.limits) or ())


def launcher_usage(
    vmi: VirtualMachineInstance,
    source: Side | None,
    rendering: Rendering,
    spec: ResourceQuotaSpec,
    *,
    resized: bool | None = None,
) -> ResourceList:
    """The launcher pod that comes after the source's; nothing when the quota's scopes leave it out. `resized`: whether
    CPUs or memory were plugged in, which the source has not; None: as the VMI says."""
    if source is None:
        return usage_of([rendered_pod(vmi, rendering)], spec, rendering.kubernetes)
    pod, resized = source.launcher, is_resized(vmi) if resized is None else resized
    if not counted(pod, spec, releases=rendering.kubernetes):
        return {}
    pod = _resized(vmi, pod, rendering) if resized else _as_of_today(vmi, pod, rendering)
    if rendering.pod_overhead:  # of the RuntimeClass that the KubeVirt CR names now; else the source pod tells
        pod = _with_spec(pod, overhead=rendering.pod_overhead)
    # What a pod lacks, a LimitRange that came after it will give to the next one.
    usage = _counts(apply_limit_ranges(pod, rendering.limit_ranges), rendering)
    return usage if resized else add(usage, _overhead_since(vmi, source.launcher, usage, rendering))


def attachments_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The attachment pod of hotplugged volumes, one for all: as on the source, unless the KubeVirt CR sizes it."""
    if not has_hotplugged_volumes(vmi):
        return {}
    if source is not None and source.attachments and not is_sized(HOTPLUG_DISK, rendering.kubevirt):
        return reduce(maximum, (usage_of([pod], spec, rendering.kubernetes) for pod in source.attachments))
    return usage_of([attachment_pod(vmi, rendering)], spec, rendering.kubernetes)


# ---- from the source pod -------------------------------------------------------------------------------------


def _resized(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """The pod that the VMI's spec of today makes: KubeVirt writes plugged CPUs and memory into the spec, and the
    source was rendered before. What others than KubeVirt have put into the source they will put into the target, such
    as containers, and devices of networks."""
    today = rendered_pod(vmi, rendering).spec
    source = compute_container(pod)
    if source is None:
        return pod
    compute, *beside = today.containers
    devices = {name: text for name, text in (source.resources.requests or {}).items() if is_extended(name)}
    resources = msgspec.structs.replace(compute.resources, requests=devices | (compute.resources.requests or {}))
    return _with_spec(
        pod,
        containers=[msgspec.structs.replace(compute, resources=resources), *beside, *_others(pod.spec.containers)],
        init_containers=[*(today.init_containers or ()), *_others(pod.spec.init_containers or ())],
    )


def _others(containers: Iterable[Container]) -> list[Container]:
    return [each for each in containers if not is_kubevirts(each.name)]


def _as_of_today(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """The source pod with the containers that the KubeVirt CR asks for now, and the limits that KubeVirt gives a
    launcher because a quota asks for them: the quota may have come after it."""
    containers = todays_containers(pod.spec.containers, vmi, rendering)
    compute = compute_container(pod)
    lacking = limits_since(pod, rendering)
    if compute and lacking:
        today = rendered_pod(vmi, rendering, rendered_overhead(vmi, pod, rendering)).spec.containers[0]
        added = {name: text for name, text in (today.resources.limits or {}).items() if name in lacking}
        resources = msgspec.structs.replace(compute.resources, limits=(compute.resources.limits or {}) | added)
        changed = msgspec.structs.replace(compute, resources=resources)
        containers = [changed if each is compute else each for each in containers]
    init_containers = todays_containers(pod.spec.init_containers or (), vmi, rendering)
    return _with_spec(pod, containers=containers, init_containers=init_containers)


def _overhead_since(
    vmi: VirtualMachineInstance, pod: Pod, usage: Mapping[str, Quantity], rendering: Rendering
) -> ResourceList:
    """What today's overhead makes of each name that the source counts under: nothing of a limit that a
    LimitRange sets, twice the difference of one that KubeVirt sets to twice the request."""
    difference = overhead_difference(vmi, pod, rendering)
    if not difference:
        return {}
    rendered = rendered_overhead(vmi, pod, rendering) or 0
    before = _counts(rendered_pod(vmi, rendering, rendered), rendering)
    after = _counts(rendered_pod(vmi, rendering, rendered + difference), rendering)
    return {name: after[name] - before[name] for name in _MEMORY_NAMES if name in usage and name in before}


def _with_spec(pod: Pod, **changed: object) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changed))


def _counts(pod: Pod, rendering: Rendering) -> ResourceList:
    return pod_usage(pod, releases=rendering.kubernetes)


# ---- what is believed of a pod -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one side of a VM can count: its launcher pod and its attachment pod."""

    launcher: ResourceList
    attachment: ResourceList


def bound_of(
    vmi: VirtualMachineInstance, rendering: Rendering, spec: ResourceQuotaSpec, launcher: Pod | None = None
) -> Bound:
    """What the VMI's own spec renders to at the largest overhead that any known release gives at any ratio, with
    support containers and sidecars, and KubeVirt's own attachment pod; what webhooks of others put into launcher pods
    is not in it. The pod overhead of the RuntimeClass that the KubeVirt CR names for launchers is the `launcher`'s
    own: the API server sets it from the RuntimeClass, a cluster object, and admits no pod that says otherwise (its
    RuntimeClass admission plugin).

    Raises QuantityError when a quantity of the VMI is none.
    """
    named = rendering.kubevirt.default_runtime_class
    if named and launcher and launcher.spec.runtime_class_name == named and launcher.spec.overhead:
        rendering = replace(rendering, pod_overhead=launcher.spec.overhead)
    every = (replace(rendering, profile=profile, ratio=str(MAX_RATIO)) for profile in LARGEST)
    largest = reduce(maximum, (_counts(rendered_pod(vmi, at_most), rendering) for at_most in every))
    return Bound(largest, attachments_usage(vmi, None, rendering, spec))


def within(usage: Mapping[str, Quantity], bound: Mapping[str, Quantity], vmi: VirtualMachineInstance) -> ResourceList:
    """`usage` as far as the bound goes. An extended resource that the VMI's spec does not name may come from one of
    its networks, whose definition is not read: as many as it has interfaces."""
    interfaces = Quantity.of(len(vmi.spec.domain.devices.interfaces or ()))

    def most(name: str) -> Quantity:
        from_network = name not in bound and is_extended(name.removeprefix(REQUESTS_PREFIX))
        return interfaces if from_network else bound.get(name, ZERO)

    return {name: min(amount, most(name)) for name, amount in usage.items()}
