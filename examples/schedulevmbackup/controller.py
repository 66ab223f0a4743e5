"""The handlers, and what calls them."""

import time

from examples.schedulevmbackup.backups import (
    SCHEDULE_ID,
    SCHEDULE_UID,
    TIMESTAMP,
    Backups,
    backup_name,
    backups_of,
    cron_job_name,
    info_of,
    is_ready,
)
from examples.schedulevmbackup.kinds import (
    BACKUPS,
    SCHEDULE_VM_BACKUPS,
    VIRTUAL_MACHINE_BACKUPS,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    Backup,
    ScheduleVMBackup,
    VirtualMachineBackup,
)
from kubeloop.api.meta import Object, from_rfc3339
from kubeloop.api.objects import edit, set_condition
from kubeloop.api.registry import CRON_JOBS
from kubeloop.api.workloads import CronJob
from kubeloop.controllers.factory import ControllerFactory

NAMESPACE, _LONGHORN = "harvester-system", "longhorn-system"
SUSPEND = "BackupSuspend"
SUSPENDED, FAILED, NOT_SYNCED = ("Proactive Schedule Suspend", "Reach Max Failure", "Longhorn Backup Not Synced")
_INTERVAL = 5.0
_RECENT = 60.0
"""Seconds after which a schedule's last time is one of before it was suspended."""
_UNFINISHED = (None, "", "Pending", "InProgress")


def register(management: ControllerFactory, job_image: str) -> None:
    """`job_image`: what the CronJobs run; upstream reads it from a Helm release."""
    handler = ScheduleVMBackupHandler(management, job_image)
    schedules = management.controller(SCHEDULE_VM_BACKUPS)
    schedules.on_change("schedule-vm-bakcup-controller", handler.on_changed)
    schedules.on_remove("schedule-vm-bakcup-controller", handler.on_remove)
    management.controller(CRON_JOBS).on_change("cron-job-controller", handler.on_cron_job_changed)
    backups = management.controller(VIRTUAL_MACHINE_BACKUPS)
    backups.on_change("vm-backup-controller", handler.on_vm_backup_changed)
    backups.on_remove("vm-backup-controller", handler.on_vm_backup_removed)
    management.controller(BACKUPS).on_change("longhorn-backup-controller", handler.on_lh_backup_changed)


class ScheduleVMBackupHandler:
    def __init__(self, management: ControllerFactory, job_image: str) -> None:
        self._job_image = job_image
        self._controller = management.controller(SCHEDULE_VM_BACKUPS)
        self._schedules, self._schedule_cache = self._controller.client, self._controller.cache()
        jobs, backups = management.controller(CRON_JOBS), management.controller(VIRTUAL_MACHINE_BACKUPS)
        self._jobs, self._job_cache = jobs.client, jobs.cache()
        self._backups, self._backup_cache = backups.client, backups.cache()
        lh_backups = management.controller(BACKUPS)
        self._lh_backups, self._lh_backup_cache = lh_backups.client, lh_backups.cache()
        self._snapshots = management.controller(VOLUME_SNAPSHOTS).cache()
        self._snapshot_contents = management.controller(VOLUME_SNAPSHOT_CONTENTS).cache()

    # -- schedules ----------------------------------------------------------------------------------------------------

    async def on_changed(self, key: str, schedule: ScheduleVMBackup | None) -> ScheduleVMBackup | None:
        if schedule is None or schedule.deleting:
            return schedule
        job = self._job_cache.get(namespace=NAMESPACE, name=cron_job_name(schedule))
        if job is None:
            await self._create_cron_job(schedule)
            self._controller.enqueue(key)
        else:
            schedule = await self._resume_or_suspend(schedule)
            await self._jobs.update(job, edit(job, spec={"schedule": schedule.spec.cron}))
        return await self.update_backups(schedule)

    async def on_remove(self, key: str, schedule: ScheduleVMBackup) -> None:
        if self._job_cache.get(namespace=NAMESPACE, name=cron_job_name(schedule)) is not None:
            await self._jobs.delete(name=cron_job_name(schedule), namespace=NAMESPACE, propagation_policy="Foreground")

    async def update_backups(self, schedule: ScheduleVMBackup) -> ScheduleVMBackup:
        """Deletes superfluous backups, and lists the others in the schedule's status."""
        backups = self.backups(schedule)
        if backups.in_progress:
            self._controller.enqueue_after(schedule.key, _INTERVAL)
        for backup in backups.superfluous(schedule.spec.retain):
            await self._delete(backup)
        infos = [info_of(backup) for backup in backups.all]
        new = edit(schedule, status={"vmbackup_info": infos, "failure": backups.failure})
        return await self._schedules.update(schedule, new)

    def backups(self, schedule: ScheduleVMBackup) -> Backups:
        backups_of_schedule = self._backup_cache.list(schedule.namespace, labels={SCHEDULE_UID: schedule.uid})
        return backups_of(backups_of_schedule)

    async def suspend(
        self, schedule: ScheduleVMBackup, suspended: bool, reason: str = "", message: str = ""
    ) -> ScheduleVMBackup:
        """The schedule and its CronJob. Raises NotFound without one."""
        job = self._job_cache.require(namespace=NAMESPACE, name=cron_job_name(schedule))
        await self._jobs.update(job, edit(job, spec={"suspend": suspended}))
        status = "True" if suspended else "False"
        conditions = set_condition(
            schedule.status.conditions, SUSPEND, status, reason=reason, message=message, last_update=True
        )
        new = edit(schedule, spec={"suspend": suspended}, status={"suspended": suspended, "conditions": conditions})
        return await self._schedules.update(schedule, new)

    async def new_backup(self, schedule: ScheduleVMBackup, timestamp: str) -> VirtualMachineBackup | None:
        """Creates a backup, or suspends the schedule and returns None. Raises RuntimeError while one is in progress."""
        backups = self.backups(schedule)
        if backups.latest is not None and backups.failure >= schedule.spec.max_failure:
            message = f"failure backups {backups.failure} reach max tolerance {schedule.spec.max_failure}"
            await self.suspend(schedule, True, FAILED, message)
            return None
        if backups.latest is not None and backups.in_progress:
            raise RuntimeError(f"the latest VM backup {backups.latest.key} is in progress")
        metadata = {
            "name": backup_name(schedule, timestamp),
            "namespace": schedule.namespace,
            "annotations": {SCHEDULE_ID: schedule.key},
            "labels": {SCHEDULE_UID: schedule.uid, TIMESTAMP: timestamp},
        }
        return await self._backups.create({"metadata": metadata, "spec": schedule.spec.vmbackup})

    async def _resume_or_suspend(self, schedule: ScheduleVMBackup) -> ScheduleVMBackup:
        suspend = bool(schedule.spec.suspend)
        if suspend == bool(schedule.status.suspended):
            return schedule
        if suspend:
            return await self.suspend(schedule, True, SUSPENDED, SUSPENDED)
        backups = self.backups(schedule)
        if backups.failure < schedule.spec.max_failure:
            return await self.suspend(schedule, False)
        for backup in backups.failed:
            await self._delete(backup)
        raise RuntimeError(f"{schedule.key}: resumed when its failed backups are gone")

    async def _create_cron_job(self, schedule: ScheduleVMBackup) -> None:
        """The job does nothing: its time tells when a backup is made."""
        name = cron_job_name(schedule)
        container = {"name": name, "image": self._job_image, "command": ["sleep"], "args": ["10"]}
        pod = {"metadata": {"name": name}, "spec": {"containers": [container], "restartPolicy": "Never"}}
        spec = {
            "schedule": schedule.spec.cron,
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": {"backoffLimit": 3, "template": pod}},
        }
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": {SCHEDULE_ID: schedule.key}}
        await self._jobs.create({"metadata": metadata, "spec": spec})

    async def _delete(self, backup: VirtualMachineBackup) -> None:
        await self._backups.delete(name=backup.name, namespace=backup.namespace, propagation_policy="Foreground")

    def _schedule_of(self, obj: Object) -> ScheduleVMBackup | None:
        return self._schedule_cache.get_by_key(obj.annotations.get(SCHEDULE_ID, ""))

    # -- what they are made of ----------------------------------------------------------------------------------------

    async def on_cron_job_changed(self, key: str, job: CronJob | None) -> None:
        if job is None or job.deleting or job.status.last_schedule_time is None:
            return
        schedule, scheduled_at = self._schedule_of(job), from_rfc3339(job.status.last_schedule_time)
        if schedule is None or time.time() - scheduled_at > _RECENT:
            return
        timestamp = time.strftime("%Y%m%d.%H%M", time.gmtime(scheduled_at))
        name = backup_name(schedule, timestamp)
        if self._backup_cache.get(namespace=schedule.namespace, name=name) is None:
            await self.new_backup(schedule, timestamp)

    async def on_vm_backup_changed(self, key: str, backup: VirtualMachineBackup | None) -> None:
        if backup is None or backup.deleting or (schedule := self._schedule_of(backup)) is None:
            return
        age = time.time() - from_rfc3339(backup.metadata.creation_timestamp or "1970-01-01T00:00:00Z")
        if age < _INTERVAL or backup.status.error or is_ready(backup):
            self._controller.enqueue(schedule.key)
            if backup.status.error or is_ready(backup):
                await self._check_lh_backups(schedule, backup)

    async def on_vm_backup_removed(self, key: str, backup: VirtualMachineBackup) -> None:
        if (schedule := self._schedule_of(backup)) is not None:
            self._controller.enqueue_after(schedule.key, _INTERVAL)

    async def on_lh_backup_changed(self, key: str, lh_backup: Backup | None) -> None:
        """Writes the name of Longhorn's backup into the VM's."""
        if lh_backup is None or lh_backup.deleting or not lh_backup.spec.snapshot_name:
            return
        name = lh_backup.spec.snapshot_name.replace("snapshot", "snapcontent", 1)
        content = self._snapshot_contents.get(name=name)
        if content is None:
            return
        ref = content.spec.volume_snapshot_ref
        snapshot = self._snapshots.require(namespace=ref.namespace or "", name=ref.name or "")
        owner = next(
            (reference for reference in snapshot.metadata.owner_references or () if reference.controller), None
        )
        if owner is None or owner.kind != "VirtualMachineBackup":
            return
        backup = self._backup_cache.get(namespace=snapshot.namespace, name=owner.name)
        if backup is None or backup.uid != owner.uid or backup.status.backup_target is None:
            return
        version = backup.metadata.resource_version
        changes = [
            {"op": "add", "path": f"/status/volumeBackups/{place}/longhornBackupName", "value": lh_backup.name}
            for place, volume in enumerate(backup.status.volume_backups or ())
            if volume.name == snapshot.name and volume.longhorn_backup_name != lh_backup.name
        ]
        if changes:
            bound = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
            await self._backups.json_patch([bound, *changes], name=backup.name, namespace=backup.namespace)

    async def _check_lh_backups(self, schedule: ScheduleVMBackup, backup: VirtualMachineBackup) -> None:
        """Deletes Longhorn backups that go on although their VM backup has ended: they would block all later ones. The
        backup target is most likely not reachable."""
        if backup.spec.type == "snapshot":
            return
        for volume in backup.status.volume_backups or ():
            if volume.longhorn_backup_name is None:
                continue
            name = volume.longhorn_backup_name
            if self._lh_backup_cache.require(namespace=_LONGHORN, name=name).status.state not in _UNFINISHED:
                continue
            await self._lh_backups.delete(namespace=_LONGHORN, name=name)
            message = (
                f"vmbackup {backup.key} vb {volume.name} in error state but lhbackup {name} still in"
                " processing, usually caused by backup target not reachable"
            )
            await self.suspend(schedule, True, NOT_SYNCED, message)
            return
