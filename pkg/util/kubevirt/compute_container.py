"""The resources of a launcher pod's `compute` container: the steps of KubeVirt's resource renderer, in its order.

The VMI's own limits and requests are the start and win at the end over what is calculated beside them.
Source: KubeVirt pkg/virt-controller/services/renderresources.go and template.go, releases 1.1 to master; what differs
between them stands in `profiles`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pkg.api.kubevirt import DeveloperConfiguration, DomainSpec, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.overhead import is_dedicated, is_sev, number_of_vcpus
from pkg.util.kubevirt.profiles import (
    GATE_AUTO_RESOURCE_LIMITS,
    GATE_EXTERNAL_NETWORK_RESOURCES,
    GATE_IOMMUFD,
    MemoryRequest,
    Profile,
    SupplementalPool,
)
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Format, Quantity
from pkg.util.resource_list import ResourceList, parse_resource_list, parse_wire

ANNOTATION_EVEN_PARITY = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"
_DEVICES = "devices.kubevirt.io/"
_EPHEMERAL_STORAGE = "ephemeral-storage"
_EPHEMERAL_STORAGE_OVERHEAD = Quantity.parse("50M")
_HUGEPAGES = "hugepages-"
_DEFAULT_CPU_ALLOCATION_RATIO = 10
_DEFAULT_MEMORY_OVERCOMMIT = 100
_ONE = Quantity.of(1)


@dataclass(slots=True)
class _Renderer:
    limits: ResourceList
    requests: ResourceList
    calculated_limits: ResourceList = field(default_factory=dict)
    calculated_requests: ResourceList = field(default_factory=dict)

    def bump(self, name: str) -> None:
        """One more of a device: its limit and its request."""
        limits, requests = self.result()
        self.calculated_limits[name] = limits.get(name, ZERO) + _ONE
        self.calculated_requests[name] = requests.get(name, ZERO) + _ONE

    def result(self) -> tuple[ResourceList, ResourceList]:
        return self.calculated_limits | self.limits, self.calculated_requests | self.requests


def compute_resources(
    vmi: VirtualMachineInstance, rendering: Rendering, overhead: Quantity
) -> tuple[ResourceList, ResourceList]:
    """(limits, requests) of `compute`; the parameters are `launcher.render_containers`'s. QuantityError if a quantity
    of the spec is none."""
    domain, profile = vmi.spec.domain, rendering.profile
    developer = rendering.kubevirt.developer_configuration or DeveloperConfiguration()
    renderer = _Renderer(
        limits=parse_resource_list(domain.resources.limits), requests=parse_resource_list(domain.resources.requests)
    )
    asked = auto_limits(rendering) - renderer.limits.keys()
    _ephemeral_storage(renderer)
    _virtualization(renderer, domain, emulation=developer.use_emulation)
    _memory_request(renderer, domain, profile.memory_request, _positive(developer.memory_overcommit, 100))
    if is_dedicated(domain):
        _pinned_cpus(renderer, vmi, profile)
    else:
        ratio = _positive(developer.cpu_allocation_ratio, _DEFAULT_CPU_ALLOCATION_RATIO)
        _shared_cpus(renderer, domain, profile, ratio, auto_limit=CPU in asked)
    if domain.memory is not None and domain.memory.hugepages is not None:
        _huge_pages(renderer, domain, overhead)
    else:
        _memory_overhead(renderer, domain, overhead)
    if MEMORY in asked:
        _auto_memory_limit(renderer, rendering.memory_limits_ratio)
    for name in _extended(vmi, rendering):
        renderer.bump(name)
    if profile.supplemental_pool is SupplementalPool.IN_LIMITS:
        _pool_in_limits(renderer, domain)
    return renderer.result()


def auto_limits(rendering: Rendering) -> set[str]:
    """What ("cpu", "memory") KubeVirt limits on a launcher whose VMI has no such limit."""
    by_quota = rendering.profile.auto_limits or rendering.has_gate(GATE_AUTO_RESOURCE_LIMITS)
    asked = {name for name in (CPU, MEMORY) if by_quota and name in rendering.quota_limits}
    return asked | ({CPU} if rendering.auto_cpu_limit else set())


def _positive(value: int | None, default: int) -> int:
    """A number of the CR: KubeVirt refuses a configuration with any other and goes on with what it has by default."""
    return value if value is not None and value > 0 else default


def _ephemeral_storage(renderer: _Renderer) -> None:
    requested = renderer.requests.get(_EPHEMERAL_STORAGE, ZERO)
    renderer.requests[_EPHEMERAL_STORAGE] = requested + _EPHEMERAL_STORAGE_OVERHEAD
    if _EPHEMERAL_STORAGE in renderer.limits:
        renderer.limits[_EPHEMERAL_STORAGE] += _EPHEMERAL_STORAGE_OVERHEAD


def _virtualization(renderer: _Renderer, domain: DomainSpec, *, emulation: bool) -> None:
    devices = domain.devices
    interfaces = devices.interfaces or []
    virtio = any(interface.model in ("", "virtio") for interface in interfaces)
    needed = {
        "tun": bool(interfaces) or devices.autoattach_pod_interface is not False,
        "vhost-net": virtio and not emulation,
        "kvm": not emulation,
        "vhost-vsock": bool(devices.autoattach_vsock),
    }
    renderer.limits.update({_DEVICES + name: _ONE for name, wanted in needed.items() if wanted})


def _memory_request(renderer: _Renderer, domain: DomainSpec, rule: MemoryRequest, overcommit: int) -> None:
    request = renderer.requests.get(MEMORY, ZERO)
    if rule is MemoryRequest.OVERCOMMITTED and overcommit != _DEFAULT_MEMORY_OVERCOMMIT:
        renderer.requests[MEMORY] = Quantity.of(request.value() * 100 // overcommit, request.format)
    elif rule is MemoryRequest.FILLED and not request:
        _fill_memory_request(renderer, domain, overcommit)


def _fill_memory_request(renderer: _Renderer, domain: DomainSpec, overcommit: int) -> None:
    """A request where the VMI has none: its limit, else its guest's memory or a huge page, over-committed."""
    if renderer.limits.get(MEMORY, ZERO):
        renderer.requests[MEMORY] = renderer.limits[MEMORY]
    memory = domain.memory
    if MEMORY in renderer.requests or memory is None:
        return
    if memory.guest is not None:
        guest = parse_wire(memory.guest)
    elif memory.hugepages is not None:
        guest = Quantity.parse(memory.hugepages.page_size)
    else:
        return
    if guest.value() > 0:
        committed = Quantity.of(guest.value() * 100 // overcommit, guest.format)
        renderer.requests[MEMORY] = guest if overcommit == _DEFAULT_MEMORY_OVERCOMMIT else committed


def _pool_threads(domain: DomainSpec) -> int:
    return (domain.io_threads.supplemental_pool_thread_count or 0) if domain.io_threads else 0


def _has_pool(domain: DomainSpec) -> bool:
    return domain.io_threads_policy == "supplementalPool"


def _pinned_cpus(renderer: _Renderer, vmi: VirtualMachineInstance, profile: Profile) -> None:
    domain = vmi.spec.domain
    cpu = domain.cpu
    assert cpu is not None  # is_dedicated
    vcpus = number_of_vcpus(cpu)
    if profile.pinned_cpus_replace:
        emulator_base = _replaced_cpus(renderer, vcpus, _pool_threads(domain))
    else:
        emulator_base = _calculated_cpus(renderer, vcpus)
    if cpu.isolate_emulator_thread:
        counts_pool = profile.supplemental_pool is not SupplementalPool.IGNORED and _has_pool(domain)
        parity = profile.even_parity and ANNOTATION_EVEN_PARITY in vmi.annotations
        pool = _pool_threads(domain) if counts_pool else 0
        _emulator_thread(renderer, emulator_base, pool if parity else None)
    if MEMORY in renderer.requests or not profile.pinned_cpus_replace:
        renderer.limits[MEMORY] = renderer.requests.get(MEMORY, ZERO)


def _replaced_cpus(renderer: _Renderer, vcpus: int, io_threads: int) -> Quantity:
    """The limit and the request of a dedicated topology, IO threads included; the limit is returned."""
    for resources in (renderer.limits, renderer.requests):
        if vcpus:
            resources[CPU] = Quantity.of(vcpus + io_threads, Format.BINARY_SI)
        elif CPU in resources:
            resources[CPU] += Quantity.of(io_threads, Format.BINARY_SI)
    return renderer.limits.get(CPU, ZERO)


def _calculated_cpus(renderer: _Renderer, vcpus: int) -> Quantity:
    """Up to 1.5.1: the topology counts beneath the VMI's own limit, and it alone is what an emulator thread adds to."""
    if vcpus:
        renderer.calculated_limits[CPU] = Quantity.of(vcpus, Format.BINARY_SI)
    elif CPU in renderer.limits:
        renderer.requests[CPU] = renderer.limits[CPU]
    elif CPU in renderer.requests:
        renderer.limits[CPU] = renderer.requests[CPU]
    return renderer.calculated_limits.get(CPU, ZERO)


def _emulator_thread(renderer: _Renderer, limit: Quantity, pool: int | None) -> None:
    """One CPU more; two where the total is to come out even. `pool` None: parity is not asked for."""
    threads = 2 if pool is not None and (limit.value() + pool) % 2 == 0 else 1
    extra = Quantity.of(threads, Format.BINARY_SI)
    renderer.limits[CPU] = limit + extra
    if CPU in renderer.requests:
        renderer.requests[CPU] += extra


def _shared_cpus(renderer: _Renderer, domain: DomainSpec, profile: Profile, ratio: int, *, auto_limit: bool) -> None:
    vcpus = number_of_vcpus(domain.cpu) if domain.cpu is not None else 1
    pool = _pool_threads(domain) if profile.supplemental_pool is SupplementalPool.AS_VCPUS else 0
    total = vcpus + pool
    if total == 0:
        return
    share = total / ratio
    # Printed and parsed, as KubeVirt does it: what is not a whole milli comes out rounded up to a nano.
    text = _plain(share) if share >= 1 else f"{_plain(share * 1000)}m"
    renderer.calculated_requests[CPU] = Quantity.parse(text)
    if auto_limit:
        renderer.calculated_limits[CPU] = Quantity.of(total)


def _pool_in_limits(renderer: _Renderer, domain: DomainSpec) -> None:
    threads = _pool_threads(domain) if _has_pool(domain) else 0
    if threads:
        limit = renderer.limits.get(CPU, ZERO)
        renderer.limits[CPU] = limit + Quantity.of(threads, Format.BINARY_SI)


def _plain(number: float) -> str:
    return repr(number).removesuffix(".0")


def _huge_pages(renderer: _Renderer, domain: DomainSpec, overhead: Quantity) -> None:
    """The guest's memory is counted as huge pages; as memory only what is beyond the guest, and the overhead."""
    memory = domain.memory
    assert memory is not None
    assert memory.hugepages is not None
    request, limit = renderer.requests.get(MEMORY, ZERO), renderer.limits.get(MEMORY, ZERO)
    pages, request_beyond, limit_beyond = request, ZERO, ZERO
    if memory.guest is not None:
        guest = parse_wire(memory.guest)
        if request.value() > guest.value():
            pages, request_beyond = guest, request - guest
        if limit.value() > guest.value():
            limit_beyond = limit - guest
    name = _HUGEPAGES + memory.hugepages.page_size
    renderer.calculated_requests[name] = renderer.calculated_limits[name] = pages
    renderer.requests[MEMORY] = request_beyond + overhead
    if MEMORY in renderer.limits:
        renderer.limits[MEMORY] = limit_beyond + overhead


def _memory_overhead(renderer: _Renderer, domain: DomainSpec, overhead: Quantity) -> None:
    request = renderer.requests.get(MEMORY, ZERO)
    renderer.requests[MEMORY] = request if domain.resources.overcommit_guest_overhead else request + overhead
    if MEMORY in renderer.limits:
        renderer.limits[MEMORY] += overhead


def _auto_memory_limit(renderer: _Renderer, ratio: float) -> None:
    request = renderer.requests[MEMORY]
    renderer.calculated_limits[MEMORY] = Quantity.of(int(float(request.value()) * ratio), request.format)


def _extended(vmi: VirtualMachineInstance, rendering: Rendering) -> Iterator[str]:
    """The extended resources that the VM's devices count as, one entry each."""
    domain, profile = vmi.spec.domain, rendering.profile
    devices, security = domain.devices, domain.launch_security
    if not rendering.has_gate(GATE_EXTERNAL_NETWORK_RESOURCES):
        yield from _network_resources(vmi, rendering)
    for device in (*(devices.gpus or ()), *(devices.host_devices or ())):
        if device.device_name and not (profile.device_claims and device.is_claimed):
            yield device.device_name
    if is_sev(domain, profile):
        yield _DEVICES + "sev"
    if profile.tdx_device and security is not None and security.tdx is not None:
        yield _DEVICES + "tdx"
    if any(disk.lun is not None and disk.lun.reservation for disk in devices.disks or ()):
        yield _DEVICES + "pr-helper"
    if rendering.has_gate(GATE_IOMMUFD):
        yield _DEVICES + "iommufd"


def _network_resources(vmi: VirtualMachineInstance, rendering: Rendering) -> Iterator[str]:
    for network in vmi.spec.networks or ():
        if network.multus is not None:
            name = network.multus.network_name
            key = name if "/" in name else f"{vmi.namespace}/{name}"
            resource = rendering.network_resources.get(key)
            if resource:
                yield resource
