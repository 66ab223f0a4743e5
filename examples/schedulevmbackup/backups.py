"""The backups of a schedule: which there are, which go, and what the status says of them; decides alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from examples.schedulevmbackup.kinds import (
    ScheduleVMBackup,
    ScheduleVMBackupVmbackupInfo,
    ScheduleVMBackupVolumeBackupInfo,
    VirtualMachineBackup,
)

SCHEDULE_ID = "harvesterhci.io/svmbackupId"
SCHEDULE_UID, TIMESTAMP = "harvesterhci.io/svmbackupUID", "harvesterhci.io/svmbackupTimestamp"


@dataclass(frozen=True)
class Backups:
    """The backups of one schedule, the oldest first. `failure`: how many have failed since the latest ready one."""

    all: Sequence[VirtualMachineBackup]
    failed: Sequence[VirtualMachineBackup]
    failure: int

    @property
    def latest(self) -> VirtualMachineBackup | None:
        return self.all[-1] if self.all else None

    @property
    def in_progress(self) -> bool:
        return self.latest is not None and not (is_ready(self.latest) or self.latest.status.error)

    def superfluous(self, retain: int) -> Sequence[VirtualMachineBackup]:
        """Returns the backups to delete once the latest one is ready: failed ones first, then the oldest."""
        if self.latest is None or self.in_progress or self.latest.status.error:
            return ()
        order = [*self.failed, *(backup for backup in self.all if backup not in self.failed)]
        return order[: max(0, len(self.all) - retain)]


def backups_of(backups: Iterable[VirtualMachineBackup]) -> Backups:
    ordered = sorted(backups, key=lambda backup: backup.labels.get(TIMESTAMP, ""))
    failed, failure = [], 0
    for backup in ordered:
        if backup.status.error:
            failed.append(backup)
            failure += 1
        if is_ready(backup):
            failure = 0
    return Backups(ordered, failed, failure)


def is_ready(backup: VirtualMachineBackup) -> bool:
    return bool(backup.status.ready_to_use)


def cron_job_name(schedule: ScheduleVMBackup) -> str:
    return f"svmb-{schedule.uid}"


def backup_name(schedule: ScheduleVMBackup, timestamp: str) -> str:
    return f"svmb-{schedule.uid}-{timestamp}"


def info_of(backup: VirtualMachineBackup) -> ScheduleVMBackupVmbackupInfo:
    """Returns a backup's entry in the schedule's status."""
    status = backup.status
    volumes = [
        ScheduleVMBackupVolumeBackupInfo(name=v.name, ready_to_use=v.ready_to_use, error=v.error)
        for v in status.volume_backups or ()
    ]
    return ScheduleVMBackupVmbackupInfo(
        name=backup.name, ready_to_use=status.ready_to_use, error=status.error, volume_backup_info=volumes or None
    )
