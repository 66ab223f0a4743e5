"""The ported `schedulevmbackup` controller: upstream's cases (common_test.go), and a schedule's life."""

import asyncio
import time
from typing import Any

import pytest

from examples.schedulevmbackup.backups import (
    SCHEDULE_ID,
    SCHEDULE_UID,
    TIMESTAMP,
    backup_name,
    backups_of,
    cron_job_name,
    info_of,
)
from examples.schedulevmbackup.controller import (
    FAILED,
    NAMESPACE,
    NOT_SYNCED,
    SUSPEND,
    ScheduleVMBackupHandler,
    register,
)
from examples.schedulevmbackup.kinds import (
    BACKUPS,
    SCHEDULE_VM_BACKUPS,
    VIRTUAL_MACHINE_BACKUPS,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    ScheduleVMBackup,
    ScheduleVMBackupVmbackupInfo,
    VirtualMachineBackup,
)
from kubeloop.api.meta import rfc3339
from kubeloop.api.objects import find_condition
from kubeloop.api.registry import CRON_JOBS
from kubeloop.client.client import Client
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import settle, virtual_time

KINDS = (SCHEDULE_VM_BACKUPS, VIRTUAL_MACHINE_BACKUPS, CRON_JOBS, BACKUPS, VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS)
FIRST, SECOND, THIRD, FAILING = "20240717.0827", "20240717.0829", "20240717.0833", "20240717.0830"
UID = "841f1346-ce15-4495-a5f6-fae76d11f92e"
SOURCE = {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}
SPEC = {"cron": "0 * * * *", "retain": 3, "maxFailure": 2, "vmbackup": {"type": "backup", "source": SOURCE}}
OK, BAD = {"readyToUse": True}, {"readyToUse": False, "error": {"message": "x"}}


class BackupRig:
    """A fake cluster with the schedule `default/svmbackup`."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(*KINDS)
        metadata = {"namespace": "default", "name": "svmbackup", "uid": UID}
        self.cluster.put(SCHEDULE_VM_BACKUPS, {"metadata": metadata, "spec": SPEC})
        self.management = ControllerFactory(self.cluster.client())

    @property
    def schedule(self) -> ScheduleVMBackup:
        (schedule,) = self.cluster.all(SCHEDULE_VM_BACKUPS)
        return schedule

    def put_backup(self, timestamp: str, status: dict[str, Any]) -> VirtualMachineBackup:
        metadata = {
            "namespace": "default",
            "name": f"svmb-{UID}-{timestamp}",
            "annotations": {SCHEDULE_ID: "default/svmbackup"},
            "labels": {SCHEDULE_UID: UID, TIMESTAMP: timestamp},
        }
        return self.cluster.put(VIRTUAL_MACHINE_BACKUPS, {"metadata": metadata, "status": status})

    def put_job(self, **fields: Any) -> None:
        metadata = {"namespace": NAMESPACE, "name": f"svmb-{UID}", "annotations": {SCHEDULE_ID: "default/svmbackup"}}
        self.cluster.put(CRON_JOBS, {"metadata": metadata, **fields})

    async def synced(self) -> ScheduleVMBackupHandler:
        """The handlers, without being called."""
        handler = ScheduleVMBackupHandler(self.management, "image")
        await self.management.start()
        await self.management.wait_for_sync()
        return handler

    async def running(self) -> None:
        register(self.management, "image")
        await self.management.start()
        await settle(100)


def test_names() -> None:
    schedule = BackupRig().schedule
    assert cron_job_name(schedule) == f"svmb-{UID}"
    assert backup_name(schedule, FIRST) == f"svmb-{UID}-{FIRST}"


# statuses by time -> (number, failed, failure, superfluous with retain 2)
CURRENT: dict[str, tuple[dict[str, Any], tuple[int, int, int], list[str]]] = {
    "two ready backups are both kept": ({SECOND: OK, FIRST: OK}, (2, 0, 0), []),
    "a failed backup before a ready one goes first": ({FIRST: OK, FAILING: BAD, THIRD: OK}, (3, 1, 0), [FAILING]),
    "nothing goes while the latest backup has failed": ({FIRST: OK, SECOND: OK, FAILING: BAD}, (3, 1, 1), []),
    "nothing goes while a backup is in progress": ({FIRST: OK, SECOND: OK, THIRD: {}}, (3, 0, 0), []),
    "the oldest of three ready backups goes": ({FIRST: OK, SECOND: OK, THIRD: OK}, (3, 0, 0), [FIRST]),
    "a schedule without backups has nothing to delete": ({}, (0, 0, 0), []),
}


@pytest.mark.parametrize("case", CURRENT)
def test_current_vm_backups(case: str) -> None:
    statuses, expected, superfluous = CURRENT[case]
    rig = BackupRig()
    backups = backups_of([rig.put_backup(timestamp, status) for timestamp, status in statuses.items()])
    assert (len(backups.all), len(backups.failed), backups.failure) == expected
    assert [backup.labels[TIMESTAMP] for backup in backups.all] == sorted(statuses)
    assert [backup.labels[TIMESTAMP] for backup in backups.superfluous(2)] == superfluous


def test_convert_vm_backup_to_info() -> None:
    backup = BackupRig().put_backup(FIRST, OK | {"volumeBackups": []})
    assert info_of(backup) == ScheduleVMBackupVmbackupInfo(name=backup.name, ready_to_use=True)


async def test_create_and_new_vm_backups() -> None:
    rig = BackupRig()
    for timestamp in (FIRST, SECOND):
        rig.put_backup(timestamp, OK)
    handler = await rig.synced()
    backup = await handler.new_backup(rig.schedule, THIRD)
    assert backup is not None
    assert (backup.name, backup.labels[TIMESTAMP]) == (f"svmb-{UID}-{THIRD}", THIRD)
    assert backup.annotations == {SCHEDULE_ID: "default/svmbackup"}
    assert backup.spec.source.name == "vm"
    await until(lambda: len(handler.backups(rig.schedule).all) == 3)
    with pytest.raises(RuntimeError, match="is in progress"):
        await handler.new_backup(rig.schedule, "20240717.0835")
    await rig.management.stop()


async def test_reconcile_vm_backup_list() -> None:
    rig = BackupRig()
    for timestamp, status in ((FIRST, OK), (SECOND, OK), (FAILING, BAD)):
        rig.put_backup(timestamp, status)
    handler = await rig.synced()
    await handler.update_backups(rig.schedule)
    infos = rig.schedule.status.vmbackup_info or []
    assert [info.name for info in infos] == [f"svmb-{UID}-{timestamp}" for timestamp in (FIRST, SECOND, FAILING)]
    assert (rig.schedule.status.failure, infos[2].error and infos[2].error.message) == (1, "x")
    await rig.management.stop()


@virtual_time
async def test_handle_reach_max_failure() -> None:
    rig = BackupRig()
    for timestamp in (FIRST, SECOND):
        rig.put_backup(timestamp, BAD)
    rig.put_job(status={"lastScheduleTime": rfc3339(time.time())})
    await rig.running()
    (job,) = rig.cluster.all(CRON_JOBS)
    condition = find_condition(rig.schedule.status.conditions, SUSPEND)
    assert (rig.schedule.status.suspended, rig.schedule.spec.suspend, job.spec.suspend) == (True, True, True)
    assert condition is not None
    assert (condition.reason, condition.message) == (FAILED, "failure backups 2 reach max tolerance 2")

    schedules = rig.management.client.resource(SCHEDULE_VM_BACKUPS)
    await schedules.merge_patch({"spec": {"suspend": False}}, name="svmbackup", namespace="default")
    await asyncio.sleep(30)
    errors = [backup.status.error for backup in rig.cluster.all(VIRTUAL_MACHINE_BACKUPS)]
    assert errors == [None], "to resume it, failed backups are deleted first; then there is a new one"
    assert rig.schedule.status.suspended is False
    (job,) = rig.cluster.all(CRON_JOBS)
    assert job.spec.suspend is False
    await rig.management.stop()


@virtual_time
async def test_a_longhorn_backup_that_goes_on_after_its_backup_failed() -> None:
    """The backup's volume gets the Longhorn backup's name from its snapshot; then the schedule is suspended."""
    rig = BackupRig()
    volumes = {"volumeBackups": [{"name": "other"}, {"name": "snap"}], "backupTarget": {"endpoint": "nfs"}}
    backup = rig.put_backup(FIRST, BAD | volumes)
    owner = {
        "apiVersion": "harvesterhci.io/v1beta1",
        "kind": "VirtualMachineBackup",
        "name": backup.name,
        "uid": backup.uid,
        "controller": True,
    }
    rig.cluster.put(
        VOLUME_SNAPSHOTS, {"metadata": {"namespace": "default", "name": "snap", "ownerReferences": [owner]}}
    )
    ref = {"namespace": "default", "name": "snap"}
    rig.cluster.put(
        VOLUME_SNAPSHOT_CONTENTS, {"metadata": {"name": "snapcontent-1"}, "spec": {"volumeSnapshotRef": ref}}
    )
    longhorn = {"namespace": "longhorn-system", "name": "backup-1"}
    rig.cluster.put(
        BACKUPS, {"metadata": longhorn, "spec": {"snapshotName": "snapshot-1"}, "status": {"state": "InProgress"}}
    )
    rig.put_job()
    await rig.running()
    (failed_backup,) = rig.cluster.all(VIRTUAL_MACHINE_BACKUPS)
    assert [volume.longhorn_backup_name for volume in failed_backup.status.volume_backups or ()] == [None, "backup-1"]
    assert rig.cluster.all(BACKUPS) == []
    condition = find_condition(rig.schedule.status.conditions, SUSPEND)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", NOT_SYNCED)
    await rig.management.stop()


async def scenario(client: Client) -> None:
    """Follows a schedule from its creation to its first backup and its deletion."""
    management = ControllerFactory(client)
    register(management, "image")
    await management.start()
    schedules, jobs = client.resource(SCHEDULE_VM_BACKUPS), client.resource(CRON_JOBS)
    backups = client.resource(VIRTUAL_MACHINE_BACKUPS)
    schedule = await schedules.create({"metadata": {"name": "nightly", "namespace": "default"}, "spec": SPEC})
    job = {"namespace": NAMESPACE, "name": cron_job_name(schedule)}

    async def scheduled() -> bool:
        return any(listed_job.name == job["name"] for listed_job in await jobs.list(NAMESPACE))

    async def backed_up() -> bool:
        infos = (await schedules.get(namespace="default", name="nightly")).status.vmbackup_info
        return bool(infos)

    await until(scheduled)
    now = {"status": {"lastScheduleTime": rfc3339(time.time())}}
    await jobs.merge_patch(now, **job, subresource="status")
    await until(backed_up)
    (backup,) = await backups.list("default")
    assert backup.labels[SCHEDULE_UID] == schedule.uid
    await schedules.delete(namespace="default", name="nightly")

    async def gone() -> bool:
        return not await schedules.list("default")

    await until(gone)
    remaining_jobs = [listed_job for listed_job in await jobs.list(NAMESPACE) if not listed_job.deleting]
    assert remaining_jobs == []
    await management.stop()
