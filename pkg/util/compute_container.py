"""The resources of a launcher pod's `compute` container: the steps of KubeVirt's resource renderer, in its order.

The VMI's own limits and requests are the start and win at the end over what is calculated beside them.
Source: KubeVirt pkg/virt-controller/services/renderresources.go and template.go, releases 1.8 to master.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pkg.api.kubevirt import DeveloperConfiguration, DomainSpec, KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY
from pkg.util.memory_overhead import is_dedicated, number_of_vcpus
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


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """What the VMI and KubeVirt's configuration do not say themselves; see `launcher_pod.render_containers`."""

    overhead: Quantity
    quota_limits: frozenset[str] = frozenset()
    memory_limits_ratio: float = 2.0
    network_resources: tuple[str, ...] = ()


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
    vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration, options: ComputeOptions
) -> tuple[ResourceList, ResourceList]:
    """(limits, requests) of `compute`. QuantityError if a quantity of the spec is none."""
    domain = vmi.spec.domain
    developer = kubevirt.developer_configuration or DeveloperConfiguration()
    renderer = _Renderer(
        limits=parse_resource_list(domain.resources.limits),
        requests=parse_resource_list(domain.resources.requests),
    )
    has_limit = {name: name in renderer.limits for name in (CPU, MEMORY)}
    _ephemeral_storage(renderer)
    _virtualization(renderer, domain, emulation=developer.use_emulation)
    if not renderer.requests.get(MEMORY, ZERO):
        _memory_request(renderer, domain, developer.memory_overcommit or _DEFAULT_MEMORY_OVERCOMMIT)
    if is_dedicated(domain):
        _pinned_cpus(renderer, domain, even_parity=ANNOTATION_EVEN_PARITY in vmi.annotations)
    else:
        auto_limit = CPU in options.quota_limits and not has_limit[CPU]
        _shared_cpus(renderer, domain, _allocation_ratio(developer), auto_limit=auto_limit)
    if domain.memory is not None and domain.memory.hugepages is not None:
        _huge_pages(renderer, domain, options.overhead)
    else:
        _memory_overhead(renderer, domain, options.overhead)
    if MEMORY in options.quota_limits and not has_limit[MEMORY]:
        _auto_memory_limit(renderer, options.memory_limits_ratio)
    _extended(renderer, domain, options.network_resources)
    return renderer.result()


def _allocation_ratio(developer: DeveloperConfiguration) -> int:
    ratio = developer.cpu_allocation_ratio
    return _DEFAULT_CPU_ALLOCATION_RATIO if ratio is None else ratio


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


def _memory_request(renderer: _Renderer, domain: DomainSpec, overcommit: int) -> None:
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


def _io_threads(domain: DomainSpec) -> int:
    return (domain.io_threads.supplemental_pool_thread_count or 0) if domain.io_threads else 0


def _pinned_cpus(renderer: _Renderer, domain: DomainSpec, *, even_parity: bool) -> None:
    cpu = domain.cpu
    assert cpu is not None  # is_dedicated
    vcpus, io_threads = number_of_vcpus(cpu), _io_threads(domain)
    for resources in (renderer.limits, renderer.requests):
        if vcpus:
            resources[CPU] = Quantity.of(vcpus + io_threads, Format.BINARY_SI)
        elif CPU in resources:
            resources[CPU] += Quantity.of(io_threads, Format.BINARY_SI)
    if cpu.isolate_emulator_thread:
        pool = io_threads if domain.io_threads_policy == "supplementalPool" else 0
        _emulator_thread(renderer, pool if even_parity else None)
    if MEMORY in renderer.requests:
        renderer.limits[MEMORY] = renderer.requests[MEMORY]


def _emulator_thread(renderer: _Renderer, pool: int | None) -> None:
    """One CPU more; two where the total is to come out even. `pool` None: parity is not asked for."""
    limit = renderer.limits.get(CPU, ZERO)
    threads = 2 if pool is not None and (limit.value() + pool) % 2 == 0 else 1
    extra = Quantity.of(threads, Format.BINARY_SI)
    renderer.limits[CPU] = limit + extra
    if CPU in renderer.requests:
        renderer.requests[CPU] += extra


def _shared_cpus(renderer: _Renderer, domain: DomainSpec, ratio: int, *, auto_limit: bool) -> None:
    vcpus = number_of_vcpus(domain.cpu) if domain.cpu is not None else 1
    total = vcpus + _io_threads(domain)
    if total == 0 or ratio <= 0:
        return
    share = total / ratio
    # Printed and parsed, as KubeVirt does it: what is no whole milli comes out rounded up to a nano.
    text = _plain(share) if share >= 1 else f"{_plain(share * 1000)}m"
    renderer.calculated_requests[CPU] = Quantity.parse(text)
    if auto_limit:
        renderer.calculated_limits[CPU] = Quantity.of(total)


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


def _extended(renderer: _Renderer, domain: DomainSpec, network_resources: tuple[str, ...]) -> None:
    devices, security = domain.devices, domain.launch_security
    plugged = [*(devices.gpus or ()), *(devices.host_devices or ())]
    names = [name for name in network_resources if name]
    names += [device.device_name for device in plugged if device.device_name and device.claim_name is None]
    if security is not None and (security.sev is not None or security.snp is not None):
        names.append(_DEVICES + "sev")
    if security is not None and security.tdx is not None:
        names.append(_DEVICES + "tdx")
    if any(disk.lun is not None and disk.lun.reservation for disk in devices.disks or ()):
        names.append(_DEVICES + "pr-helper")
    for name in names:
        renderer.bump(name)
