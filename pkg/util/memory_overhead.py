"""How much memory KubeVirt adds to a VM's launcher pod, and Harvester's delta of a migration.

The constants move between KubeVirt's releases, so they stand in profiles named after the first release that has
them. Source: GetMemoryOverhead in KubeVirt (pkg/virt-controller/services, since 1.8 pkg/hypervisor/kvm), read at
each release. What an existing pod says of itself beats this formula.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pkg.api.kubevirt import CPU as DomainCPU
from pkg.api.kubevirt import DomainSpec, LaunchSecurity, Probe, VirtualMachineInstanceSpec
from pkg.util.constants import CPU, DEFAULT_OVERHEAD_RATIO, LIMITS_CPU, LIMITS_MEMORY, MEMORY
from pkg.util.quantity import NANOS, ZERO, Format, Quantity
from pkg.util.resource_list import ResourceList, parse_resource_list, parse_wire

MI = 1024**2
_KILO = 1000 * NANOS
_PER_VCPU = 8 * MI
_IO_THREAD = 8 * MI
_ARM64_PFLASH = 128 * MI
_VFIO = 1024 * MI
_DOWNWARD_METRICS = 1 * MI
_PROBE = 10 * MI
_PROBE_ONCE = 100 * MI
_SEV = 256 * MI
_TPM = 53 * MI
MIN_RATIO, MAX_RATIO = 1.0, 10.0
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class OverheadProfile:
    """One KubeVirt release's constants, in bytes, and which parts of the formula it knows."""

    launcher_monitor: int = 25 * MI
    launcher: int = 100 * MI
    virtlogd: int = 25 * MI
    virtqemud: int = 40 * MI
    qemu: int = 30 * MI
    video: int = 32 * MI
    qos: int = 100 * MI
    """For dedicated CPUs or asked-for Guaranteed QoS."""
    ratio_covers_qos: bool = True
    has_ratio: bool = True
    tpm_can_be_disabled: bool = True
    knows_snp: bool = True
    has_reserved_overhead: bool = True

    @property
    def processes(self) -> int:
        """What every VM pays, whatever its shape."""
        return self.launcher_monitor + self.launcher + self.virtlogd + self.virtqemud + self.qemu


_V1_8 = OverheadProfile()
_V1_7 = replace(_V1_8, has_reserved_overhead=False)
_V1_6 = replace(_V1_7, knows_snp=False)
_V1_5 = replace(_V1_6, video=16 * MI, ratio_covers_qos=False, tpm_can_be_disabled=False)
_V1_1 = replace(_V1_5, virtlogd=20 * MI, virtqemud=35 * MI)
_V1_0 = replace(_V1_1, qos=0)
_V0_59 = replace(_V1_0, has_ratio=False)
_V0_57 = replace(_V0_59, virtlogd=18 * MI)
_V0_55 = replace(_V0_57, virtlogd=17 * MI, virtqemud=33 * MI)
_V0_54 = replace(_V0_55, launcher=75 * MI)

PROFILES: dict[str, OverheadProfile] = {
    "0.54": _V0_54,
    "0.55": _V0_55,
    "0.57": _V0_57,
    "0.59": _V0_59,
    "1.0": _V1_0,
    "1.1": _V1_1,
    "1.5": _V1_5,
    "1.6": _V1_6,
    "1.7": _V1_7,
    "1.8": _V1_8,
    "main": replace(_V1_8, qemu=50 * MI),
}
"""By the first release that has these constants; "main" is what comes after 1.9."""

DEFAULT_PROFILE = PROFILES["1.8"]
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_AFTER_LAST_RELEASE = (1, 10)


def profile_for_version(observed: str | None) -> OverheadProfile:
    """The profile of a version as the KubeVirt CR's status gives it ("v1.8.3", "1.6.2-150700.1.1");
    the newest released one if it says nothing readable."""
    version = parse_version(observed)
    if version is None:
        return DEFAULT_PROFILE
    if version >= _AFTER_LAST_RELEASE:
        return PROFILES["main"]
    fitting = [name for name in PROFILES if name != "main" and _version(name) <= version]
    return PROFILES[max(fitting, key=_version)] if fitting else _V0_54


def parse_version(text: str | None) -> tuple[int, int] | None:
    """Major and minor of a version, None if the text does not start as one."""
    match = _VERSION.match(text or "")
    return (int(match[1]), int(match[2])) if match else None


def is_version(text: str) -> bool:
    """Whether a text starts as a version does, so that `profile_for_version` reads it."""
    return _VERSION.match(text) is not None


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def parse_ratio(text: str, largest: float = MAX_RATIO) -> float | None:
    """The ratio that a text says, None if it is no number from 1.0 to 10.0 (or another `largest`)."""
    if _NUMBER.fullmatch(text) is None:
        return None
    ratio = float(text)
    return ratio if MIN_RATIO <= ratio <= largest else None


def normalize_ratio(value: str, default: str) -> str:
    """Harvester's reading of its setting: the value, else the default, else "1.5"; "", zero, what is no number
    and what is out of 1.0–10.0 count as "1.5"."""
    chosen = value or default
    return chosen if parse_ratio(chosen) is not None else DEFAULT_OVERHEAD_RATIO


def memory_overhead(
    spec: VirtualMachineInstanceSpec,
    *,
    ratio: str,
    arch: str = "amd64",
    profile: OverheadProfile = DEFAULT_PROFILE,
) -> int:
    """Bytes that KubeVirt adds to the VM's memory. `ratio` as configured, "" for none.

    QuantityError if one of the spec's quantities is none.
    """
    return overhead_quantity(spec, ratio=ratio, arch=arch, profile=profile).value()


def overhead_quantity(
    spec: VirtualMachineInstanceSpec,
    *,
    ratio: str,
    arch: str = "amd64",
    profile: OverheadProfile = DEFAULT_PROFILE,
) -> Quantity:
    """`memory_overhead` before it is rounded up to whole bytes."""
    domain = spec.domain
    requests = parse_resource_list(domain.resources.requests)
    limits = parse_resource_list(domain.resources.limits)
    plain = (
        _page_tables(requests.get(MEMORY, ZERO))
        + profile.processes
        + _vcpus(domain.cpu, requests, limits) * _PER_VCPU
        + _IO_THREAD
        + (0 if domain.devices.autoattach_graphics_device is False else profile.video)
        + (_ARM64_PFLASH if arch == "arm64" else 0)
        + _devices(spec, profile)
        + _probes(spec.liveness_probe, spec.readiness_probe)
    )
    qos = profile.qos if is_dedicated(domain) or wants_guaranteed(domain) else 0
    overhead = Quantity.of(plain + (qos if profile.ratio_covers_qos else 0)) + _reserved(domain, profile)
    if profile.has_ratio:
        overhead += _addition(overhead, parse_ratio(ratio) or MIN_RATIO)
    return overhead + Quantity.of(0 if profile.ratio_covers_qos else qos)


def wants_guaranteed(domain: DomainSpec) -> bool:
    """Whether the VM asks for Guaranteed QoS: KubeVirt's WantsToHaveQOSGuaranteed."""
    requests = parse_resource_list(domain.resources.requests)
    limits = parse_resource_list(domain.resources.limits)
    memory_request, memory_limit = requests.get(MEMORY, ZERO), limits.get(MEMORY, ZERO)
    cpu_request = requests.get(CPU, ZERO)
    memory_wants = memory_request == memory_limit if memory_request else bool(memory_limit)
    return memory_wants and bool(cpu_request) and cpu_request == limits.get(CPU, ZERO)


def number_of_vcpus(cpu: DomainCPU) -> int:
    """cores × sockets × threads, a zero factor left out; zero if all are."""
    factors = [factor for factor in (cpu.cores, cpu.sockets, cpu.threads) if factor]
    product = 1 if factors else 0
    for factor in factors:
        product *= factor
    return product


def harvester_delta(
    spec: VirtualMachineInstanceSpec,
    hard: Mapping[str, object],
    ratio: str,
    arch: str = "amd64",
    profile: OverheadProfile = DEFAULT_PROFILE,
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
        delta[LIMITS_MEMORY] = memory + overhead_quantity(spec, ratio=ratio, arch=arch, profile=profile)
    return delta


def _page_tables(memory_request: Quantity) -> int:
    """One bit for every 512 bits of memory, of the request in whole kilobytes."""
    kilobytes = -(-memory_request.nanos // _KILO)
    return kilobytes * 1000 // 512


def _vcpus(cpu: DomainCPU | None, requests: ResourceList, limits: ResourceList) -> int:
    if cpu is not None:
        return max(number_of_vcpus(cpu), 1)
    return max(limits.get(CPU, requests.get(CPU, ZERO)).value(), 1)


def _devices(spec: VirtualMachineInstanceSpec, profile: OverheadProfile) -> int:
    devices = spec.domain.devices
    sriov = any(interface.sriov is not None for interface in devices.interfaces or ())
    vfio = bool(devices.gpus or devices.host_devices or sriov)
    metrics = any(volume.downward_metrics is not None for volume in spec.volumes or ())
    tpm = devices.tpm is not None and not (profile.tpm_can_be_disabled and devices.tpm.enabled is False)
    return (
        vfio * _VFIO
        + metrics * _DOWNWARD_METRICS
        + _is_sev(spec.domain.launch_security, profile) * _SEV
        + tpm * _TPM
    )


def _is_sev(launch_security: LaunchSecurity | None, profile: OverheadProfile) -> bool:
    if launch_security is None:
        return False
    return launch_security.sev is not None or (profile.knows_snp and launch_security.snp is not None)


def _probes(liveness: Probe | None, readiness: Probe | None) -> int:
    execs = sum(probe is not None and probe.exec is not None for probe in (liveness, readiness))
    return execs * _PROBE + (_PROBE_ONCE if execs else 0)


def is_dedicated(domain: DomainSpec) -> bool:
    """Whether the VM has CPUs of its own."""
    return domain.cpu is not None and domain.cpu.dedicated_cpu_placement


def _reserved(domain: DomainSpec, profile: OverheadProfile) -> Quantity:
    reserved = domain.memory.reserved_overhead if domain.memory else None
    if not profile.has_reserved_overhead or reserved is None or reserved.added_overhead is None:
        return ZERO
    return parse_wire(reserved.added_overhead)


def _addition(overhead: Quantity, ratio: float) -> Quantity:
    """What the ratio adds. In floats and cut to whole kilobytes, as KubeVirt does it."""
    kilobytes = -(-overhead.nanos // _KILO)
    return Quantity.of(int(float(kilobytes) * (ratio - 1.0)) * 1000, Format.BINARY_SI)
