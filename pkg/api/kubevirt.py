"""kubevirt.io/v1: the fields that decide what a launcher pod costs and where a migration stands.

Classes are named as in KubeVirt's API where nothing else is said.
"""

from __future__ import annotations

import math

import msgspec

from kubeloop.api.core import ResourceRequirements
from kubeloop.api.meta import Condition, LabelSelector, Object, RawQuantity, RawResourceList, Struct
from kubeloop.api.registry import Resource


class Present(Struct):
    """A field of which only the presence matters."""


class Feature(Struct):
    """A device that is there unless `enabled` is false."""

    enabled: bool | None = None


class CPU(Struct):
    cores: int = 0
    sockets: int = 0
    threads: int = 0
    dedicated_cpu_placement: bool = msgspec.field(default=False, name="dedicatedCpuPlacement")
    isolate_emulator_thread: bool = False

    @property
    def vcpus(self) -> int:
        """cores × sockets × threads, a zero factor left out; zero if all are."""
        factors = [factor for factor in (self.cores, self.sockets, self.threads) if factor]
        return math.prod(factors) if factors else 0


class Hugepages(Struct):
    page_size: str = ""


class ReservedOverhead(Struct):
    added_overhead: RawQuantity | None = None


class Memory(Struct):
    guest: RawQuantity | None = None
    hugepages: Hugepages | None = None
    reserved_overhead: ReservedOverhead | None = None


class PluginBinding(Struct):
    """kubevirt.io/v1 PluginBinding: by the name that the KubeVirt CR registers it under."""

    name: str = ""


class Interface(Struct):
    """kubevirt.io/v1 Interface. `passt` is the binding of KubeVirt up to 1.2, `passtBinding` that since 1.8."""

    name: str = ""
    model: str = ""
    sriov: Present | None = None
    binding: PluginBinding | None = None
    passt: Present | None = None
    passt_binding: Present | None = None
    ports: list[Present] | None = None


class MultusNetwork(Struct):
    """kubevirt.io/v1 MultusNetwork: a NetworkAttachmentDefinition, `namespace/name` or a name in the VMI's own."""

    network_name: str = ""


class Network(Struct):
    name: str = ""
    multus: MultusNetwork | None = None


class LunTarget(Struct):
    reservation: bool = False


class Disk(Struct):
    name: str = ""
    lun: LunTarget | None = None


class Filesystem(Struct):
    """kubevirt.io/v1 Filesystem: each is served by a container of its own."""

    name: str = ""


class HostDevice(Struct):
    """kubevirt.io/v1 HostDevice and GPU: the extended resource a device counts as.

    With a claim it comes from dynamic resource allocation and counts as none.
    """

    name: str = ""
    device_name: str = ""
    claim_name: str | None = None
    request_name: str | None = None

    @property
    def is_claimed(self) -> bool:
        return self.claim_name is not None or self.request_name is not None


class Devices(Struct):
    autoattach_graphics_device: bool | None = None
    autoattach_pod_interface: bool | None = None
    autoattach_serial_console: bool | None = None
    autoattach_vsock: bool | None = msgspec.field(name="autoattachVSOCK", default=None)
    log_serial_console: bool | None = None
    disks: list[Disk] | None = None
    filesystems: list[Filesystem] | None = None
    gpus: list[HostDevice] | None = None
    host_devices: list[HostDevice] | None = None
    interfaces: list[Interface] | None = None
    tpm: TPM | None = None
    downward_metrics: Present | None = None


class TPM(Feature):
    """kubevirt.io/v1 TPMDevice."""

    persistent: bool = False


class LaunchSecurity(Struct):
    sev: Present | None = None
    snp: Present | None = None
    tdx: Present | None = None


class DomainResources(ResourceRequirements):
    """kubevirt.io/v1 ResourceRequirements of a domain."""

    overcommit_guest_overhead: bool = False


class DiskIOThreads(Struct):
    supplemental_pool_thread_count: int | None = None


class KernelBoot(Struct):
    """kubevirt.io/v1 KernelBoot: an image to boot from costs containers, as a container disk does."""

    container: Present | None = None


class EFI(Struct):
    persistent: bool = False


class Bootloader(Struct):
    efi: EFI | None = None


class Firmware(Struct):
    bootloader: Bootloader | None = None
    kernel_boot: KernelBoot | None = None


class DomainSpec(Struct):
    cpu: CPU | None = None
    memory: Memory | None = None
    resources: DomainResources = DomainResources()
    devices: Devices = Devices()
    launch_security: LaunchSecurity | None = None
    io_threads_policy: str | None = None
    io_threads: DiskIOThreads | None = None
    firmware: Firmware | None = None


class Probe(Struct):
    """kubevirt.io/v1 Probe: only the exec form costs memory."""

    exec: Present | None = None


class HotplugSource(Struct):
    """The source of a volume that can be plugged into a running VM."""

    claim_name: str = ""
    name: str = ""
    hotpluggable: bool = False


class ContainerDiskSource(Struct):
    image: str = ""


class ContainerPathSource(Struct):
    """kubevirt.io/v1 ContainerPathVolumeSource: a path of the compute container that the guest gets."""

    path: str = ""
    read_only: bool = False


class Volume(Struct):
    name: str = ""
    downward_metrics: Present | None = None
    container_disk: ContainerDiskSource | None = None
    container_path: ContainerPathSource | None = None
    persistent_volume_claim: HotplugSource | None = None
    data_volume: HotplugSource | None = None


class VirtualMachineInstanceSpec(Struct):
    domain: DomainSpec = DomainSpec()
    architecture: str | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    volumes: list[Volume] | None = None
    networks: list[Network] | None = None
    priority_class_name: str | None = None


class MigrationState(Struct):
    """kubevirt.io/v1 VirtualMachineInstanceMigrationState."""

    migration_uid: str | None = msgspec.field(default=None, name="migrationUid")
    completed: bool = False
    failed: bool = False
    abort_requested: bool = False
    abort_status: str | None = None
    source_pod: str | None = None
    target_pod: str | None = None
    source_node: str | None = None
    end_timestamp: str | None = None
    source_persistent_state_claim: str | None = msgspec.field(default=None, name="sourcePersistentStatePVCName")
    target_persistent_state_claim: str | None = msgspec.field(default=None, name="targetPersistentStatePVCName")


class MemoryStatus(Struct):
    """kubevirt.io/v1 MemoryStatus: newer releases report the overhead that they rendered."""

    memory_overhead: RawQuantity | None = None


class AttachmentPod(Struct):
    """kubevirt.io/v1 HotplugVolumeStatus."""

    attach_pod_name: str | None = None
    attach_pod_uid: str | None = None


class ClaimInfo(Struct):
    """kubevirt.io/v1 PersistentVolumeClaimInfo."""

    claim_name: str = ""
    requests: RawResourceList | None = None


class MigratedVolume(Struct):
    """kubevirt.io/v1 StorageMigratedVolumeInfo."""

    volume_name: str = ""
    source: ClaimInfo | None = msgspec.field(default=None, name="sourcePVCInfo")
    destination: ClaimInfo | None = msgspec.field(default=None, name="destinationPVCInfo")


class VolumeStatus(Struct):
    name: str = ""
    phase: str | None = None
    persistent_volume_claim_info: ClaimInfo | None = None
    hotplug_volume: AttachmentPod | None = None


class ChangedBlockTracking(Struct):
    """kubevirt.io/v1 ChangedBlockTrackingStatus."""

    state: str = ""


class VirtualMachineInstanceStatus(Struct):
    phase: str | None = None
    node_name: str | None = None
    conditions: list[Condition] | None = None
    migration_state: MigrationState | None = None
    memory: MemoryStatus | None = None
    volume_status: list[VolumeStatus] | None = None
    changed_block_tracking: ChangedBlockTracking | None = None
    migrated_volumes: list[MigratedVolume] | None = None


class VirtualMachineInstance(Object):
    """kubevirt.io/v1 VirtualMachineInstance. Its CRD has no status subresource."""

    spec: VirtualMachineInstanceSpec = VirtualMachineInstanceSpec()
    status: VirtualMachineInstanceStatus = VirtualMachineInstanceStatus()


class VirtualMachineInstanceMigrationSpec(Struct):
    vmi_name: str = ""
    send_to: Present | None = None
    receive: Present | None = None
    priority: str | None = None


class PhaseTransition(Struct):
    """kubevirt.io/v1 VirtualMachineInstanceMigrationPhaseTransitionTimestamp."""

    phase: str = ""
    phase_transition_timestamp: str | None = None


class VirtualMachineInstanceMigrationStatus(Struct):
    phase: str | None = None
    conditions: list[Condition] | None = None
    migration_state: MigrationState | None = None
    phase_transition_timestamps: list[PhaseTransition] | None = None


class VirtualMachineInstanceMigration(Object):
    spec: VirtualMachineInstanceMigrationSpec = VirtualMachineInstanceMigrationSpec()
    status: VirtualMachineInstanceMigrationStatus = VirtualMachineInstanceMigrationStatus()

    @property
    def phase(self) -> str:
        """`""` while KubeVirt has not looked at the migration yet."""
        return self.status.phase or ""


class TemplateMeta(Struct):
    """The metadata of a VM's template."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class VirtualMachineInstanceTemplate(Struct):
    """kubevirt.io/v1 VirtualMachineInstanceTemplateSpec."""

    metadata: TemplateMeta = TemplateMeta()
    spec: VirtualMachineInstanceSpec = VirtualMachineInstanceSpec()


class InstancetypeMatcher(Struct):
    """kubevirt.io/v1 InstancetypeMatcher and PreferenceMatcher."""

    name: str = ""
    kind: str = ""
    revision_name: str = ""


class ControllerRevisionRef(Struct):
    name: str = ""


class InstancetypeStatusRef(Struct):
    """kubevirt.io/v1 InstancetypeStatusRef."""

    controller_revision_ref: ControllerRevisionRef = ControllerRevisionRef()


class VirtualMachineSpec(Struct):
    instancetype: InstancetypeMatcher | None = None
    preference: InstancetypeMatcher | None = None
    run_strategy: str | None = None
    running: bool | None = None
    update_volumes_strategy: str | None = None
    template: VirtualMachineInstanceTemplate = VirtualMachineInstanceTemplate()


class VirtualMachineStatus(Struct):
    printable_status: str | None = None
    instancetype_ref: InstancetypeStatusRef | None = None
    preference_ref: InstancetypeStatusRef | None = None
    created: bool = False
    ready: bool = False


class VirtualMachine(Object):
    spec: VirtualMachineSpec = VirtualMachineSpec()
    status: VirtualMachineStatus = VirtualMachineStatus()


class MigrationConfiguration(Struct):
    """kubevirt.io/v1 MigrationConfiguration: the parallel limits."""

    parallel_migrations_per_cluster: int | None = None
    parallel_outbound_migrations_per_node: int | None = None


class SupportContainerResources(Struct):
    """kubevirt.io/v1 SupportContainerResources: what a kind of support container asks for."""

    type: str = ""
    resources: ResourceRequirements = ResourceRequirements()


class VirtualMachineOptions(Struct):
    disable_serial_console_log: Present | None = None


class DeveloperConfiguration(Struct):
    feature_gates: list[str] | None = None
    disabled_feature_gates: list[str] | None = None
    cpu_allocation_ratio: int | None = None
    memory_overcommit: int | None = None
    use_emulation: bool = False


class InterfaceBindingPlugin(Struct):
    """kubevirt.io/v1 InterfaceBindingPlugin: its sidecar, and what it costs the compute container."""

    sidecar_image: str = ""
    compute_resource_overhead: ResourceRequirements | None = None


class NetworkConfiguration(Struct):
    """kubevirt.io/v1 NetworkConfiguration: the binding plugins by name."""

    binding: dict[str, InterfaceBindingPlugin] | None = None


class HypervisorConfiguration(Struct):
    name: str = ""


class KubeVirtConfiguration(Struct):
    additional_guest_memory_overhead_ratio: str | None = None
    migrations: MigrationConfiguration | None = None
    support_container_resources: list[SupportContainerResources] | None = None
    virtual_machine_options: VirtualMachineOptions | None = None
    developer_configuration: DeveloperConfiguration | None = None
    network: NetworkConfiguration | None = None
    auto_cpu_limit_namespace_label_selector: LabelSelector | None = None
    default_runtime_class: str = ""
    vm_state_storage_class: str = ""
    hypervisors: list[HypervisorConfiguration] | None = None

    @property
    def binding_plugins(self) -> dict[str, InterfaceBindingPlugin]:
        return (self.network.binding or {}) if self.network else {}


class KubeVirtSpec(Struct):
    configuration: KubeVirtConfiguration = KubeVirtConfiguration()


class KubeVirtStatus(Struct):
    phase: str | None = None
    observed_kube_virt_version: str | None = None


class KubeVirt(Object):
    """kubevirt.io/v1 KubeVirt: the installation's configuration."""

    spec: KubeVirtSpec = KubeVirtSpec()
    status: KubeVirtStatus = KubeVirtStatus()


VIRTUAL_MACHINES = Resource(
    "kubevirt.io", "v1", "virtualmachines", "VirtualMachine", VirtualMachine, status_subresource=True
)
VIRTUAL_MACHINE_INSTANCES = Resource(
    "kubevirt.io",
    "v1",
    "virtualmachineinstances",
    "VirtualMachineInstance",
    VirtualMachineInstance,
    status_subresource=False,
)
VIRTUAL_MACHINE_INSTANCE_MIGRATIONS = Resource(
    "kubevirt.io",
    "v1",
    "virtualmachineinstancemigrations",
    "VirtualMachineInstanceMigration",
    VirtualMachineInstanceMigration,
    status_subresource=True,
)
KUBEVIRTS = Resource("kubevirt.io", "v1", "kubevirts", "KubeVirt", KubeVirt, status_subresource=True)
