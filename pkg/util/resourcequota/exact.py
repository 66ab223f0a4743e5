"""What quota will count of a migration's target pod, before it exists. Pure.

KubeVirt renders the target from the same VMI spec as the source, so the source pod as quota counts it is the
answer, except for the overhead's difference when the ratio was changed since. An observed pod beats the formula:
the formula's constants move between releases.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachetools import LRUCache

from pkg.api.core import Container, Pod, PodSpec, PodStatus, ResourceQuotaSpec
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.api.meta import ObjectMeta
from pkg.util import constants
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY, REQUESTS_MEMORY
from pkg.util.launcher_pod import attachment_container, render_containers
from pkg.util.memory_overhead import PROFILES, OverheadProfile, memory_overhead
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, parse_resource_list, total
from pkg.util.resourcequota.model import Rendering
from pkg.util.resourcequota.sides import Side
from pkg.util.resourcequota.usage import apply_limit_ranges, counted, pod_usage

_MEMORY_NAMES = (MEMORY, REQUESTS_MEMORY, LIMITS_MEMORY)
_RATIO_DECIMALS = range(3)
"""People choose ratios like 1.5 or 2.25: a ratio is recognised by the overhead it gives."""
_UNKNOWN_CONSTANTS = 64 * 1024**2
"""How far, in bytes before the ratio, an unknown release's constants are believed to be from the known ones."""
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
    pod = source.launcher
    if not counted(pod, spec):
        return {}
    difference = Quantity.of(overhead_difference(vmi, pod, rendering))
    usage = dict(_usage(pod))
    for name in _MEMORY_NAMES:
        if name in usage:
            usage[name] += difference
    return usage


def attachments_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """The attachment pods of hotplugged volumes: as on the source, else one as the KubeVirt CR configures it."""
    if not has_hotplugged_volumes(vmi):
        return {}
    if source is not None and source.attachments:
        return usage_of(source.attachments, spec)
    pod = _pod([attachment_container(rendering.kubevirt)], [], vmi)
    pod = apply_limit_ranges(pod, rendering.limit_ranges)
    return pod_usage(pod) if counted(pod, spec) else {}


def has_hotplugged_volumes(vmi: VirtualMachineInstance) -> bool:
    """Whether the VMI needs an attachment pod on the target."""
    sources = [s for v in vmi.spec.volumes or () for s in (v.persistent_volume_claim, v.data_volume)]
    return any(source is not None and source.hotpluggable for source in sources)


def rendered_pod(vmi: VirtualMachineInstance, rendering: Rendering, spec: ResourceQuotaSpec) -> Pod:
    """The launcher pod as KubeVirt would render it now and the API server would complete it."""
    overhead = memory_overhead(
        vmi.spec, ratio=rendering.ratio, arch=architecture(vmi), profile=rendering.profile
    )
    hard = spec.hard or {}
    limited = [name for name, limit in ((CPU, LIMITS_CPU), (MEMORY, LIMITS_MEMORY)) if limit in hard]
    rendered = render_containers(vmi, overhead=overhead, kubevirt=rendering.kubevirt, quota_limits=limited)
    pod = _pod(rendered.containers, rendered.init_containers, vmi)
    return apply_limit_ranges(pod, rendering.limit_ranges)


def architecture(vmi: VirtualMachineInstance) -> str:
    """The VMI's architecture, KubeVirt's default when it names none."""
    return vmi.spec.architecture or "amd64"


def overhead_difference(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int:
    """Bytes by which a launcher pod rendered now has more overhead than `pod` was rendered with.

    Zero when the ratio has not changed since, whatever the release's constants are. Otherwise the constants are
    those under which the pod's own overhead comes out for some ratio; for constants nobody knows the result is
    rather too large than too small.
    """
    rendered = rendered_overhead(vmi, pod)
    if rendered is None:
        return 0

    def overhead(profile: OverheadProfile, ratio: str) -> int:
        return memory_overhead(vmi.spec, ratio=ratio, arch=architecture(vmi), profile=profile)

    profiles = [rendering.profile, *(p for p in PROFILES.values() if p != rendering.profile)]
    if any(overhead(profile, rendering.ratio) == rendered for profile in profiles):
        return 0
    for decimals in _RATIO_DECIMALS:
        for profile in profiles:
            plain = overhead(profile, "")
            ratio = f"{1 + (rendered - plain) / plain:.{decimals}f}" if plain else ""
            if overhead(profile, ratio) == rendered:
                return overhead(profile, rendering.ratio) - rendered
    return _with_unknown_constants(rendered, overhead(rendering.profile, rendering.ratio), rendering)


def _with_unknown_constants(rendered: int, now: int, rendering: Rendering) -> int:
    """The pod's overhead fits no known release: near to what it would be now it counts as unchanged."""
    slack = int(_UNKNOWN_CONSTANTS * float(rendering.ratio or 1))
    if abs(rendered - now) <= slack:
        return 0
    return now + slack - rendered


def rendered_overhead(vmi: VirtualMachineInstance, pod: Pod) -> int | None:
    """Bytes of overhead in a launcher pod: what its annotation says, else what its compute container has more
    than the VM; None where neither tells."""
    annotated = pod.annotations.get(constants.ANNOTATION_MEMORY_OVERHEAD, "")
    if annotated.isdecimal():
        return int(annotated)
    domain = vmi.spec.domain
    if domain.memory is not None and domain.memory.hugepages is not None:
        return None
    compute = next((c for c in pod.spec.containers if c.name == COMPUTE), None)
    if compute is None:
        return None
    pairs = (
        (compute.resources.limits, domain.resources.limits),
        (compute.resources.requests, domain.resources.requests),
    )
    for of_pod, of_vm in pairs:
        have = parse_resource_list(of_pod).get(MEMORY, ZERO)
        want = parse_resource_list(of_vm).get(MEMORY, ZERO)
        if have and want and have > want:
            return (have - want).value()
    return None


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
