"""Memory that KubeVirt adds to a VM's launcher pod: by its formula, as an existing pod shows, and the difference in a
pod rendered now; and Harvester's delta of a migration. Pure.

The constants move between KubeVirt's releases: see `profiles`. Source: GetMemoryOverhead in KubeVirt
(pkg/virt-controller/services, since 1.8 pkg/hypervisor/kvm) and the network memory calculator beside it
(pkg/network/netbinding, since 1.8 pkg/network/resources), read at each release. An existing pod beats this formula: its
overhead is known exactly; to be found are the constants and the ratio that explain it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kubeloop.api.core import Pod
from kubeloop.api.objects import condition_is_true
from kubeloop.api.quantity import NANOS, ZERO, Format, Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import DomainSpec, InterfaceBindingPlugin, VirtualMachineInstance, VirtualMachineInstanceSpec
from pkg.util import constants
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY
from pkg.util.kubevirt.compute_container import compute_container, compute_resources, is_sev
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, MI, PROFILES, Profile
from pkg.util.kubevirt.rendering import MAX_RATIO, UNKNOWN_RATIO, Rendering, factor_of, parse_ratio

_KILO = 1000
_MAX_ANNOTATION_DIGITS = 15
"""A petabyte of overhead is none: nothing longer is read as a number."""
_RATIO_DECIMALS = range(5)
"""People choose ratios like 1.5 or 1.0625; for unknown constants only such a ratio is taken for an explanation."""
_SHIFTS_MIB = range(-250, 1000)
"""By how many MiB unknown constants are taken to have moved from the known ones, which are whole MiB all."""
_NEAR_BYTES = 64 * MI
"""How far an overhead that nothing explains may be from today's, before the ratio, to count as unchanged; and how far
unknown constants may be, where the ratio has to be guessed as well."""
Parts = tuple[Quantity, Quantity]
"""A VM's memory overhead before the ratio: what the ratio multiplies, and what comes on top of that."""


def overhead_of(vmi: VirtualMachineInstance, rendering: Rendering) -> int:
    """Returns the bytes of memory that KubeVirt adds to a launcher of the VMI now."""
    plugins = rendering.kubevirt.binding_plugins
    return at_ratio(overhead_parts(vmi.spec, rendering.profile, plugins), rendering.factor).value()


def at_ratio(parts: Parts, factor: float) -> Quantity:
    """Returns the overhead at a ratio. In floats and cut to whole kilobytes, as KubeVirt does it."""
    multiplied, on_top = parts
    kilobytes = -(-multiplied.nanos // (_KILO * NANOS))
    ratio_share = Quantity.of(int(float(kilobytes) * (factor - 1.0)) * _KILO, Format.BINARY_SI)
    return multiplied + ratio_share + on_top


def overhead_parts(
    spec: VirtualMachineInstanceSpec,
    profile: Profile = DEFAULT_PROFILE,
    plugins: Mapping[str, InterfaceBindingPlugin] | None = None,
) -> Parts:
    """Returns the parts of a VM's memory overhead. A release that knows no ratio multiplies nothing.

    `plugins` are the CR's network bindings; None leaves networks out altogether, as Harvester's own formula does.
    Raises QuantityError if one of the spec's quantities is invalid.
    """
    domain, interfaces = spec.domain, spec.domain.devices.interfaces or ()
    reserved_overhead = domain.memory.reserved_overhead if domain.memory and profile.has_reserved_overhead else None
    multiplied = Quantity.of(sum(times * amount for times, amount in _counted_amounts(spec, profile)))
    if reserved_overhead is not None and reserved_overhead.added_overhead is not None:
        multiplied += parse_wire(reserved_overhead.added_overhead)
    has_passt = plugins is not None and any(interface.passt_binding is not None for interface in interfaces)
    on_top = Quantity.of(profile.passt if has_passt else 0)
    binding_names = {interface.binding.name for interface in interfaces if interface.binding is not None}
    for name, plugin in (plugins or {}).items():
        if name in binding_names and plugin.compute_resource_overhead is not None:  # each once
            on_top += parse_resource_list(plugin.compute_resource_overhead.requests).get(MEMORY, ZERO)
    qos = Quantity.of(profile.qos if is_pinned(domain) else 0)
    if profile.ratio_covers_qos:
        multiplied += qos
    else:
        on_top += qos
    return (multiplied, on_top) if profile.has_ratio else (ZERO, multiplied + on_top)


def _counted_amounts(spec: VirtualMachineInstanceSpec, profile: Profile) -> list[tuple[int, int]]:
    """Returns how often each amount of memory counts, and its bytes."""
    domain, devices = spec.domain, spec.domain.devices
    requests, limits = parse_resource_list(domain.resources.requests), parse_resource_list(domain.resources.limits)
    kilobytes = -(-requests.get(MEMORY, ZERO).nanos // (_KILO * NANOS))
    vcpus = domain.cpu.vcpus if domain.cpu else limits.get(CPU, requests.get(CPU, ZERO)).value()
    interfaces, tpm, security = devices.interfaces or (), devices.tpm, domain.launch_security
    has_vfio = devices.gpus or devices.host_devices or any(interface.sriov is not None for interface in interfaces)
    probes = sum(probe is not None and probe.exec is not None for probe in (spec.liveness_probe, spec.readiness_probe))
    return [
        (1, kilobytes * _KILO // 512),  # page tables: one bit for every 512 bits of the requested memory
        (1, profile.processes),
        (max(vcpus, 1), 8 * MI),
        (1, 8 * MI),  # the IO thread
        (devices.autoattach_graphics_device is not False, profile.video),
        (spec.architecture == "arm64", 128 * MI),  # its firmware's flash
        (bool(has_vfio), 1024 * MI),
        (any(volume.downward_metrics is not None for volume in spec.volumes or ()), 1 * MI),
        (security is not None and is_sev(security, profile), 256 * MI),
        (tpm is not None and not (profile.tpm_can_be_disabled and tpm.enabled is False), 53 * MI),
        (sum(interface.passt is not None and not interface.ports for interface in interfaces), profile.passt_all_ports),
        (probes, 10 * MI),
        (probes > 0, 100 * MI),
    ]


def is_pinned(domain: DomainSpec) -> bool:
    """Reports whether the VM has dedicated CPUs or requests Guaranteed QoS: KubeVirt's WantsToHaveQOSGuaranteed."""
    if domain.cpu is not None and domain.cpu.dedicated_cpu_placement:
        return True
    requests, limits = parse_resource_list(domain.resources.requests), parse_resource_list(domain.resources.limits)
    memory, cpu = requests.get(MEMORY, ZERO), requests.get(CPU, ZERO)
    memory_wants = not memory or memory == limits.get(MEMORY, ZERO)
    return bool(limits.get(MEMORY)) and memory_wants and bool(cpu) and cpu == limits.get(CPU, ZERO)


def harvester_delta(
    spec: VirtualMachineInstanceSpec, hard: Mapping[str, object], ratio: str, profile: Profile = DEFAULT_PROFILE
) -> ResourceList | None:
    """Returns what Harvester adds to the quota for one migration: the VM's limits, memory with the overhead.

    None if Harvester scales nothing, because the VM has neither a cpu nor a memory limit or the quota limits neither.
    """
    limits = parse_resource_list(spec.domain.resources.limits)
    cpu, memory = limits.get(CPU, ZERO), limits.get(MEMORY, ZERO)
    if not (cpu or memory) or not (LIMITS_CPU in hard or LIMITS_MEMORY in hard):
        return None
    delta: ResourceList = {}
    if cpu and LIMITS_CPU in hard:
        delta[LIMITS_CPU] = cpu
    if memory and LIMITS_MEMORY in hard:
        delta[LIMITS_MEMORY] = memory + at_ratio(overhead_parts(spec, profile), factor_of(ratio))
    return delta


# ---- the overhead of an existing pod --------------------------------------------------------------------------


def is_resized(vmi: VirtualMachineInstance) -> bool:
    """Reports whether the VM waits for CPUs or memory that were plugged in: the next migration's target has them."""
    changes = (constants.CONDITION_CPU_CHANGE, constants.CONDITION_MEMORY_CHANGE)
    conditions = trusted_status(vmi).conditions
    return any(condition_is_true(conditions, change) for change in changes)


def rendered_overhead(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int | None:
    """Returns the bytes of overhead in a launcher pod, or None if the pod does not show it."""
    return next(_pod_overheads(vmi, pod, rendering), None)


def overhead_difference(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int:
    """Returns the bytes by which a launcher pod rendered now has more overhead than `pod` was rendered with.

    Zero if the ratio has not changed since, or is not known, whatever the release's constants are. A launcher that
    KubeVirt calls outdated is followed by one of the installed release. An unexplained overhead is raised at most to
    that of the installed release now, and never lowered; nothing is added to a pod whose overhead is as large already:
    others may have given it more. The annotation is trusted only as far as the compute container bears it out: a tenant
    who wrote a smaller number there would be given the difference.
    """
    current_overhead, pod_overheads = overhead_of(vmi, rendering), list(_pod_overheads(vmi, pod, rendering))
    if not pod_overheads or rendering.ratio == UNKNOWN_RATIO:
        return 0
    growth = current_overhead - pod_overheads[0]
    if constants.LABEL_OUTDATED_LAUNCHER in vmi.labels:
        return growth
    difference = _explained_difference(vmi, pod_overheads[0], rendering)
    if difference is None and len(pod_overheads) > 1:
        annotated_difference = _explained_difference(vmi, pod_overheads[1], rendering)
        difference = None if annotated_difference is None else min(annotated_difference, max(growth, 0))
    if difference is not None:
        return difference if growth > 0 else min(difference, 0)
    tolerance = int(_NEAR_BYTES * (parse_ratio(rendering.ratio) or 1))
    return growth if growth > tolerance else 0


def _pod_overheads(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Iterator[int]:
    """Yields the compute container's excess over its resources without overhead, then the annotation's number: a tenant
    can write the annotation where KubeVirt does not."""
    # A limit that KubeVirt sets for a quota is a multiple of the request, overhead included: it tells nothing.
    without_limits = replace(rendering, quota_limits=frozenset())
    limits, requests = compute_resources(vmi, without_limits, ZERO)
    compute = compute_container(pod)
    resources = [(compute.resources.limits, limits), (compute.resources.requests, requests)] if compute else []
    for pod_amounts, without_overhead in resources:
        memory = parse_resource_list(pod_amounts).get(MEMORY, ZERO)
        if MEMORY in without_overhead and memory > without_overhead[MEMORY]:
            # The nearest whole number: the API server has rounded the pod's memory up to thousandths.
            yield ((memory - without_overhead[MEMORY]).nanos + NANOS // 2) // NANOS
            break
    annotation = pod.annotations.get(constants.ANNOTATION_MEMORY_OVERHEAD, "")
    is_readable = annotation.isascii() and annotation.isdecimal() and len(annotation) <= _MAX_ANNOTATION_DIGITS
    if is_readable and not is_resized(vmi):  # else the container is of another shape, and bears nothing out
        yield int(annotation)


def _explained_difference(vmi: VirtualMachineInstance, rendered: int, rendering: Rendering) -> int | None:
    """Returns the difference by the first explanation of `rendered`, or None if nothing explains it.

    First the constants of the installed release, with the ratio of now or any other. Then the ratio of now with any
    constants, the other releases' at any ratio, and last unknown constants near the installed ones' at the plainest
    ratio.
    """
    plugins = rendering.kubevirt.binding_plugins

    def difference_to(parts: Parts) -> int:
        return at_ratio(parts, rendering.factor).value() - rendered

    installed_parts = overhead_parts(vmi.spec, rendering.profile, plugins)
    if not difference_to(installed_parts) or _ratio_for(installed_parts, rendered) is not None:
        return difference_to(installed_parts)
    # A release that knows no ratio gives any VM what a newer one gives it without.
    profiles = [profile for profile in PROFILES.values() if profile.has_ratio or not rendering.ratio]
    other_parts = [overhead_parts(vmi.spec, profile, plugins) for profile in profiles]
    shifted_parts = list(_shifted_parts(installed_parts, rendered))
    if not all(map(difference_to, (*other_parts, *shifted_parts))):
        return 0
    for parts in other_parts:
        if _ratio_for(parts, rendered) is not None:
            return difference_to(parts)
    near_parts = [
        parts for parts in shifted_parts if -_NEAR_BYTES <= (parts[0] - installed_parts[0]).value() <= _NEAR_BYTES
    ]
    ratios = [(parts, ratio) for parts in near_parts if (ratio := _ratio_for(parts, rendered)) is not None]
    for decimals in _RATIO_DECIMALS:
        for parts, ratio in ratios:
            if at_ratio(parts, round(ratio, decimals)).value() == rendered:
                return difference_to(parts)
    return None


def _ratio_for(parts: Parts, rendered: int) -> float | None:
    """Returns the ratio at which these parts come to `rendered`: it adds whole kilobytes, and at most nine times as
    much."""
    multiplied, on_top = (part.value() for part in parts)
    ratio_share = rendered - multiplied - on_top
    if not multiplied or ratio_share % _KILO or not 0 <= ratio_share <= (MAX_RATIO - 1) * multiplied:
        return None
    return 1 + ratio_share / multiplied


def _shifted_parts(parts: Parts, rendered: int) -> Iterator[Parts]:
    """Yields the parts with unknown constants, nearest to the known ones first.

    The ratio adds whole kilobytes, so the last three digits show by how many MiB the constants moved, but for multiples
    of 125 MiB.
    """
    multiplied, on_top = parts
    last_digits = rendered - multiplied.value() - on_top.value()
    for mib in sorted((mib for mib in _SHIFTS_MIB if (last_digits - mib * MI) % _KILO == 0), key=abs):
        yield multiplied + Quantity.of(mib * MI), on_top
