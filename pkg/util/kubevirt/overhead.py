"""Memory that KubeVirt adds to a VM's launcher pod: by its formula, and as an existing pod shows; and Harvester's delta
of a migration. Pure.

Source: GetMemoryOverhead in KubeVirt (pkg/virt-controller/services, since 1.8 pkg/hypervisor/kvm) and the network
memory calculator (pkg/network/netbinding, since 1.8 pkg/network/resources), read at each release (`profiles`)."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from kubeloop.api.core import Pod
from kubeloop.api.objects import condition_is_true
from kubeloop.api.quantity import NANOS, ZERO, Format, Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import DomainSpec, InterfaceBindingPlugin, VirtualMachineInstance, VirtualMachineInstanceSpec
from pkg.util import constants
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY
from pkg.util.kubevirt.compute_container import compute_container, compute_resources
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, MI, PROFILES, Profile
from pkg.util.kubevirt.rendering import MAX_RATIO, UNKNOWN_RATIO, Rendering, factor_of

_KILO = 1000
Parts = tuple[Quantity, Quantity]
"""A VM's memory overhead before the ratio: what the ratio multiplies, and what comes on top of that."""


def overhead_of(vmi: VirtualMachineInstance, rendering: Rendering) -> int:
    """Returns the bytes of memory that KubeVirt adds to a launcher of the VMI now."""
    bindings = rendering.kubevirt.bindings_of(vmi.spec)
    return at_ratio(overhead_parts(vmi.spec, rendering.profile, bindings), rendering.factor).value()


def at_ratio(parts: Parts, factor: float) -> Quantity:
    """Returns the overhead at a ratio. In floats and cut to whole kilobytes, as KubeVirt does it."""
    multiplied, on_top = parts
    kilobytes = -(-multiplied.nanos // (_KILO * NANOS))
    ratio_share = Quantity.of(int(float(kilobytes) * (factor - 1.0)) * _KILO, Format.BINARY_SI)
    return multiplied + ratio_share + on_top


def overhead_parts(
    spec: VirtualMachineInstanceSpec,
    profile: Profile = DEFAULT_PROFILE,
    bindings: Iterable[InterfaceBindingPlugin] | None = None,
) -> Parts:
    """Returns the parts of a VM's memory overhead. A release that knows no ratio multiplies nothing. `bindings` are
    `bindings_of` the CR; None leaves networks out altogether, as Harvester's formula does. Raises QuantityError."""
    domain, interfaces = spec.domain, spec.domain.devices.interfaces or ()
    multiplied = Quantity.of(sum(times * amount for times, amount in _counted_amounts(spec, profile)))
    if profile.has_reserved_overhead:
        multiplied += parse_wire(domain.memory.reserved_overhead.added_overhead)
    has_passt = bindings is not None and any(interface.passt_binding is not None for interface in interfaces)
    on_top = Quantity.of(profile.passt if has_passt else 0)
    for binding in bindings or ():
        on_top += parse_resource_list(binding.compute_resource_overhead.requests).get(MEMORY, ZERO)
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
    probes = sum(probe.exec is not None for probe in (spec.liveness_probe, spec.readiness_probe))
    return [
        (1, kilobytes * _KILO // 512),  # page tables: one bit for every 512 bits of the requested memory
        (1, profile.processes),
        (max(vcpus, 1), 8 * MI),
        (1, 8 * MI),  # the IO thread
        (devices.autoattach_graphics_device is not False, profile.video),
        (spec.architecture == "arm64", 128 * MI),  # its firmware's flash
        (bool(has_vfio), 1024 * MI),
        (any(volume.downward_metrics is not None for volume in spec.volumes or ()), 1 * MI),
        (security.is_sev(profile.knows_snp), 256 * MI),
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
    memory, cpu = limits.get(MEMORY), requests.get(CPU)
    return bool(memory and requests.get(MEMORY) in (None, ZERO, memory) and cpu and cpu == limits.get(CPU))


def harvester_delta(
    spec: VirtualMachineInstanceSpec, hard: Collection[str], ratio: str, profile: Profile = DEFAULT_PROFILE
) -> ResourceList | None:
    """Returns what Harvester adds to the quota for one migration: the VM's limits, memory with the overhead. None if
    Harvester scales nothing, because the VM has neither a cpu nor a memory limit or the quota limits neither."""
    limits = parse_resource_list(spec.domain.resources.limits)
    cpu, memory = limits.get(CPU, ZERO), limits.get(MEMORY, ZERO)
    if not (cpu or memory) or not (LIMITS_CPU in hard or LIMITS_MEMORY in hard):
        return None
    delta = {LIMITS_CPU: cpu} if cpu and LIMITS_CPU in hard else {}
    if memory and LIMITS_MEMORY in hard:
        delta[LIMITS_MEMORY] = memory + at_ratio(overhead_parts(spec, profile), factor_of(ratio))
    return delta


def is_resized(vmi: VirtualMachineInstance) -> bool:
    """Reports whether the VM waits for CPUs or memory that were plugged in: the next migration's target has them."""
    changes = (constants.CONDITION_CPU_CHANGE, constants.CONDITION_MEMORY_CHANGE)
    conditions = trusted_status(vmi).conditions
    return any(condition_is_true(conditions, change) for change in changes)


def rendered_overhead(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int | None:
    """Returns the bytes that a launcher's compute container has above its resources without overhead, or None."""
    # A limit that KubeVirt sets for a quota is a multiple of the request, overhead included: it tells nothing.
    limits, requests = compute_resources(vmi, replace(rendering, quota_limits=frozenset()), ZERO)
    compute = compute_container(pod)
    resources = [(compute.resources.limits, limits), (compute.resources.requests, requests)] if compute else []
    for pod_amounts, without_overhead in resources:
        memory = parse_resource_list(pod_amounts).get(MEMORY, ZERO)
        if MEMORY in without_overhead and memory > without_overhead[MEMORY]:
            # The nearest whole number: the API server has rounded the pod's memory up to thousandths.
            return ((memory - without_overhead[MEMORY]).nanos + NANOS // 2) // NANOS
    return None


def overhead_difference(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int:
    """Returns the bytes by which a launcher pod rendered now has more overhead than `pod` was rendered with. That is
    the difference to the overhead now of the first release that has the pod's at some ratio: the installed one, else
    any other, because the CR may report another version than runs. A launcher that KubeVirt calls outdated is followed
    by one of the installed release. Any other overhead is raised only where it is clearly smaller, and never lowered:
    the constants may be unknown, or others may have given it more."""
    rendered = rendered_overhead(vmi, pod, rendering)
    if rendered is None or rendering.ratio == UNKNOWN_RATIO:
        return 0
    bindings, factor = rendering.kubevirt.bindings_of(vmi.spec), rendering.factor
    installed = overhead_parts(vmi.spec, rendering.profile, bindings)
    growth = at_ratio(installed, factor).value() - rendered
    if constants.LABEL_OUTDATED_LAUNCHER in vmi.labels or _is_at_some_ratio(installed, rendered):
        return growth
    # A release that knows no ratio gives any VM what a newer one gives it without.
    profiles = (profile for profile in PROFILES.values() if profile.has_ratio or not rendering.ratio)
    others = (overhead_parts(vmi.spec, profile, bindings) for profile in profiles)
    explained = [at_ratio(p, factor).value() - rendered for p in others if _is_at_some_ratio(p, rendered)]
    if explained:
        difference = 0 if 0 in explained else explained[0]
        return difference if growth > 0 else min(difference, 0)
    # Constants move from release to release: by less than 64 MiB, before the ratio, it counts as unchanged.
    return growth if growth > 64 * MI * factor else 0


def _is_at_some_ratio(parts: Parts, rendered: int) -> bool:
    """Reports whether the parts are `rendered` at some ratio, which adds whole kilobytes, up to nine times as much."""
    multiplied, on_top = (part.value() for part in parts)
    ratio_share = rendered - multiplied - on_top
    return not ratio_share % _KILO and 0 <= ratio_share <= (MAX_RATIO - 1) * multiplied
