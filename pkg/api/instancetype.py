"""instancetype.kubevirt.io/v1beta1: what a VM names to be given its size; the fields that decide a launcher's cost."""

from typing import Any

import msgspec

from kubeloop.api.meta import Object, RawQuantity, Struct
from kubeloop.api.registry import Resource
from pkg.api.kubevirt import EFI, TPM, DiskIOThreads, HostDevice, Hugepages, LaunchSecurity


class CPUInstancetype(Struct):
    guest: int = 0
    dedicated_cpu_placement: bool | None = msgspec.field(default=None, name="dedicatedCPUPlacement")
    isolate_emulator_thread: bool | None = None


class MemoryInstancetype(Struct):
    guest: RawQuantity | None = None
    hugepages: Hugepages | None = None
    overcommit_percent: int = 0


class InstancetypeSpec(Struct):
    cpu: CPUInstancetype = CPUInstancetype()
    memory: MemoryInstancetype = MemoryInstancetype()
    gpus: list[HostDevice] | None = None
    host_devices: list[HostDevice] | None = None
    io_threads_policy: str | None = None
    io_threads: DiskIOThreads | None = None
    launch_security: LaunchSecurity | None = None
    annotations: dict[str, str] | None = None


class DevicePreferences(Struct):
    preferred_autoattach_graphics_device: bool | None = None
    preferred_autoattach_pod_interface: bool | None = None
    preferred_autoattach_serial_console: bool | None = None
    preferred_tpm: TPM | None = msgspec.field(default=None, name="preferredTPM")


class FirmwarePreferences(Struct):
    preferred_efi: EFI | None = None


class PreferenceSpec(Struct):
    devices: DevicePreferences = DevicePreferences()
    firmware: FirmwarePreferences = FirmwarePreferences()
    preferred_architecture: str | None = None
    annotations: dict[str, str] | None = None


class VirtualMachineInstancetype(Object):
    spec: InstancetypeSpec = InstancetypeSpec()


class VirtualMachineClusterInstancetype(Object):
    spec: InstancetypeSpec = InstancetypeSpec()


class VirtualMachinePreference(Object):
    spec: PreferenceSpec = PreferenceSpec()


class VirtualMachineClusterPreference(Object):
    spec: PreferenceSpec = PreferenceSpec()


def _resource(kind: type[Object]) -> Resource[Any]:
    name = kind.__name__
    return Resource("instancetype.kubevirt.io", "v1beta1", f"{name.lower()}s", name, kind, "Cluster" not in name)


INSTANCETYPES = [_resource(kind) for kind in (VirtualMachineInstancetype, VirtualMachineClusterInstancetype)]
INSTANCETYPES += [_resource(kind) for kind in (VirtualMachinePreference, VirtualMachineClusterPreference)]
