"""What quota will count of a migration's target pod, before it exists. Pure.

KubeVirt renders the target from the same VMI spec as the source, so the source pod as quota counts it is the
answer, except for the overhead's difference when the ratio was changed since, and for CPUs and memory that were
plugged into the VM since. An observed pod beats the formula: the formula's constants move between releases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import msgspec

from kubeloop.api.core import Container, Pod, PodSpec, PodStatus, ResourceQuotaSpec, ResourceRequirements
from kubeloop.api.meta import ObjectMeta, RawResourceList
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.util import constants
from pkg.util.constants import LIMITS_MEMORY, MEMORY, REQUESTS_MEMORY
from pkg.util.kubevirt.launcher import (
    HOTPLUG_DISK,
    attachment_container,
    is_kubevirts,
    is_sized,
    render_containers,
    todays_containers,
)
from pkg.util.kubevirt.migration import without_state
from pkg.util.kubevirt.observed_overhead import (
    compute_container,
    is_resized,
    overhead_difference,
    overhead_of,
    rendered_overhead,
)
from pkg.util.kubevirt.overhead import MAX_RATIO
from pkg.util.kubevirt.profiles import LARGEST
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.quotacount.usage import REQUESTS_PREFIX, apply_limit_ranges, counted, is_extended, pod_usage
from pkg.util.resource_list import ResourceList, add, maximum, total

_MEMORY_NAMES = (MEMORY, REQUESTS_MEMORY, LIMITS_MEMORY)


@dataclass(frozen=True, slots=True)
class Side:
    """One launcher pod and its attachment pod."""

    launcher: Pod
    attachments: tuple[Pod, ...] = ()

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (self.launcher, *self.attachments)


@dataclass(frozen=True, slots=True)
class OldSide:
    """A side that a migration left behind. `ended` is when that was, in seconds since the epoch, None where that is not
    known."""

    uid: str
    usage: ResourceList
    ended: float | None


def rendered_from(vmi: VirtualMachineInstance) -> list[object]:
    """All that a rendering reads of a VMI."""
    outdated = constants.LABEL_OUTDATED_LAUNCHER in vmi.labels
    plugged = is_resized(vmi), has_hotplugged_volumes(vmi)
    return [outdated, *plugged, without_state(vmi.annotations), vmi.spec, vmi.status.memory]


def instance_of(machine: VirtualMachine) -> VirtualMachineInstance:
    """What KubeVirt would make of a VM when it starts."""
    template = machine.spec.template
    labels, annotations = template.metadata.labels, template.metadata.annotations
    metadata = ObjectMeta(name=machine.name, namespace=machine.namespace, labels=labels, annotations=annotations)
    return VirtualMachineInstance(metadata=metadata, spec=template.spec)


def usage_of(pods: Iterable[Pod], spec: ResourceQuotaSpec, releases: Releases = NEWEST) -> ResourceList:
    """What a quota charges for these pods together."""
    return total([pod_usage(pod, releases=releases) for pod in pods if counted(pod, spec, releases=releases)])


def target_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """What the quota will charge for the migration's target side: launcher pod and attachment pods.

    Raises QuantityError when a quantity of the VMI is none.
    """
    return total([launcher_usage(vmi, source, rendering, spec), attachments_usage(vmi, source, rendering, spec)])


def side_as_it_was(
    vmi: VirtualMachineInstance, source: Side, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """What the quota would charge for the source side if KubeVirt rendered it today for the VM as it was then: only
    what operators decide has changed, the overhead ratio and support containers. A LimitRange may be a tenant's: what
    one gives to pods that come later, the base pays.

    Raises QuantityError when a quantity of the VMI is none.
    """
    rendering = replace(rendering, limit_ranges=())
    launcher = _same_vm_usage(vmi, source.launcher, rendering, spec)
    return total([launcher, attachments_usage(vmi, source, rendering, spec)])


def launcher_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The target's launcher pod; nothing when the quota's scopes leave it out."""
    if source is None:
        pod = rendered_pod(vmi, rendering)
        return usage_of([pod], spec, rendering.kubernetes)
    if not is_resized(vmi):
        return _same_vm_usage(vmi, source.launcher, rendering, spec)
    if not counted(source.launcher, spec, releases=rendering.kubernetes):
        return {}
    resized = _resized(vmi, source.launcher, rendering)
    return _counts(apply_limit_ranges(resized, rendering.limit_ranges), rendering)


def _same_vm_usage(
    vmi: VirtualMachineInstance, source: Pod, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The target's launcher pod of a VM that has not been resized since its source was rendered."""
    if not counted(source, spec, releases=rendering.kubernetes):
        return {}
    pod = _as_of_today(vmi, source, rendering)
    # What a pod lacks, a LimitRange that came after it will give to the next one.
    pod = apply_limit_ranges(pod, rendering.limit_ranges)
    usage = _counts(pod, rendering)
    return add(usage, _overhead_since(vmi, source, usage, rendering))


def _resized(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """The pod that the VMI's spec of today makes: KubeVirt writes plugged CPUs and memory into the spec, and the
    source was rendered before. What others than KubeVirt have put into the source they will put into the target."""
    today = rendered_pod(vmi, rendering)
    compute, source = compute_container(today), compute_container(pod)
    if compute is None or source is None:
        return pod
    known = {c.name for c in (*today.spec.containers, *(today.spec.init_containers or ()))}
    return _with_spec(
        _with_todays_overhead(pod, rendering),
        containers=[_with_added(compute, source), *_added(pod.spec.containers, today.spec.containers[1:], known)],
        init_containers=_added(pod.spec.init_containers or (), today.spec.init_containers or (), known) or None,
    )


def _added(source: Iterable[Container], today: Iterable[Container], known: Collection[str]) -> list[Container]:
    return [*today, *(c for c in source if c.name not in known and not is_kubevirts(c.name))]


def _with_added(compute: Container, source: Container) -> Container:
    """The compute container with the resources that only the source has, such as devices of networks."""
    resources = ResourceRequirements(
        limits=_devices(source.resources.limits) | (compute.resources.limits or {}),
        requests=_devices(source.resources.requests) | (compute.resources.requests or {}),
    )
    return msgspec.structs.replace(compute, resources=resources)


def _devices(resources: RawResourceList | None) -> RawResourceList:
    return {name: quantity for name, quantity in (resources or {}).items() if is_extended(name)}


def _with_spec(pod: Pod, **changed: object) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changed))


def _as_of_today(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """The source pod with the containers and limits that the KubeVirt CR and the quota ask for now."""
    pod = _with_spec(
        pod,
        containers=todays_containers(pod.spec.containers, vmi, rendering),
        init_containers=todays_containers(pod.spec.init_containers or (), vmi, rendering) or None,
    )
    return _with_todays_limits(vmi, _with_todays_overhead(pod, rendering), rendering)


def _with_todays_overhead(pod: Pod, rendering: Rendering) -> Pod:
    """The pod with what the API server adds for the RuntimeClass that the KubeVirt CR names now; where that is not
    known, the source pod tells."""
    return _with_spec(pod, overhead=rendering.pod_overhead) if rendering.pod_overhead else pod


def _with_todays_limits(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """The pod with the limits that KubeVirt gives a launcher because a quota asks for them, where it has none: the
    quota may have come after it."""
    compute = compute_container(pod)
    limits = (compute.resources.limits if compute else None) or {}
    lacking = sorted(rendering.quota_limits - limits.keys())
    if compute is None or not lacking:
        return pod
    overhead = rendered_overhead(vmi, pod, rendering)
    rendered = compute_container(rendered_pod(vmi, rendering, overhead))
    todays = (rendered.resources.limits if rendered else None) or {}
    added = {name: todays[name] for name in lacking if name in todays}
    resources = msgspec.structs.replace(compute.resources, limits=limits | added)
    changed = msgspec.structs.replace(compute, resources=resources)
    return _with_spec(pod, containers=[changed if c is compute else c for c in pod.spec.containers])


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


def attachments_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The attachment pod of hotplugged volumes, one for all: as on the source, unless the KubeVirt CR sizes it."""
    if not has_hotplugged_volumes(vmi):
        return {}
    if source is not None and source.attachments and not is_sized(HOTPLUG_DISK, rendering.kubevirt):
        return reduce(maximum, (usage_of([pod], spec, rendering.kubernetes) for pod in source.attachments))
    pod = _pod(PodSpec(containers=[attachment_container(rendering)]), vmi)
    pod = apply_limit_ranges(pod, rendering.limit_ranges)
    return usage_of([pod], spec, rendering.kubernetes)


def has_hotplugged_volumes(vmi: VirtualMachineInstance) -> bool:
    """Whether the VMI needs an attachment pod on the target: also while a volume is unplugged or memory dumped, when
    only its status says so. Source: KubeVirt pkg/controller VMIHasHotplugVolumes."""
    if any(volume.hotplug_volume is not None for volume in vmi.status.volume_status or ()):
        return True
    sources = [s for v in vmi.spec.volumes or () for s in (v.persistent_volume_claim, v.data_volume)]
    return any(source is not None and source.hotpluggable for source in sources)


def rendered_pod(vmi: VirtualMachineInstance, rendering: Rendering, overhead: int | None = None) -> Pod:
    """A migration's target as KubeVirt would render it and the API server would complete it, now or with another
    overhead (bytes)."""
    if overhead is None:
        overhead = overhead_of(vmi, rendering).at(rendering.ratio).value()
    rendered = render_containers(vmi, rendering, overhead=overhead, digests_known=True)
    pod = _pod(rendered, vmi)
    pod = _with_spec(
        pod,
        overhead=rendering.pod_overhead or None,
        runtime_class_name=rendering.kubevirt.default_runtime_class or None,
    )
    return apply_limit_ranges(pod, rendering.limit_ranges)


def largest_launcher(vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    """The most that a launcher pod of this VMI's spec can count under each name, whichever known release rendered it,
    at whichever ratio. What webhooks of others put into launcher pods is not in it."""
    largest: ResourceList = {}
    for profile in LARGEST:
        at_most = replace(rendering, profile=profile, ratio=str(MAX_RATIO))
        largest = maximum(largest, _counts(rendered_pod(vmi, at_most), rendering))
    return largest


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one side of a VM can count: its launcher pod and its attachment pod."""

    launcher: ResourceList
    attachment: ResourceList


def bound_of(
    vmi: VirtualMachineInstance, rendering: Rendering, spec: ResourceQuotaSpec, launcher: Pod | None = None
) -> Bound:
    """What the VMI's own spec renders to at the largest overhead that any known release gives at any ratio, with
    support containers and sidecars, and KubeVirt's own attachment pod. The pod overhead of the RuntimeClass that the
    KubeVirt CR names for launchers is the `launcher`'s own: the API server sets it from the RuntimeClass, a cluster
    object, and admits no pod that says otherwise (its RuntimeClass admission plugin).

    Raises QuantityError when a quantity of the VMI is none.
    """
    named = rendering.kubevirt.default_runtime_class
    if named and launcher and launcher.spec.runtime_class_name == named and launcher.spec.overhead:
        rendering = replace(rendering, pod_overhead=launcher.spec.overhead)
    return Bound(largest_launcher(vmi, rendering), attachments_usage(vmi, None, rendering, spec))


def within(usage: Mapping[str, Quantity], bound: Mapping[str, Quantity], vmi: VirtualMachineInstance) -> ResourceList:
    """`usage` as far as the bound goes. An extended resource that the VMI's spec does not name may come from one of
    its networks, whose definition is not read: as many as it has interfaces."""
    interfaces = Quantity.of(len(vmi.spec.domain.devices.interfaces or ()))

    def most(name: str) -> Quantity:
        from_network = name not in bound and is_extended(name.removeprefix(REQUESTS_PREFIX))
        return interfaces if from_network else bound.get(name, ZERO)

    return {name: min(amount, most(name)) for name, amount in usage.items()}


def _counts(pod: Pod, rendering: Rendering) -> ResourceList:
    return pod_usage(pod, releases=rendering.kubernetes)


def _pod(spec: PodSpec, vmi: VirtualMachineInstance) -> Pod:
    priority, init_containers = vmi.spec.priority_class_name, spec.init_containers or None
    return Pod(
        metadata=ObjectMeta(name=f"virt-launcher-{vmi.name}", namespace=vmi.namespace),
        spec=msgspec.structs.replace(spec, init_containers=init_containers, priority_class_name=priority),
        status=PodStatus(phase="Pending"),
    )
