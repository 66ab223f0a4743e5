"""kubevirt.io/v1: the fields that decide what a launcher pod costs and where a migration stands."""

import math
from typing import TypeVar

import msgspec

from kubeloop.api.core import ResourceRequirements
from kubeloop.api.meta import Condition, LabelSelector, Object, ObjectMeta, RawQuantity, RawResourceList, Struct
from kubeloop.api.registry import Resource

T = TypeVar("T", bound=Object)


class Present(Struct):
    """A field of which only the presence matters."""


class Named(Struct):
    name: str = ""


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
    added_overhead: RawQuantity = "0"


class Memory(Struct):
    guest: RawQuantity | None = None
    hugepages: Hugepages | None = None
    reserved_overhead: ReservedOverhead = ReservedOverhead()


class Interface(Struct):
    model: str = ""
    sriov: Present | None = None
    binding: Named = Named()  # in the KubeVirt CR
    passt: Present | None = None  # up to 1.2
    passt_binding: Present | None = None  # since 1.8
    ports: list[Present] | None = None


class MultusNetwork(Struct):
    network_name: str = ""
    """A NetworkAttachmentDefinition, `namespace/name` or a name in the VMI's own."""


class Network(Struct):
    multus: MultusNetwork | None = None


class LunTarget(Struct):
    reservation: bool = False


class Disk(Struct):
    lun: LunTarget = LunTarget()


class HostDevice(Struct):
    device_name: str = ""  # the extended resource that it counts as, unless it has a claim or a request
    claim_name: str | None = None
    request_name: str | None = None


class TPM(Struct):
    enabled: bool | None = None
    persistent: bool = False


class Devices(Struct):
    autoattach_graphics_device: bool | None = None
    autoattach_pod_interface: bool | None = None
    autoattach_serial_console: bool | None = None
    autoattach_vsock: bool | None = msgspec.field(name="autoattachVSOCK", default=None)
    log_serial_console: bool | None = None
    disks: list[Disk] | None = None
    filesystems: list[Named] | None = None
    gpus: list[HostDevice] | None = None
    host_devices: list[HostDevice] | None = None
    interfaces: list[Interface] | None = None
    tpm: TPM | None = None


class LaunchSecurity(Struct):
    sev: Present | None = None
    snp: Present | None = None
    tdx: Present | None = None

    def is_sev(self, knows_snp: bool) -> bool:
        """Reports whether AMD SEV, in one of the forms that the release knows, encrypts the VM's memory."""
        return self.sev is not None or (knows_snp and self.snp is not None)


class DomainResources(ResourceRequirements):
    overcommit_guest_overhead: bool = False


class DiskIOThreads(Struct):
    supplemental_pool_thread_count: int = 0


class KernelBoot(Struct):
    container: Present | None = None


class EFI(Struct):
    persistent: bool = False


class Bootloader(Struct):
    efi: EFI = EFI()


class Firmware(Struct):
    bootloader: Bootloader | None = None
    kernel_boot: KernelBoot = KernelBoot()


class DomainSpec(Struct):
    cpu: CPU | None = None
    memory: Memory = Memory()
    resources: DomainResources = DomainResources()
    devices: Devices = Devices()
    launch_security: LaunchSecurity = LaunchSecurity()
    io_threads_policy: str | None = None
    io_threads: DiskIOThreads = DiskIOThreads()
    firmware: Firmware = Firmware()


class Probe(Struct):
    exec: Present | None = None


class HotplugSource(Struct):
    claim_name: str = ""
    name: str = ""
    hotpluggable: bool = False


class ContainerPathVolumeSource(Struct):
    read_only: bool = False


class Volume(Struct):
    name: str = ""
    downward_metrics: Present | None = None
    container_disk: Present | None = None
    container_path: ContainerPathVolumeSource | None = None
    persistent_volume_claim: HotplugSource = HotplugSource()
    data_volume: HotplugSource = HotplugSource()


class VirtualMachineInstanceSpec(Struct):
    domain: DomainSpec = DomainSpec()
    architecture: str | None = None
    liveness_probe: Probe = Probe()
    readiness_probe: Probe = Probe()
    volumes: list[Volume] | None = None
    networks: list[Network] | None = None
    priority_class_name: str | None = None


class MigrationState(Struct):
    migration_uid: str | None = msgspec.field(default=None, name="migrationUid")
    completed: bool = False
    failed: bool = False
    abort_status: str | None = None
    source_pod: str | None = None
    target_pod: str | None = None
    source_node: str | None = None
    end_timestamp: str | None = None
    source_persistent_state_claim: str | None = msgspec.field(default=None, name="sourcePersistentStatePVCName")
    target_persistent_state_claim: str | None = msgspec.field(default=None, name="targetPersistentStatePVCName")


class HotplugVolumeStatus(Struct):
    attach_pod_name: str | None = None
    attach_pod_uid: str | None = None


class PersistentVolumeClaimInfo(Struct):
    claim_name: str = ""
    requests: RawResourceList | None = None


class Move(Struct):
    """StorageMigratedVolumeInfo, a volume's move: one that KubeVirt reports, or one that the VM requests."""

    volume_name: str = ""
    source: PersistentVolumeClaimInfo = msgspec.field(default=PersistentVolumeClaimInfo(), name="sourcePVCInfo")
    destination: PersistentVolumeClaimInfo = msgspec.field(
        default=PersistentVolumeClaimInfo(), name="destinationPVCInfo"
    )

    @property
    def claims(self) -> tuple[str, str]:
        """The names of the claims that the volume leaves and moves to, "" for one that is not named."""
        return self.source.claim_name, self.destination.claim_name


class VolumeStatus(Struct):
    name: str = ""
    phase: str | None = None
    persistent_volume_claim_info: PersistentVolumeClaimInfo = PersistentVolumeClaimInfo()
    hotplug_volume: HotplugVolumeStatus | None = None


class ChangedBlockTrackingStatus(Struct):
    state: str = ""


class VirtualMachineInstanceStatus(Struct):
    phase: str | None = None
    node_name: str | None = None
    conditions: list[Condition] | None = None
    migration_state: MigrationState | None = None
    volume_status: list[VolumeStatus] | None = None
    changed_block_tracking: ChangedBlockTrackingStatus = ChangedBlockTrackingStatus()
    migrated_volumes: list[Move] | None = None


class VirtualMachineInstance(Object):
    spec: VirtualMachineInstanceSpec = VirtualMachineInstanceSpec()
    status: VirtualMachineInstanceStatus = VirtualMachineInstanceStatus()


class VirtualMachineInstanceMigrationSpec(Struct):
    vmi_name: str = ""
    send_to: Present | None = None
    receive: Present | None = None
    priority: str | None = None


class PhaseTransition(Struct):
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
        return self.status.phase or ""


class VirtualMachineInstanceTemplateSpec(Struct):
    metadata: ObjectMeta = ObjectMeta()
    spec: VirtualMachineInstanceSpec = VirtualMachineInstanceSpec()


class InstancetypeMatcher(Struct):
    name: str = ""
    kind: str = ""


class VirtualMachineSpec(Struct):
    instancetype: InstancetypeMatcher | None = None
    preference: InstancetypeMatcher | None = None
    run_strategy: str | None = None
    running: bool | None = None
    update_volumes_strategy: str | None = None
    template: VirtualMachineInstanceTemplateSpec = VirtualMachineInstanceTemplateSpec()


class VirtualMachineStatus(Struct):
    printable_status: str | None = None
    created: bool = False
    ready: bool = False


class VirtualMachine(Object):
    spec: VirtualMachineSpec = VirtualMachineSpec()
    status: VirtualMachineStatus = VirtualMachineStatus()


class MigrationConfiguration(Struct):
    parallel_migrations_per_cluster: int = 5
    parallel_outbound_migrations_per_node: int = 2


class SupportContainerResources(Struct):
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
    sidecar_image: str = ""
    compute_resource_overhead: ResourceRequirements = ResourceRequirements()


class NetworkConfiguration(Struct):
    binding: dict[str, InterfaceBindingPlugin] | None = None


class KubeVirtConfiguration(Struct):
    additional_guest_memory_overhead_ratio: str | None = None
    migrations: MigrationConfiguration | None = None
    support_container_resources: list[SupportContainerResources] | None = None
    virtual_machine_options: VirtualMachineOptions = VirtualMachineOptions()
    developer_configuration: DeveloperConfiguration = DeveloperConfiguration()
    network: NetworkConfiguration = NetworkConfiguration()
    auto_cpu_limit_namespace_label_selector: LabelSelector | None = None
    default_runtime_class: str = ""
    vm_state_storage_class: str = ""
    hypervisors: list[Named] | None = None

    def bindings_of(self, spec: VirtualMachineInstanceSpec) -> list[InterfaceBindingPlugin]:
        """Returns the network bindings that the VM's interfaces use, each once."""
        names = {interface.binding.name for interface in spec.domain.devices.interfaces or ()}
        return [plugin for name, plugin in (self.network.binding or {}).items() if name in names]


class KubeVirtSpec(Struct):
    configuration: KubeVirtConfiguration = KubeVirtConfiguration()


class KubeVirtStatus(Struct):
    phase: str | None = None
    observed_kube_virt_version: str | None = None


class KubeVirt(Object):
    spec: KubeVirtSpec = KubeVirtSpec()
    status: KubeVirtStatus = KubeVirtStatus()


def _resource(kind: type[T], *, status_subresource: bool = True) -> Resource[T]:
    name = kind.__name__
    return Resource("kubevirt.io", "v1", f"{name.lower()}s", name, kind, status_subresource=status_subresource)


VIRTUAL_MACHINES = _resource(VirtualMachine)
VIRTUAL_MACHINE_INSTANCES = _resource(VirtualMachineInstance, status_subresource=False)
VIRTUAL_MACHINE_INSTANCE_MIGRATIONS = _resource(VirtualMachineInstanceMigration)
KUBEVIRTS = _resource(KubeVirt)
