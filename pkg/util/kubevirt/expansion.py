"""A VM as KubeVirt expands it when it starts: by its instancetype and preference, to a VMI, with defaults. Pure.

Source: KubeVirt pkg/instancetype (apply, find) and pkg/instancetype/preference/apply, 1.0 to master;
pkg/defaults (SetDefaultGuestCPUTopology), pkg/virt-api/webhooks (SetDefaultResourceRequests)."""

import ctypes
from typing import Any

from msgspec.structs import replace

from kubeloop.api.meta import Object, ObjectMeta
from kubeloop.api.quantity import Quantity, parse_wire
from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from pkg.api.instancetype import InstancetypeSpec, PreferenceSpec
from pkg.api.kubevirt import (
    CPU,
    Bootloader,
    DomainSpec,
    Firmware,
    InstancetypeMatcher,
    Memory,
    VirtualMachine,
    VirtualMachineInstance,
)
from pkg.util import constants
from pkg.util.kubevirt.compute_container import fill_memory, memory_overcommit
from pkg.util.kubevirt.profiles import MemoryRequest
from pkg.util.kubevirt.rendering import Rendering

_PREFERRED = ("autoattach_graphics_device", "autoattach_pod_interface", "autoattach_serial_console", "tpm")


class Instancetypes:
    """The instancetypes and preferences that were read."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Any] = {}

    def add(self, obj: Object) -> None:
        self._objects[type(obj).__name__.lower(), obj.namespace, obj.name] = obj

    def expanded(self, vm: VirtualMachine) -> VirtualMachine:
        """Returns the VM with what instancetype and preference give; it names those not read. Raises QuantityError."""
        spec, template = vm.spec, vm.spec.template
        domain, architecture = template.spec.domain, template.spec.architecture
        annotations: dict[str, str] = {}
        if instancetype := self._find(vm, "instancetype"):
            domain, spec = _with_instancetype(domain, instancetype), replace(spec, instancetype=None)
            annotations |= instancetype.annotations or {}
        if preference := self._find(vm, "preference"):
            domain, spec = _with_preference(domain, preference), replace(spec, preference=None)
            architecture = architecture or preference.preferred_architecture
            annotations |= preference.annotations or {}
        vmi_spec = replace(template.spec, domain=domain, architecture=architecture)
        metadata = replace(template.metadata, annotations=annotations | (template.metadata.annotations or {}))
        return replace(vm, spec=replace(spec, template=replace(template, metadata=metadata, spec=vmi_spec)))

    def _find(self, vm: VirtualMachine, kind: str) -> Any:
        """Returns the spec that a VM names, as it is now; None if it was not read."""
        matcher: InstancetypeMatcher | None = getattr(vm.spec, kind)
        if matcher is None:
            return None
        named_kind = (matcher.kind or f"virtualmachinecluster{kind}").lower().removesuffix("s")
        obj = self._objects.get((named_kind, "" if "cluster" in named_kind else vm.namespace, matcher.name))
        return obj and obj.spec


def missing_instancetype(vm: VirtualMachine) -> str:
    """Returns the object that gives a VM its size and was not read, as text; "" if the VM's spec has its size."""
    for kind, matcher in (("instancetype", vm.spec.instancetype), ("preference", vm.spec.preference)):
        if matcher is not None:
            return f"{kind} {matcher.name or 'that a volume names'}"
    return ""


def _with_instancetype(domain: DomainSpec, spec: InstancetypeSpec) -> DomainSpec:
    """Returns the domain with the size. How the preference arranges the vCPUs, as sockets or cores, costs nothing."""
    own, pinned, isolated = domain.cpu or CPU(), spec.cpu.dedicated_cpu_placement, spec.cpu.isolate_emulator_thread
    cpu = CPU(
        cores=1,
        sockets=spec.cpu.guest,
        threads=1,
        dedicated_cpu_placement=own.dedicated_cpu_placement if pinned is None else pinned,
        isolate_emulator_thread=own.isolate_emulator_thread if isolated is None else isolated,
    )
    memory, resources, devices = domain.memory or Memory(), domain.resources, domain.devices
    memory = replace(memory, guest=spec.memory.guest, hugepages=spec.memory.hugepages or memory.hugepages)
    if spec.memory.overcommit_percent and spec.memory.guest is not None:
        guest, share = parse_wire(spec.memory.guest), _float32(1 - _float32(spec.memory.overcommit_percent / 100))
        request = Quantity.of(int(_float32(_float32(guest.value()) * share)), guest.format)
        resources = replace(resources, requests={**(resources.requests or {}), constants.MEMORY: str(request)})
    gpus, host_devices = spec.gpus or devices.gpus, spec.host_devices or devices.host_devices
    return replace(
        domain,
        cpu=cpu,
        memory=memory,
        resources=resources,
        devices=replace(devices, gpus=gpus, host_devices=host_devices),
        io_threads_policy=spec.io_threads_policy or domain.io_threads_policy,
        io_threads=spec.io_threads or domain.io_threads,
        launch_security=spec.launch_security or domain.launch_security,
    )


def _float32(number: float) -> float:
    """Returns the number as Go's float32 has it, in which KubeVirt computes."""
    value: float = ctypes.c_float(number).value
    return value


def _with_preference(domain: DomainSpec, spec: PreferenceSpec) -> DomainSpec:
    """Returns the domain with what is preferred where it says nothing itself."""
    unset = [name for name in _PREFERRED if getattr(domain.devices, name) is None]
    devices = replace(domain.devices, **{name: getattr(spec.devices, f"preferred_{name}") for name in unset})
    firmware, efi = domain.firmware or Firmware(), spec.firmware.preferred_efi
    if efi is not None and firmware.bootloader is None:
        firmware = replace(firmware, bootloader=Bootloader(efi=efi))
    return replace(domain, devices=devices, firmware=firmware)


def vmi_of(vm: VirtualMachine) -> VirtualMachineInstance:
    """Returns the VMI that KubeVirt makes of a VM when it starts."""
    template = vm.spec.template
    labels, annotations = template.metadata.labels, template.metadata.annotations
    metadata = ObjectMeta(name=vm.name, namespace=vm.namespace, labels=labels, annotations=annotations)
    return VirtualMachineInstance(metadata=metadata, spec=template.spec)


def with_defaults(vmi: VirtualMachineInstance, rendering: Rendering) -> VirtualMachineInstance:
    """Returns the VMI with a CPU topology, and up to the release in which virt-controller does it with a request of
    memory. Raises QuantityError if a quantity is invalid."""
    vmi = with_topology(vmi)
    domain, resources = vmi.spec.domain, vmi.spec.domain.resources
    requests = parse_resource_list(resources.requests)
    if rendering.profile.memory_request is MemoryRequest.FILLED or requests.get(constants.MEMORY):
        return vmi
    fill_memory(domain.memory, memory_overcommit(rendering), (parse_resource_list(resources.limits), requests))
    domain = replace(domain, resources=replace(resources, requests=format_resource_list(requests)))
    return replace(vmi, spec=replace(vmi.spec, domain=domain))


def with_topology(vmi: VirtualMachineInstance) -> VirtualMachineInstance:
    """Returns the VMI with a CPU topology: sockets by its limit, its request, or one. Raises QuantityError."""
    domain = vmi.spec.domain
    cpu = domain.cpu or CPU()
    if cpu.vcpus:
        return vmi
    amounts = parse_resource_list(domain.resources.requests) | parse_resource_list(domain.resources.limits)
    sockets = amounts[constants.CPU].value() if constants.CPU in amounts else 1
    domain = replace(domain, cpu=replace(cpu, sockets=sockets, cores=1, threads=1))
    return replace(vmi, spec=replace(vmi.spec, domain=domain))
