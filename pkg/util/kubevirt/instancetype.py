"""Expands a VM by its instancetype and its preference, as KubeVirt does when it starts it. Pure.

Source: KubeVirt pkg/instancetype (apply, find, revision) and pkg/instancetype/preference/apply, 1.0 to master.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from kubeloop.api.meta import Object
from kubeloop.api.quantity import Quantity, parse_wire
from pkg.api.instancetype import ControllerRevision, InstancetypeSpec, PreferenceSpec
from pkg.api.kubevirt import (
    CPU,
    Bootloader,
    DomainSpec,
    Firmware,
    InstancetypeMatcher,
    InstancetypeStatusRef,
    Memory,
    VirtualMachine,
)
from pkg.util import constants

_LABEL_OBJECT: Final = "instancetype.kubevirt.io/object-name"
"""Of a ControllerRevision: the name of the object that it is of."""
T = TypeVar("T", InstancetypeSpec, PreferenceSpec)


class Instancetypes:
    """The instancetypes and preferences that were read, and the revisions of them that VMs have."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Any] = {}

    def add(self, obj: Object) -> None:
        self._objects[type(obj).__name__.lower(), obj.namespace, obj.name] = obj

    def expanded(self, vm: VirtualMachine) -> VirtualMachine:
        """Returns the VM with what its instancetype and its preference give it; it still names what was not read.
        Raises QuantityError if a quantity is invalid."""
        spec, status, namespace = vm.spec, vm.status, vm.namespace
        domain, metadata = spec.template.spec.domain, spec.template.metadata
        annotations: dict[str, str] = {}
        if instancetype := self._find(InstancetypeSpec, spec.instancetype, status.instancetype_ref, namespace):
            domain, spec = _with_instancetype(domain, instancetype), replace(spec, instancetype=None)
            annotations |= instancetype.annotations or {}
        architecture = spec.template.spec.architecture
        if preference := self._find(PreferenceSpec, spec.preference, status.preference_ref, namespace):
            domain, spec = _with_preference(domain, preference), replace(spec, preference=None)
            architecture = architecture or preference.preferred_architecture
            annotations |= preference.annotations or {}
        vmi_spec = replace(spec.template.spec, domain=domain, architecture=architecture)
        metadata = replace(metadata, annotations={**annotations, **(metadata.annotations or {})})
        return replace(vm, spec=replace(spec, template=replace(spec.template, metadata=metadata, spec=vmi_spec)))

    def _find(
        self,
        kind: type[T],
        matcher: InstancetypeMatcher | None,
        reference: InstancetypeStatusRef | None,
        namespace: str,
    ) -> T | None:
        """Returns what a VM names; its revision, if it has one, is what KubeVirt goes by. None if it was not read."""
        if matcher is None:
            return None
        revision: ControllerRevision | None = self._objects.get(
            ("controllerrevision", namespace, _revision_name(matcher, reference))
        )
        # The status may still name that of another object, which the VM named before.
        if revision and (matcher.revision_name or revision.labels.get(_LABEL_OBJECT) == matcher.name):
            try:
                return msgspec.convert((revision.data or {})["spec"], kind)
            except (KeyError, msgspec.ValidationError):  # of releases before 1.0
                return None
        short = "instancetype" if kind is InstancetypeSpec else "preference"
        named_kind = (matcher.kind or f"virtualmachinecluster{short}").lower().removesuffix("s")
        obj = self._objects.get((named_kind, "" if "cluster" in named_kind else namespace, matcher.name))
        return None if obj is None else obj.spec


def revision_names(vm: VirtualMachine) -> list[str]:
    """Returns the names of the ControllerRevisions that the VM is started by."""
    pairs = (vm.spec.instancetype, vm.status.instancetype_ref), (vm.spec.preference, vm.status.preference_ref)
    return list(filter(None, (_revision_name(matcher, reference) for matcher, reference in pairs if matcher)))


def _revision_name(matcher: InstancetypeMatcher, reference: InstancetypeStatusRef | None) -> str:
    return matcher.revision_name or (reference.controller_revision_ref.name if reference else "")


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
    memory, resources, guest_memory = domain.memory or Memory(), domain.resources, spec.memory.guest
    memory = replace(memory, guest=guest_memory, hugepages=spec.memory.hugepages or memory.hugepages)
    if spec.memory.overcommit_percent and guest_memory is not None:
        guest, share = parse_wire(guest_memory), _float32(1 - _float32(_float32(spec.memory.overcommit_percent) / 100))
        request = Quantity.of(int(_float32(_float32(guest.value()) * share)), guest.format)
        resources = replace(resources, requests={**(resources.requests or {}), constants.MEMORY: str(request)})
    return replace(
        domain,
        cpu=cpu,
        memory=memory,
        resources=resources,
        devices=replace(
            domain.devices,
            gpus=spec.gpus or domain.devices.gpus,
            host_devices=spec.host_devices or domain.devices.host_devices,
        ),
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
    devices, preferred = domain.devices, spec.devices
    preferences = {
        "autoattach_graphics_device": preferred.preferred_autoattach_graphics_device,
        "autoattach_pod_interface": preferred.preferred_autoattach_pod_interface,
        "autoattach_serial_console": preferred.preferred_autoattach_serial_console,
        "tpm": preferred.preferred_tpm,
    }
    devices = replace(devices, **{name: value for name, value in preferences.items() if getattr(devices, name) is None})
    firmware, efi = domain.firmware or Firmware(), spec.firmware.preferred_efi
    if efi is not None and firmware.bootloader is None:
        firmware = replace(firmware, bootloader=Bootloader(efi=efi))
    return replace(domain, devices=devices, firmware=firmware)
