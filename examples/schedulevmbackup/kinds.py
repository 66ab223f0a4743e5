"""Written by `kubeloop structs`."""

from typing import ClassVar

from kubeloop.api.meta import Condition, Object, Struct
from kubeloop.api.registry import Resource


class ScheduleVMBackupSource(Struct):
    """TypedLocalObjectReference contains enough information to let you locate…"""

    whole: ClassVar[bool] = True

    api_group: str | None = None
    kind: str = ""
    name: str = ""


class ScheduleVMBackupVmbackup(Struct):
    whole: ClassVar[bool] = True

    fs_freeze_deadline: str | None = None
    source: ScheduleVMBackupSource = ScheduleVMBackupSource()
    type: str | None = None


class ScheduleVMBackupSpec(Struct):
    whole: ClassVar[bool] = True

    cron: str = ""
    max_failure: int = 0
    retain: int = 0
    suspend: bool | None = None
    vmbackup: ScheduleVMBackupVmbackup = ScheduleVMBackupVmbackup()


class ScheduleVMBackupError(Struct):
    """Error is the last error encountered during the snapshot/restore"""

    whole: ClassVar[bool] = True

    message: str | None = None
    time: str | None = None


class ScheduleVMBackupVolumeBackupInfo(Struct):
    whole: ClassVar[bool] = True

    error: ScheduleVMBackupError | None = None
    name: str | None = None
    ready_to_use: bool | None = None


class ScheduleVMBackupVmbackupInfo(Struct):
    whole: ClassVar[bool] = True

    error: ScheduleVMBackupError | None = None
    name: str | None = None
    ready_to_use: bool | None = None
    volume_backup_info: list[ScheduleVMBackupVolumeBackupInfo] | None = None


class ScheduleVMBackupStatus(Struct):
    whole: ClassVar[bool] = True

    conditions: list[Condition] | None = None
    failure: int | None = None
    suspended: bool | None = None
    vmbackup_info: list[ScheduleVMBackupVmbackupInfo] | None = None


class ScheduleVMBackup(Object):
    spec: ScheduleVMBackupSpec = ScheduleVMBackupSpec()
    status: ScheduleVMBackupStatus = ScheduleVMBackupStatus()


class VirtualMachineBackupBackupTarget(Struct):
    """BackupTarget is where VM Backup stores"""

    endpoint: str | None = None


class VirtualMachineBackupVolumeBackups(Struct):
    """VolumeBackup contains the volume data need to restore a PVC"""

    error: ScheduleVMBackupError | None = None
    longhorn_backup_name: str | None = None
    name: str | None = None
    ready_to_use: bool | None = None


class VirtualMachineBackupStatus(Struct):
    """VirtualMachineBackupStatus is the status for a VirtualMachineBackup resource"""

    backup_target: VirtualMachineBackupBackupTarget | None = None
    error: ScheduleVMBackupError | None = None
    ready_to_use: bool | None = None
    source_uid: str | None = None
    volume_backups: list[VirtualMachineBackupVolumeBackups] | None = None


class VirtualMachineBackup(Object):
    spec: ScheduleVMBackupVmbackup = ScheduleVMBackupVmbackup()
    status: VirtualMachineBackupStatus = VirtualMachineBackupStatus()


class VolumeSnapshotContentVolumeSnapshotRef(Struct):
    """volumeSnapshotRef specifies the VolumeSnapshot object to which this…"""

    name: str | None = None
    namespace: str | None = None


class VolumeSnapshotContentSpec(Struct):
    """spec defines properties of a VolumeSnapshotContent created by the…"""

    volume_snapshot_ref: VolumeSnapshotContentVolumeSnapshotRef = VolumeSnapshotContentVolumeSnapshotRef()


class VolumeSnapshotContent(Object):
    """VolumeSnapshotContent represents the actual 'on-disk' snapshot object in…"""

    spec: VolumeSnapshotContentSpec = VolumeSnapshotContentSpec()


class VolumeSnapshotSpec(Struct):
    """spec defines the desired characteristics of a snapshot requested by a user."""

    volume_snapshot_class_name: str | None = None


class VolumeSnapshot(Object):
    """VolumeSnapshot is a user's request for either creating a point-in-time…"""

    spec: VolumeSnapshotSpec = VolumeSnapshotSpec()


class BackupSpec(Struct):
    """BackupSpec defines the desired state of the Longhorn backup"""

    snapshot_name: str | None = None


class BackupStatus(Struct):
    """BackupStatus defines the observed state of the Longhorn backup"""

    state: str | None = None


class Backup(Object):
    """Backup is where Longhorn stores backup object."""

    spec: BackupSpec = BackupSpec()
    status: BackupStatus = BackupStatus()


SCHEDULE_VM_BACKUPS = Resource(
    "harvesterhci.io", "v1beta1", "schedulevmbackups", "ScheduleVMBackup", ScheduleVMBackup, status_subresource=False
)
VIRTUAL_MACHINE_BACKUPS = Resource(
    "harvesterhci.io",
    "v1beta1",
    "virtualmachinebackups",
    "VirtualMachineBackup",
    VirtualMachineBackup,
    status_subresource=False,
)
VOLUME_SNAPSHOT_CONTENTS = Resource(
    "snapshot.storage.k8s.io",
    "v1",
    "volumesnapshotcontents",
    "VolumeSnapshotContent",
    VolumeSnapshotContent,
    namespaced=False,
    status_subresource=True,
)
VOLUME_SNAPSHOTS = Resource(
    "snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot", VolumeSnapshot, status_subresource=True
)
BACKUPS = Resource("longhorn.io", "v1beta2", "backups", "Backup", Backup, status_subresource=True)
