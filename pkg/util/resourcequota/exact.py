"""What quota will count of a migration's target pod, before it exists. Pure.

KubeVirt renders the target from the same VMI spec as the source, so the source pod as quota counts it is the
answer, except for the overhead's difference when the ratio was changed since, and for CPUs and memory that were
plugged into the VM since. An observed pod beats the formula: the formula's constants move between releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from cachetools import LRUCache

from pkg.api.core import Container, Pod, PodSpec, PodStatus, ResourceQuotaSpec, ResourceRequirements
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.api.meta import ObjectMeta, RawResourceList, condition_is_true
from pkg.util import constants
from pkg.util.compute_container import ComputeOptions, compute_resources
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY, REQUESTS_MEMORY
from pkg.util.launcher_pod import (
    HOTPLUG_DISK,
    attachment_container,
    is_sized,
    render_containers,
    resized_containers,
)
from pkg.util.memory_overhead import PROFILES, OverheadProfile, memory_overhead
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import (
    ResourceList,
    add,
    format_resource_list,
    maximum,
    parse_resource_list,
    total,
)
from pkg.util.resourcequota.model import Rendering
from pkg.util.resourcequota.sides import Side
from pkg.util.resourcequota.usage import apply_limit_ranges, counted, pod_usage

_MEMORY_NAMES = (MEMORY, REQUESTS_MEMORY, LIMITS_MEMORY)
_RATIO_DECIMALS = range(3)
"""People choose ratios like 1.5 or 2.25: a ratio is recognised by the overhead it gives."""
_UNKNOWN_CONSTANTS = 64 * 1024**2
"""How far, in bytes before the ratio, an unknown release's constants are believed to be from the known ones."""
_SHRINKS = 8 * 1024**2
"""How much smaller, likewise."""
_USUAL_RATIOS = (1.5, 1.0)
"""What Harvester and KubeVirt come with."""
COMPUTE = "compute"


def usage_of(pods: Iterable[Pod], spec: ResourceQuotaSpec) -> ResourceList:
    """What a quota charges for these pods together."""
    return total([_usage(pod) for pod in pods if counted(pod, spec)])


def target_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """What the quota will charge for the migration's target side: launcher pod and attachment pods.

    Raises QuantityError when a quantity of the VMI is none.
    """
    return total(
        [launcher_usage(vmi, source, rendering, spec), attachments_usage(vmi, source, rendering, spec)]
    )


_USAGE_CACHE: LRUCache[tuple[str, str], ResourceList] = LRUCache(maxsize=16384)
# A decision about a namespace looks at all its pods again and again; one version of a pod always counts the same.


def _usage(pod: Pod) -> ResourceList:
    version = (pod.uid, pod.metadata.resource_version)
    if not all(version):
        return pod_usage(pod)
    if version not in _USAGE_CACHE:
        _USAGE_CACHE[version] = pod_usage(pod)
    return _USAGE_CACHE[version]


def launcher_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The target's launcher pod; nothing when the quota's scopes leave it out."""
    if source is None:
        pod = rendered_pod(vmi, rendering, spec)
        return pod_usage(pod) if counted(pod, spec) else {}
    if not counted(source.launcher, spec):
        return {}
    pod = _with_todays_support(vmi, source.launcher, rendering)
    if is_resized(vmi):
        return pod_usage(apply_limit_ranges(_resized(vmi, pod, rendering, spec), rendering.limit_ranges))
    # What a pod lacks, a LimitRange that came after it will give to the next one.
    pod = _with_todays_limits(vmi, pod, rendering, spec)
    pod = apply_limit_ranges(pod, rendering.limit_ranges)
    usage = pod_usage(pod)
    return add(usage, _overhead_since(vmi, source.launcher, usage, rendering, spec))


def is_resized(vmi: VirtualMachineInstance) -> bool:
    """Whether the VM waits for CPUs or memory that were plugged in: the next migration's target has them."""
    conditions = vmi.status.conditions
    return any(
        condition_is_true(conditions, change)
        for change in (constants.CONDITION_CPU_CHANGE, constants.CONDITION_MEMORY_CHANGE)
    )


def _resized(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering, spec: ResourceQuotaSpec) -> Pod:
    """The pod with a compute container for the VMI's spec of today: KubeVirt writes plugged CPUs and memory into
    the spec, and the source was rendered before."""
    today = memory_overhead(
        vmi.spec, ratio=rendering.ratio, arch=architecture(vmi), profile=rendering.profile
    )
    annotated = _annotated_overhead(pod)
    rendered = _compute(
        rendered_pod(vmi, rendering, spec, today if annotated is None else max(today, annotated))
    )
    compute = _compute(pod)
    if compute is None or rendered is None:
        return pod
    limits = _larger(compute.resources.limits, rendered.resources.limits)
    requests = _larger(compute.resources.requests, rendered.resources.requests)
    return _with_compute(pod, compute, ResourceRequirements(limits=limits, requests=requests))


def _larger(a: RawResourceList | None, b: RawResourceList | None) -> RawResourceList:
    return dict(format_resource_list(maximum(parse_resource_list(a), parse_resource_list(b))))


def _with_compute(pod: Pod, compute: Container, resources: ResourceRequirements) -> Pod:
    changed = msgspec.structs.replace(compute, resources=resources)
    containers = [changed if container is compute else container for container in pod.spec.containers]
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=containers))


def _with_todays_support(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Pod:
    """The pod with its support containers as the KubeVirt CR sizes them now."""
    kubevirt = rendering.kubevirt
    if not kubevirt.support_container_resources:
        return pod
    today = render_containers(vmi, overhead=0, kubevirt=kubevirt)
    spec = msgspec.structs.replace(
        pod.spec,
        containers=resized_containers(pod.spec.containers, today, kubevirt),
        init_containers=resized_containers(pod.spec.init_containers or (), today, kubevirt) or None,
    )
    return msgspec.structs.replace(pod, spec=spec)


def _with_todays_limits(
    vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering, spec: ResourceQuotaSpec
) -> Pod:
    """The pod with the limits that KubeVirt gives a launcher because a quota asks for them, where it has none: the
    quota may have come after it."""
    compute = _compute(pod)
    limits = (compute.resources.limits if compute else None) or {}
    lacking = [name for name in _limited(spec) if name not in limits]
    if compute is None or not lacking:
        return pod
    overhead = rendered_overhead(vmi, pod, rendering.kubevirt)
    rendered = _compute(rendered_pod(vmi, rendering, spec, overhead))
    todays = (rendered.resources.limits if rendered else None) or {}
    added = {name: todays[name] for name in lacking if name in todays}
    return _with_compute(pod, compute, msgspec.structs.replace(compute.resources, limits=limits | added))


def _limited(spec: ResourceQuotaSpec) -> list[str]:
    """Of cpu and memory what the quota limits: KubeVirt then limits every launcher."""
    return [
        name for name, limit in ((CPU, LIMITS_CPU), (MEMORY, LIMITS_MEMORY)) if limit in (spec.hard or {})
    ]


def _compute(pod: Pod) -> Container | None:
    return next((c for c in pod.spec.containers if c.name == COMPUTE), None)


def _overhead_since(
    vmi: VirtualMachineInstance,
    pod: Pod,
    usage: Mapping[str, Quantity],
    rendering: Rendering,
    spec: ResourceQuotaSpec,
) -> ResourceList:
    """What today's overhead makes of each name that the source counts under: nothing of a limit that a
    LimitRange sets, twice the difference of one that KubeVirt sets to twice the request."""
    difference = overhead_difference(vmi, pod, rendering)
    if not difference:
        return {}
    rendered = rendered_overhead(vmi, pod, rendering.kubevirt) or 0
    before = pod_usage(rendered_pod(vmi, rendering, spec, rendered))
    after = pod_usage(rendered_pod(vmi, rendering, spec, rendered + difference))
    return {name: after[name] - before[name] for name in _MEMORY_NAMES if name in usage and name in before}


def attachments_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The attachment pods of hotplugged volumes: as on the source, unless the KubeVirt CR sizes them; else one."""
    if not has_hotplugged_volumes(vmi):
        return {}
    if source is not None and source.attachments and not is_sized(HOTPLUG_DISK, rendering.kubevirt):
        return usage_of(source.attachments, spec)
    pod = _pod([attachment_container(rendering.kubevirt)], [], vmi)
    pod = apply_limit_ranges(pod, rendering.limit_ranges)
    return pod_usage(pod) if counted(pod, spec) else {}


def has_hotplugged_volumes(vmi: VirtualMachineInstance) -> bool:
    """Whether the VMI needs an attachment pod on the target."""
    sources = [s for v in vmi.spec.volumes or () for s in (v.persistent_volume_claim, v.data_volume)]
    return any(source is not None and source.hotpluggable for source in sources)


def rendered_pod(
    vmi: VirtualMachineInstance, rendering: Rendering, spec: ResourceQuotaSpec, overhead: int | None = None
) -> Pod:
    """The launcher pod as KubeVirt would render it and the API server would complete it, now or with another
    overhead (bytes)."""
    if overhead is None:
        overhead = memory_overhead(
            vmi.spec, ratio=rendering.ratio, arch=architecture(vmi), profile=rendering.profile
        )
    rendered = render_containers(
        vmi,
        overhead=overhead,
        kubevirt=rendering.kubevirt,
        quota_limits=_limited(spec),
        memory_limits_ratio=rendering.memory_limits_ratio,
    )
    pod = _pod(rendered.containers, rendered.init_containers, vmi)
    return apply_limit_ranges(pod, rendering.limit_ranges)


def architecture(vmi: VirtualMachineInstance) -> str:
    """The VMI's architecture, KubeVirt's default when it names none."""
    return vmi.spec.architecture or "amd64"


def overhead_difference(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int:
    """Bytes by which a launcher pod rendered now has more overhead than `pod` was rendered with.

    Zero when the ratio has not changed since, whatever the release's constants are. Otherwise the constants are
    those under which the pod's own overhead comes out for some ratio; for constants nobody knows the result is
    rather too large than too small. A launcher that KubeVirt calls outdated is followed by one of the installed
    release.
    """
    rendered = rendered_overhead(vmi, pod, rendering.kubevirt)
    if rendered is None:
        return 0

    def overhead(profile: OverheadProfile, ratio: str) -> int:
        return memory_overhead(vmi.spec, ratio=ratio, arch=architecture(vmi), profile=profile)

    if constants.LABEL_OUTDATED_LAUNCHER in vmi.labels:
        return overhead(rendering.profile, rendering.ratio) - rendered
    # A release that knows no ratio gives any VM what a newer one gives it without.
    others = [p for p in PROFILES.values() if p.has_ratio or not rendering.ratio]
    profiles = [rendering.profile, *(p for p in others if p != rendering.profile)]
    if any(overhead(profile, rendering.ratio) == rendered for profile in profiles):
        return 0
    for decimals in _RATIO_DECIMALS:
        for profile in profiles:
            plain = overhead(profile, "")
            ratio = f"{1 + (rendered - plain) / plain:.{decimals}f}" if plain else ""
            if overhead(profile, ratio) == rendered:
                return overhead(profile, rendering.ratio) - rendered
    near = (rendering.profile, PROFILES["main"])
    return _with_unknown_constants(
        rendered, [overhead(p, "") for p in near], overhead(rendering.profile, rendering.ratio), rendering
    )


def _with_unknown_constants(rendered: int, plain: list[int], now: int, rendering: Rendering) -> int:
    """The pod's overhead fits no known release: near to what it would be now it counts as unchanged.

    Else it was rendered with the ratio that Harvester or KubeVirt starts with, if its constants are then near to
    the known ones (`plain`, without ratio); they grow from release to release. Else nobody knows.
    """
    ratio = float(rendering.ratio or 1)
    slack = int(_UNKNOWN_CONSTANTS * ratio)
    if abs(rendered - now) <= slack:
        return 0
    for usual in _USUAL_RATIOS:
        constants_then = int(rendered / usual)
        if min(plain) - _SHRINKS <= constants_then <= max(plain) + _UNKNOWN_CONSTANTS:
            return int(constants_then * ratio) + _UNKNOWN_CONSTANTS - rendered
    usual = _USUAL_RATIOS[0]
    return max(now + slack, int(rendered / usual * ratio) + _UNKNOWN_CONSTANTS) - rendered


def rendered_overhead(vmi: VirtualMachineInstance, pod: Pod, kubevirt: KubeVirtConfiguration) -> int | None:
    """Bytes of overhead in a launcher pod: what its annotation says, else what its compute container has more
    than KubeVirt would give it without any; None where neither tells."""
    annotated = _annotated_overhead(pod)
    if annotated is not None:
        return annotated
    compute = _compute(pod)
    if compute is None:
        return None
    limits, requests = compute_resources(vmi, kubevirt, ComputeOptions(overhead=ZERO))
    for of_pod, without in ((compute.resources.limits, limits), (compute.resources.requests, requests)):
        have = parse_resource_list(of_pod).get(MEMORY, ZERO)
        if MEMORY in without and have > without[MEMORY]:
            return (have - without[MEMORY]).value()
    return None


def _annotated_overhead(pod: Pod) -> int | None:
    annotated = pod.annotations.get(constants.ANNOTATION_MEMORY_OVERHEAD, "")
    return int(annotated) if annotated.isdecimal() else None


def _pod(containers: list[Container], init_containers: list[Container], vmi: VirtualMachineInstance) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=f"virt-launcher-{vmi.name}", namespace=vmi.namespace),
        spec=PodSpec(
            containers=containers,
            init_containers=init_containers or None,
            priority_class_name=vmi.spec.priority_class_name,
        ),
        status=PodStatus(phase="Pending"),
    )
