"""The resources of a launcher pod's `compute` container: the steps of KubeVirt's resource renderer, in its order.

Source: KubeVirt pkg/virt-controller/services/renderresources.go and template.go, releases 1.1 to master; what differs
between them stands in `profiles`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pkg.api.kubevirt import DeveloperConfiguration, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.overhead import is_dedicated, is_sev, number_of_vcpus
from pkg.util.kubevirt.profiles import (
    GATE_AUTO_RESOURCE_LIMITS,
    GATE_EXTERNAL_NETWORK_RESOURCES,
    GATE_IOMMUFD,
    MemoryRequest,
    SupplementalPool,
)
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Quantity, parse_wire
from pkg.util.resource_list import ResourceList, parse_resource_list

ANNOTATION_EVEN_PARITY = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"
_DEVICES = "devices.kubevirt.io/"
_EPHEMERAL_STORAGE = "ephemeral-storage"
_EPHEMERAL_STORAGE_OVERHEAD = Quantity.parse("50M")
_HUGEPAGES = "hugepages-"
_DEFAULT_CPU_ALLOCATION_RATIO = 10
_DEFAULT_MEMORY_OVERCOMMIT = 100
_ONE = Quantity.of(1)


def compute_resources(
    vmi: VirtualMachineInstance, rendering: Rendering, overhead: Quantity
) -> tuple[ResourceList, ResourceList]:
    """(limits, requests) of `compute`; the parameters are `launcher.render_containers`'s. QuantityError if a quantity
    of the spec is none."""
    compute = _Compute(vmi, rendering)
    by_quota = rendering.profile.auto_limits or rendering.has_gate(GATE_AUTO_RESOURCE_LIMITS)
    asked = (rendering.quota_limits if by_quota else set()) | ({CPU} if rendering.auto_cpu_limit else set())
    asked -= compute.limits.keys()
    compute.add_ephemeral_storage()
    compute.ask_for_virtualization()
    compute.request_memory()
    if is_dedicated(vmi.spec.domain):
        compute.pin_cpus()
    else:
        compute.share_cpus(limited=CPU in asked)
    compute.add_overhead(overhead)
    if MEMORY in asked:
        request = compute.requests[MEMORY]
        limit = int(float(request.value()) * rendering.memory_limits_ratio)
        compute.calculated_limits[MEMORY] = Quantity.of(limit, request.format)
    for name in _extended(vmi, rendering):
        compute.add_device(name)
    if rendering.profile.supplemental_pool is SupplementalPool.IN_LIMITS and compute.chosen_pool:
        compute.limits[CPU] = compute.limits.get(CPU, ZERO) + Quantity.of(compute.chosen_pool)
    return compute.result()


class _Compute:
    """The VMI's own limits and requests are the start, and win in the end over what is calculated beside them."""

    def __init__(self, vmi: VirtualMachineInstance, rendering: Rendering) -> None:
        self.vmi, self.domain, self.profile = vmi, vmi.spec.domain, rendering.profile
        self.developer = rendering.kubevirt.developer_configuration or DeveloperConfiguration()
        self.overcommit = _positive(self.developer.memory_overcommit, _DEFAULT_MEMORY_OVERCOMMIT)
        self.limits = parse_resource_list(self.domain.resources.limits)
        self.requests = parse_resource_list(self.domain.resources.requests)
        self.calculated_limits: ResourceList = {}
        self.calculated_requests: ResourceList = {}
        threads = self.domain.io_threads
        self.pool = (threads.supplemental_pool_thread_count or 0) if threads else 0
        self.chosen_pool = self.pool if self.domain.io_threads_policy == "supplementalPool" else 0

    def result(self) -> tuple[ResourceList, ResourceList]:
        return self.calculated_limits | self.limits, self.calculated_requests | self.requests

    def add_ephemeral_storage(self) -> None:
        requested = self.requests.get(_EPHEMERAL_STORAGE, ZERO)
        self.requests[_EPHEMERAL_STORAGE] = requested + _EPHEMERAL_STORAGE_OVERHEAD
        if _EPHEMERAL_STORAGE in self.limits:
            self.limits[_EPHEMERAL_STORAGE] += _EPHEMERAL_STORAGE_OVERHEAD

    def ask_for_virtualization(self) -> None:
        devices, emulation = self.domain.devices, self.developer.use_emulation
        interfaces = devices.interfaces or []
        needed = {
            "tun": bool(interfaces) or devices.autoattach_pod_interface is not False,
            "vhost-net": not emulation and any(interface.model in ("", "virtio") for interface in interfaces),
            "kvm": not emulation,
            "vhost-vsock": bool(devices.autoattach_vsock),
        }
        self.limits.update({_DEVICES + name: _ONE for name, wanted in needed.items() if wanted})

    def request_memory(self) -> None:
        rule, request = self.profile.memory_request, self.requests.get(MEMORY, ZERO)
        if rule is MemoryRequest.OVERCOMMITTED and self.overcommit != _DEFAULT_MEMORY_OVERCOMMIT:
            self.requests[MEMORY] = self._committed(request)
        elif rule is MemoryRequest.FILLED and not request:
            if self.limits.get(MEMORY, ZERO):
                self.requests[MEMORY] = self.limits[MEMORY]
            elif MEMORY not in self.requests and (guest := self._guest_memory()).value() > 0:
                self.requests[MEMORY] = self._committed(guest)

    def _guest_memory(self) -> Quantity:
        """The guest's memory, else a huge page; zero where nothing is said."""
        memory = self.domain.memory
        if memory is not None and memory.guest is not None:
            return parse_wire(memory.guest)
        return Quantity.parse(memory.hugepages.page_size) if memory is not None and memory.hugepages else ZERO

    def _committed(self, memory: Quantity) -> Quantity:
        if self.overcommit == _DEFAULT_MEMORY_OVERCOMMIT:
            return memory
        return Quantity.of(memory.value() * 100 // self.overcommit, memory.format)

    def pin_cpus(self) -> None:
        cpu, profile = self.domain.cpu, self.profile
        assert cpu is not None  # is_dedicated
        replaces = profile.supplemental_pool is SupplementalPool.AS_VCPUS
        base = self._replace_cpus(number_of_vcpus(cpu)) if replaces else self._calculate_cpus(number_of_vcpus(cpu))
        if cpu.isolate_emulator_thread:
            pool = 0 if profile.supplemental_pool is SupplementalPool.IGNORED else self.chosen_pool
            parity = profile.even_parity and ANNOTATION_EVEN_PARITY in self.vmi.annotations
            thread = Quantity.of(2 if parity and (base.value() + pool) % 2 == 0 else 1)
            self.limits[CPU] = base + thread
            if CPU in self.requests:
                self.requests[CPU] += thread
        if MEMORY in self.requests or not replaces:
            self.limits[MEMORY] = self.requests.get(MEMORY, ZERO)

    def _replace_cpus(self, vcpus: int) -> Quantity:
        """The limit and the request of a dedicated topology, IO threads included; the limit is returned."""
        for resources in (self.limits, self.requests):
            if vcpus:
                resources[CPU] = Quantity.of(vcpus + self.pool)
            elif CPU in resources:
                resources[CPU] += Quantity.of(self.pool)
        return self.limits.get(CPU, ZERO)

    def _calculate_cpus(self, vcpus: int) -> Quantity:
        """Up to 1.5.1: the topology counts beneath the VMI's own limit, and it alone is what an emulator thread adds
        to."""
        if vcpus:
            self.calculated_limits[CPU] = Quantity.of(vcpus)
        elif CPU in self.limits:
            self.requests[CPU] = self.limits[CPU]
        elif CPU in self.requests:
            self.limits[CPU] = self.requests[CPU]
        return self.calculated_limits.get(CPU, ZERO)

    def share_cpus(self, *, limited: bool) -> None:
        total = number_of_vcpus(self.domain.cpu) if self.domain.cpu is not None else 1
        if self.profile.supplemental_pool is SupplementalPool.AS_VCPUS:
            total += self.pool
        if total == 0:
            return
        share = total / _positive(self.developer.cpu_allocation_ratio, _DEFAULT_CPU_ALLOCATION_RATIO)
        # Printed and parsed, as KubeVirt does it: what is not a whole milli comes out rounded up to a nano.
        self.calculated_requests[CPU] = Quantity.parse(_plain(share) if share >= 1 else f"{_plain(share * 1000)}m")
        if limited:
            self.calculated_limits[CPU] = Quantity.of(total)

    def add_overhead(self, overhead: Quantity) -> None:
        request, limit = self.requests.get(MEMORY, ZERO), self.limits.get(MEMORY)
        has_pages = self.domain.memory is not None and self.domain.memory.hugepages is not None
        if has_pages:
            request, limit = self._beyond_huge_pages(request, limit)
        spared = self.domain.resources.overcommit_guest_overhead and not has_pages
        self.requests[MEMORY] = request if spared else request + overhead
        if limit is not None:
            self.limits[MEMORY] = limit + overhead

    def _beyond_huge_pages(self, request: Quantity, limit: Quantity | None) -> tuple[Quantity, Quantity | None]:
        """The guest's memory is counted as huge pages; as memory only what is beyond the guest."""
        memory = self.domain.memory
        assert memory is not None
        assert memory.hugepages is not None
        guest = parse_wire(memory.guest) if memory.guest is not None else None
        pages, request_beyond, limit_beyond = request, ZERO, ZERO
        if guest is not None and request.value() > guest.value():
            pages, request_beyond = guest, request - guest
        if guest is not None and limit is not None and limit.value() > guest.value():
            limit_beyond = limit - guest
        name = _HUGEPAGES + memory.hugepages.page_size
        self.calculated_requests[name] = self.calculated_limits[name] = pages
        return request_beyond, None if limit is None else limit_beyond

    def add_device(self, name: str) -> None:
        """One more: its limit and its request."""
        limits, requests = self.result()
        self.calculated_limits[name] = limits.get(name, ZERO) + _ONE
        self.calculated_requests[name] = requests.get(name, ZERO) + _ONE


def _extended(vmi: VirtualMachineInstance, rendering: Rendering) -> Iterator[str]:
    """The extended resources that the VM's devices count as, one entry each."""
    domain, profile = vmi.spec.domain, rendering.profile
    devices, security = domain.devices, domain.launch_security
    if not rendering.has_gate(GATE_EXTERNAL_NETWORK_RESOURCES):
        names = [network.multus.network_name for network in vmi.spec.networks or () if network.multus is not None]
        keys = [name if "/" in name else f"{vmi.namespace}/{name}" for name in names]
        yield from filter(None, map(rendering.network_resources.get, keys))
    for device in (*(devices.gpus or ()), *(devices.host_devices or ())):
        if device.device_name and not (profile.device_claims and device.is_claimed):
            yield device.device_name
    needed = {
        "sev": is_sev(domain, profile),
        "tdx": profile.tdx_device and security is not None and security.tdx is not None,
        "pr-helper": any(disk.lun is not None and disk.lun.reservation for disk in devices.disks or ()),
        "iommufd": rendering.has_gate(GATE_IOMMUFD),
    }
    yield from (_DEVICES + name for name, wanted in needed.items() if wanted)


def _positive(value: int | None, default: int) -> int:
    """A number of the CR: KubeVirt refuses a configuration with any other and goes on with what it has by default."""
    return value if value is not None and value > 0 else default


def _plain(number: float) -> str:
    return repr(number).removesuffix(".0")
