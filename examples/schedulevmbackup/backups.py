"""The backups of a schedule: which there are, which go, and what the status says of them; decides alone."""

from __future__ import annotations

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
    """Of one schedule, the oldest first. `failure`: how many have failed since one was last ready."""

    all: Sequence[VirtualMachineBackup]
    failed: Sequence[VirtualMachineBackup]
    failure: int

    @property
    def last(self) -> VirtualMachineBackup | None:
        return self.all[-1] if self.all else None

    @property
    def in_progress(self) -> bool:
        return self.last is not None and not (is_ready(self.last) or self.last.status.error)

    def superfluous(self, retain: int) -> Sequence[VirtualMachineBackup]:
        """To be deleted, when the last one is ready: failed ones first, then the oldest."""
        if self.last is None or self.in_progress or self.last.status.error:
            return ()
        order = [*self.failed, *(each for each in self.all if each not in self.failed)]
        return order[: max(0, len(self.all) - retain)]


def backups_of(found: Iterable[VirtualMachineBackup]) -> Backups:
    ordered = sorted(found, key=lambda each: each.labels.get(TIMESTAMP, ""))
    failed, failure = [], 0
    for each in ordered:
        if each.status.error:
            failed.append(each)
            failure += 1
        if is_ready(each):
            failure = 0
    return Backups(ordered, failed, failure)


def is_ready(backup: VirtualMachineBackup) -> bool:
    return bool(backup.status.ready_to_use)


def cron_job_name(schedule: ScheduleVMBackup) -> str:
    return f"svmb-{schedule.uid}"


def backup_name(schedule: ScheduleVMBackup, timestamp: str) -> str:
    return f"svmb-{schedule.uid}-{timestamp}"


def info_of(backup: VirtualMachineBackup) -> ScheduleVMBackupVmbackupInfo:
    """What the schedule's status says of a backup."""
    status = backup.status
    volumes = [
        ScheduleVMBackupVolumeBackupInfo(name=v.name, ready_to_use=v.ready_to_use, error=v.error)
        for v in status.volume_backups or ()
    ]
    return ScheduleVMBackupVmbackupInfo(
        name=backup.name, ready_to_use=status.ready_to_use, error=status.error, volume_backup_info=volumes or None
    )
