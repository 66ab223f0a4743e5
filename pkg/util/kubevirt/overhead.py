"""How much memory KubeVirt adds to a VM's launcher pod, and Harvester's delta of a migration.

The constants move between KubeVirt's releases: see `profiles`. Source: GetMemoryOverhead in KubeVirt
(pkg/virt-controller/services, since 1.8 pkg/hypervisor/kvm) and the network memory calculator beside it
(pkg/network/netbinding, since 1.8 pkg/network/resources), read at each release. What an existing pod says of itself
beats this formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kubeloop.api.quantity import NANOS, ZERO, Format, Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import CPU as DomainCPU
from pkg.api.kubevirt import (
    DomainSpec,
    InterfaceBindingPlugin,
    LaunchSecurity,
    VirtualMachineInstance,
    VirtualMachineInstanceSpec,
)
from pkg.util.constants import CPU, LIMITS_CPU, LIMITS_MEMORY, MEMORY
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, MI, Profile
from pkg.util.kubevirt.rendering import Rendering, factor_of

_KILO = 1000 * NANOS
Parts = tuple[Quantity, Quantity]
"""A VM's memory overhead before the ratio: what the ratio multiplies, and what comes on top of that."""


def overhead_of(vmi: VirtualMachineInstance, rendering: Rendering) -> int:
    """Bytes of memory that KubeVirt adds to a launcher of the VMI now."""
    plugins = rendering.kubevirt.binding_plugins
    return at_ratio(overhead_parts(vmi.spec, rendering.profile, plugins), rendering.factor).value()


def at_ratio(parts: Parts, factor: float) -> Quantity:
    """The overhead at a ratio. In floats and cut to whole kilobytes, as KubeVirt does it."""
    multiplied, on_top = parts
    kilobytes = -(-multiplied.nanos // _KILO)
    added = Quantity.of(int(float(kilobytes) * (factor - 1.0)) * 1000, Format.BINARY_SI)
    return multiplied + added + on_top


def overhead_parts(
    spec: VirtualMachineInstanceSpec,
    profile: Profile = DEFAULT_PROFILE,
    plugins: Mapping[str, InterfaceBindingPlugin] | None = None,
) -> Parts:
    """What a VM's memory overhead consists of. A release that knows no ratio multiplies nothing.

    `plugins` are the CR's network bindings; None leaves networks out altogether, as Harvester's own formula does.
    QuantityError if one of the spec's quantities is none.
    """
    domain, interfaces = spec.domain, spec.domain.devices.interfaces or ()
    reserved = domain.memory.reserved_overhead if domain.memory and profile.has_reserved_overhead else None
    multiplied = Quantity.of(sum(times * amount for times, amount in _amounts(spec, profile)))
    if reserved is not None and reserved.added_overhead is not None:
        multiplied += parse_wire(reserved.added_overhead)
    passt = plugins is not None and any(each.passt_binding is not None for each in interfaces)
    on_top = Quantity.of(profile.passt if passt else 0)
    bound = {each.binding.name for each in interfaces if each.binding is not None}
    for name, plugin in (plugins or {}).items():
        if name in bound and plugin.compute_resource_overhead is not None:  # each once
            on_top += parse_resource_list(plugin.compute_resource_overhead.requests).get(MEMORY, ZERO)
    qos = Quantity.of(profile.qos if is_pinned(domain) else 0)
    if profile.ratio_covers_qos:
        multiplied += qos
    else:
        on_top += qos
    return (multiplied, on_top) if profile.has_ratio else (ZERO, multiplied + on_top)


def _amounts(spec: VirtualMachineInstanceSpec, profile: Profile) -> list[tuple[int, int]]:
    """How often each amount of memory counts, and its bytes."""
    domain, devices = spec.domain, spec.domain.devices
    requests, limits = parse_resource_list(domain.resources.requests), parse_resource_list(domain.resources.limits)
    kilobytes = -(-requests.get(MEMORY, ZERO).nanos // _KILO)
    vcpus = number_of_vcpus(domain.cpu) if domain.cpu else limits.get(CPU, requests.get(CPU, ZERO)).value()
    interfaces, tpm, security = devices.interfaces or (), devices.tpm, domain.launch_security
    vfio = devices.gpus or devices.host_devices or any(each.sriov is not None for each in interfaces)
    probes = sum(probe is not None and probe.exec is not None for probe in (spec.liveness_probe, spec.readiness_probe))
    return [
        (1, kilobytes * 1000 // 512),  # page tables: one bit for every 512 bits of the requested memory
        (1, profile.processes),
        (max(vcpus, 1), 8 * MI),
        (1, 8 * MI),  # the IO thread
        (devices.autoattach_graphics_device is not False, profile.video),
        (spec.architecture == "arm64", 128 * MI),  # its firmware's flash
        (bool(vfio), 1024 * MI),
        (any(volume.downward_metrics is not None for volume in spec.volumes or ()), 1 * MI),
        (security is not None and is_sev(security, profile), 256 * MI),
        (tpm is not None and not (profile.tpm_can_be_disabled and tpm.enabled is False), 53 * MI),
        (sum(each.passt is not None and not each.ports for each in interfaces), profile.passt_all_ports),
        (probes, 10 * MI),
        (probes > 0, 100 * MI),
    ]


def is_pinned(domain: DomainSpec) -> bool:
    """Whether the VM has CPUs of its own, or asks for Guaranteed QoS: KubeVirt's WantsToHaveQOSGuaranteed."""
    if domain.cpu is not None and domain.cpu.dedicated_cpu_placement:
        return True
    requests, limits = parse_resource_list(domain.resources.requests), parse_resource_list(domain.resources.limits)
    memory, cpu = requests.get(MEMORY, ZERO), requests.get(CPU, ZERO)
    memory_wants = not memory or memory == limits.get(MEMORY, ZERO)
    return bool(limits.get(MEMORY)) and memory_wants and bool(cpu) and cpu == limits.get(CPU, ZERO)


def is_sev(security: LaunchSecurity, profile: Profile) -> bool:
    """Whether the VM's memory is encrypted by AMD SEV, in one of its forms."""
    return security.sev is not None or (profile.knows_snp and security.snp is not None)


def number_of_vcpus(cpu: DomainCPU) -> int:
    """cores × sockets × threads, a zero factor left out; zero if all are."""
    factors = [factor for factor in (cpu.cores, cpu.sockets, cpu.threads) if factor]
    return math.prod(factors) if factors else 0


def harvester_delta(
    spec: VirtualMachineInstanceSpec, hard: Mapping[str, object], ratio: str, profile: Profile = DEFAULT_PROFILE
) -> ResourceList | None:
    """What Harvester adds to the quota for one migration: the VM's limits, memory with the overhead.

    None: nothing is scaled, because the VM has neither a cpu nor a memory limit or the quota limits neither.
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
