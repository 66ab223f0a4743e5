"""A VM as KubeVirt expands it when it starts: by its instancetype and preference, to a VMI, with defaults. Pure.

Source: KubeVirt pkg/instancetype (apply, find) and pkg/instancetype/preference/apply, 1.0 to master;
pkg/defaults (SetDefaultGuestCPUTopology), pkg/virt-api/webhooks (SetDefaultResourceRequests)."""

import ctypes
from typing import Any

from msgspec.structs import replace

from kubeloop.api.meta import Object, ObjectMeta, RawResourceList
from kubeloop.api.objects import Patch, edit
from kubeloop.api.quantity import Quantity, parse_wire
from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from pkg.api.instancetype import InstancetypeSpec, PreferenceSpec
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec
from pkg.util import constants
from pkg.util.kubevirt.compute_container import fill_memory
from pkg.util.kubevirt.rendering import Rendering


class Instancetypes:
    """The instancetypes and preferences that were read."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Any] = {}

    def add(self, obj: Object) -> None:
        self._objects[type(obj).__name__.lower(), obj.namespace, obj.name] = obj

    def expanded(self, vm: VirtualMachine) -> VirtualMachine:
        """Returns the VM with what instancetype and preference give; it names those not read. Raises QuantityError."""
        annotations: dict[str, str] = {}
        if instancetype := self._find(vm, "instancetype"):
            size = {"domain": _size(instancetype, vm.spec.template.spec.domain.resources.requests)}
            vm = edit(vm, spec={"instancetype": None, "template": {"spec": size}})
            annotations |= instancetype.annotations or {}
        if preference := self._find(vm, "preference"):
            preferred = _preferred(preference, vm.spec.template.spec)
            vm = edit(vm, spec={"preference": None, "template": {"spec": preferred}})
            annotations |= preference.annotations or {}
        template = vm.spec.template
        metadata = replace(template.metadata, annotations={**annotations, **(template.metadata.annotations or {})})
        return replace(vm, spec=replace(vm.spec, template=replace(template, metadata=metadata)))

    def _find(self, vm: VirtualMachine, kind: str) -> Any:
        """Returns the spec that a VM names, as it is now; None if it was not read."""
        matcher = vm.spec.instancetype if kind == "instancetype" else vm.spec.preference
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


def _size(spec: InstancetypeSpec, own_requests: RawResourceList | None) -> Patch:
    """Returns what an instancetype sets in a domain. The preference's arrangement of the vCPUs costs nothing."""
    pinned, isolated = spec.cpu.dedicated_cpu_placement, spec.cpu.isolate_emulator_thread
    domain: Patch = {
        "cpu": {"cores": 1, "sockets": spec.cpu.guest, "threads": 1}
        | _given(dedicated_cpu_placement=pinned, isolate_emulator_thread=isolated),
        # As text: `edit` writes JSON, which has no infinity, and a file that says `.inf` is to be refused by name.
        "memory": {"guest": None if spec.memory.guest is None else str(spec.memory.guest)}
        | _given(hugepages=spec.memory.hugepages),
        "devices": _given(gpus=spec.gpus, host_devices=spec.host_devices),
    }
    if spec.memory.overcommit_percent and spec.memory.guest is not None:
        guest, share = parse_wire(spec.memory.guest), _float32(1 - _float32(spec.memory.overcommit_percent / 100))
        request = Quantity.of(int(_float32(_float32(guest.value()) * share)), guest.format)
        requests = parse_resource_list(own_requests) | {constants.MEMORY: request}
        domain["resources"] = {"requests": format_resource_list(requests)}
    threads = _given(io_threads_policy=spec.io_threads_policy, io_threads=spec.io_threads)
    return domain | threads | _given(launch_security=spec.launch_security)


def _given(**fields: object) -> Patch:
    """Returns the fields that are set."""
    return {name: value for name, value in fields.items() if value or value is False}


def _float32(number: float) -> float:
    """Returns the number as Go's float32 has it, in which KubeVirt computes."""
    value: float = ctypes.c_float(number).value
    return value


def _preferred(preference: PreferenceSpec, spec: VirtualMachineInstanceSpec) -> Patch:
    """Returns what is preferred where the spec of a VMI says nothing itself."""
    devices, efi = spec.domain.devices, preference.firmware.preferred_efi
    names = ("autoattach_graphics_device", "autoattach_pod_interface", "autoattach_serial_console", "tpm")
    unset_names = [name for name in names if getattr(devices, name) is None]
    domain: Patch = {"devices": {name: getattr(preference.devices, f"preferred_{name}") for name in unset_names}}
    if efi is not None and spec.domain.firmware.bootloader is None:
        domain["firmware"] = {"bootloader": {"efi": efi}}
    return {"domain": domain, "architecture": spec.architecture or preference.preferred_architecture}


def vmi_of(vm: VirtualMachine) -> VirtualMachineInstance:
    """Returns the VMI that KubeVirt makes of a VM when it starts."""
    meta = vm.spec.template.metadata
    metadata = ObjectMeta(name=vm.name, namespace=vm.namespace, labels=meta.labels, annotations=meta.annotations)
    return VirtualMachineInstance(metadata=metadata, spec=vm.spec.template.spec)


def with_defaults(vmi: VirtualMachineInstance, rendering: Rendering) -> VirtualMachineInstance:
    """Returns the VMI as virt-api completes it: CPU topology, in older releases memory too. Raises QuantityError."""
    vmi = with_topology(vmi)
    domain = vmi.spec.domain
    requests = parse_resource_list(domain.resources.requests)
    if rendering.profile.fills_memory or requests.get(constants.MEMORY):
        return vmi
    fill_memory(domain.memory, rendering, (parse_resource_list(domain.resources.limits), requests))
    return edit(vmi, spec={"domain": {"resources": {"requests": format_resource_list(requests)}}})


def with_topology(vmi: VirtualMachineInstance) -> VirtualMachineInstance:
    """Returns the VMI with a CPU topology: sockets by its limit, its request, or one. Raises QuantityError."""
    domain = vmi.spec.domain
    if domain.cpu and domain.cpu.vcpus:
        return vmi
    amounts = parse_resource_list(domain.resources.requests) | parse_resource_list(domain.resources.limits)
    sockets = amounts[constants.CPU].value() if constants.CPU in amounts else 1
    return edit(vmi, spec={"domain": {"cpu": {"sockets": sockets, "cores": 1, "threads": 1}}})
