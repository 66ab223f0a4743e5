"""The resources of a launcher pod's `compute` container: the steps of KubeVirt's resource renderer.

The VMI's own limits and requests are the start, and in the end win over calculated ones. Source: KubeVirt
pkg/virt-controller/services/renderresources.go and template.go, releases 1.1 to master (`profiles`)."""

from kubeloop.api.core import Container, Pod
from kubeloop.api.quantity import ZERO, Quantity, parse_wire
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import CPU as DomainCPU
from pkg.api.kubevirt import DomainSpec, Memory, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.profiles import Profile, SupplementalPool
from pkg.util.kubevirt.rendering import Rendering

ANNOTATION_EVEN_PARITY = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"
COMPUTE = "compute"
_DEVICES = "devices.kubevirt.io/"
_EPHEMERAL_STORAGE = "ephemeral-storage"
_EPHEMERAL_STORAGE_OVERHEAD = Quantity.parse("50M")
_ONE = Quantity.of(1)

Amounts = tuple[ResourceList, ResourceList]
"""Limits and requests."""


def compute_resources(vmi: VirtualMachineInstance, rendering: Rendering, overhead: Quantity) -> Amounts:
    """Returns limits and requests; the parameters are `launcher.render_containers`'s. Raises QuantityError."""
    domain = vmi.spec.domain
    limits, requests = parse_resource_list(domain.resources.limits), parse_resource_list(domain.resources.requests)
    follows_quota = rendering.profile.auto_limits or rendering.has_gate("AutoResourceLimitsGate")
    limited = {*(rendering.quota_limits if follows_quota else ()), *([CPU] if rendering.auto_cpu_limit else ())}
    limited -= limits.keys()
    requests[_EPHEMERAL_STORAGE] = requests.get(_EPHEMERAL_STORAGE, ZERO) + _EPHEMERAL_STORAGE_OVERHEAD
    if _EPHEMERAL_STORAGE in limits:
        limits[_EPHEMERAL_STORAGE] += _EPHEMERAL_STORAGE_OVERHEAD
    virtual_devices, extended = _devices(vmi, rendering)
    limits |= virtual_devices
    vmi_amounts: Amounts = (limits, requests)
    calculated: Amounts = ({}, {})
    if rendering.profile.fills_memory and not requests.get(MEMORY):
        fill_memory(domain.memory, rendering, vmi_amounts)
    if domain.cpu is not None and domain.cpu.dedicated_cpu_placement:
        _pin_cpus(vmi, domain.cpu, rendering.profile, vmi_amounts, calculated)
    else:
        _share_cpus(domain, rendering, calculated, limited=CPU in limited)
    if rendering.profile.supplemental_pool is SupplementalPool.IN_LIMITS and (threads := _policy_pool(domain)):
        limits[CPU] = limits.get(CPU, ZERO) + Quantity.of(threads)
    _add_overhead(domain, overhead, vmi_amounts, calculated)
    if MEMORY in limited:
        limit = int(float(requests[MEMORY].value()) * rendering.memory_limits_ratio)
        calculated[0][MEMORY] = Quantity.of(limit, requests[MEMORY].format)
    for name in extended:
        for amounts in calculated:
            amounts[name] = amounts.get(name, ZERO) + _ONE
    return calculated[0] | limits, calculated[1] | requests


def _devices(vmi: VirtualMachineInstance, rendering: Rendering) -> tuple[ResourceList, list[str]]:
    """Returns the virtualization devices to limit, and the extended resources of the VM's devices, an entry each."""
    domain, profile = vmi.spec.domain, rendering.profile
    devices, security, interfaces = domain.devices, domain.launch_security, domain.devices.interfaces or ()
    emulated = rendering.kubevirt.developer_configuration.use_emulation
    counted: list[str] = []
    if rendering.network_resources and not rendering.has_gate("ExternalNetResourceInjection"):
        names = [network.multus.network_name for network in vmi.spec.networks or () if network.multus is not None]
        keys = [name if "/" in name else f"{vmi.namespace}/{name}" for name in names]
        counted += filter(None, map(rendering.network_resources.get, keys))
    for device in (*(devices.gpus or ()), *(devices.host_devices or ())):
        is_claimed = profile.device_claims and (device.claim_name is not None or device.request_name is not None)
        counted += [device.device_name] if device.device_name and not is_claimed else []
    extended = {
        "sev": security.is_sev(profile.knows_snp),
        "tdx": security.tdx is not None and profile.tdx_device,
        "pr-helper": any(disk.lun.reservation for disk in devices.disks or ()),
        "iommufd": rendering.has_gate("IOMMUFD"),
    }
    # KubeVirt pkg/virt-config GetHypervisorFromKvConfig: the first that the CR names.
    hypervisors = (rendering.kubevirt.hypervisors or ()) if rendering.has_gate("ConfigurableHypervisor") else ()
    virtual = {
        "tun": bool(interfaces) or devices.autoattach_pod_interface is not False,
        "vhost-net": not emulated and any(interface.model in ("", "virtio") for interface in interfaces),
        "mshv" if hypervisors and hypervisors[0].name == "hyperv-direct" else "kvm": not emulated,
        "vhost-vsock": bool(devices.autoattach_vsock),
    }
    counted += [_DEVICES + name for name, is_used in extended.items() if is_used]
    return {_DEVICES + name: _ONE for name, is_used in virtual.items() if is_used}, counted


def compute_container(pod: Pod) -> Container | None:
    return next((container for container in pod.spec.containers if container.name == COMPUTE), None)


def _share_cpus(domain: DomainSpec, rendering: Rendering, calculated: Amounts, *, limited: bool) -> None:
    limits, requests = calculated
    vcpus = 1 if domain.cpu is None else domain.cpu.vcpus
    if rendering.profile.supplemental_pool is SupplementalPool.AS_VCPUS:
        vcpus += domain.io_threads.supplemental_pool_thread_count
    if vcpus == 0:
        return
    ratio = rendering.kubevirt.developer_configuration.cpu_allocation_ratio or 0
    share = vcpus / (ratio if ratio > 0 else 10)  # as in `fill_memory`
    # Printed and parsed, as KubeVirt does it: what is not a whole milli comes out rounded up to a nano.
    number, unit = (share, "") if share >= 1 else (share * 1000, "m")
    requests[CPU] = Quantity.parse(repr(number).removesuffix(".0") + unit)
    if limited:
        limits[CPU] = Quantity.of(vcpus)


def _pin_cpus(
    vmi: VirtualMachineInstance, cpu: DomainCPU, profile: Profile, vmi_amounts: Amounts, calculated: Amounts
) -> None:
    """Requests a dedicated topology, with a thread for an isolated emulator; memory is limited to its request."""
    limits, requests = vmi_amounts
    rule, vcpus, pool = profile.supplemental_pool, cpu.vcpus, vmi.spec.domain.io_threads.supplemental_pool_thread_count
    if rule is SupplementalPool.AS_VCPUS:  # instead of the VMI's own limit and request
        for amounts in vmi_amounts:
            if vcpus:
                amounts[CPU] = Quantity.of(vcpus + pool)
            elif CPU in amounts:
                amounts[CPU] += Quantity.of(pool)
    elif vcpus:  # beneath its own limit, and alone what an emulator thread adds to
        calculated[0][CPU] = Quantity.of(vcpus)
    elif CPU in limits:
        requests[CPU] = limits[CPU]
    elif CPU in requests:
        limits[CPU] = requests[CPU]
    if cpu.isolate_emulator_thread:
        base = (limits if rule is SupplementalPool.AS_VCPUS else calculated[0]).get(CPU, ZERO)
        threads = 0 if rule is SupplementalPool.IGNORED else _policy_pool(vmi.spec.domain)
        parity = profile.even_parity and ANNOTATION_EVEN_PARITY in vmi.annotations
        emulator = Quantity.of(2 if parity and (base.value() + threads) % 2 == 0 else 1)
        limits[CPU] = base + emulator
        if CPU in requests:
            requests[CPU] += emulator
    if MEMORY in requests or rule is not SupplementalPool.AS_VCPUS:
        limits[MEMORY] = requests.get(MEMORY, ZERO)


def _policy_pool(domain: DomainSpec) -> int:
    """Returns the threads of the supplemental pool if the VM's policy uses it, else 0."""
    return domain.io_threads.supplemental_pool_thread_count if domain.io_threads_policy == "supplementalPool" else 0


def fill_memory(memory: Memory, rendering: Rendering, vmi_amounts: Amounts) -> None:
    """Sets an unset request of memory: to the limit, else to the guest's memory, else to a huge page."""
    limits, requests = vmi_amounts
    if limits.get(MEMORY, ZERO):
        requests[MEMORY] = limits[MEMORY]
    elif MEMORY not in requests:
        page_size = memory.hugepages.page_size if memory.hugepages else "0"
        guest = Quantity.parse(page_size) if memory.guest is None else parse_wire(memory.guest)
        if guest.value() > 0:
            # Below one, which the API server stores, KubeVirt goes on without it (pkg/virt-config, validateConfig).
            overcommit = rendering.kubevirt.developer_configuration.memory_overcommit or 100  # in percent
            is_whole = overcommit < 1 or overcommit == 100
            requests[MEMORY] = guest if is_whole else Quantity.of(guest.value() * 100 // overcommit, guest.format)


def _add_overhead(domain: DomainSpec, overhead: Quantity, vmi_amounts: Amounts, calculated: Amounts) -> None:
    limits, requests = vmi_amounts
    request, limit = requests.get(MEMORY, ZERO), limits.get(MEMORY)
    memory, is_spared = domain.memory, domain.resources.overcommit_guest_overhead
    if memory.hugepages is not None:
        # The guest's memory is counted as huge pages; as memory only what is beyond the guest.
        guest = parse_wire(memory.guest) if memory.guest is not None else None
        is_spared, excess = False, _excess(request, guest)
        for amounts in calculated:
            amounts[f"hugepages-{memory.hugepages.page_size}"] = guest if guest is not None and excess else request
        request, limit = excess, None if limit is None else _excess(limit, guest)
    requests[MEMORY] = request if is_spared else request + overhead
    if limit is not None:
        limits[MEMORY] = limit + overhead


def _excess(amount: Quantity, guest: Quantity | None) -> Quantity:
    return amount - guest if guest is not None and amount.value() > guest.value() else ZERO
