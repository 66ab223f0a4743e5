"""Records of runs: what the API server would show, by the second. `sample` is a short demo: one migration, refused at
first, then done."""

import asyncio
from typing import Any

import msgspec

from kubeloop.api.core import Event, Pod, ResourceQuota
from lab.demo.driver import Driver
from lab.demo.lines import Report
from lab.record import Record
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.constants import CONDITION_REJECTED_BY_RESOURCE_QUOTA as REJECTED
from tests.kinds import Clock
from tests.objects import build, controlled_by, pod

NAMESPACE = "quota-test"
QUOTA = "default-abc"
REFUSAL = "exceeded quota: default-abc, requested: limits.cpu=2015m"
ENTRY = "harvesterhci.io/migrating-vm1"


class RecordBuilder:
    """Writes a record; every call is the next version, `moment` seconds after the beginning."""

    def __init__(self) -> None:
        self.clock = Clock(0.0)
        self.record = Record(self.clock)
        self._version = 100

    def quota(
        self, moment: float, hard: tuple[str, str], used: tuple[str, str] = ("0", "0"), *keys: str, text: str = "{}"
    ) -> None:
        annotations = dict.fromkeys(keys, text)
        body = build(
            ResourceQuota,
            QUOTA,
            {"hard": _resources(hard)},
            {"used": _resources(used), "hard": _resources(hard)},
            annotations=annotations,
            **self._meta(moment),
        )
        self.record.see_quota(body)

    def migration(self, moment: float, phase: str, *, name: str = "m1", vm: str = "vm1", refused: bool = False) -> None:
        conditions = [{"type": REJECTED, "status": "True"}] if refused else None
        status = {"phase": phase or None, "conditions": conditions}
        spec = {"vmiName": vm}
        self.record.see_migration(build(VirtualMachineInstanceMigration, name, spec, status, **self._meta(moment)))

    def pod(
        self,
        moment: float,
        name: str,
        phase: str,
        *,
        vm: str = "vm1",
        job: str = "",
        takes: tuple[str, str] | None = None,
    ) -> None:
        self.record.see_pod(self._pod(moment, name, phase, vm, job, takes or ONE))

    def pod_deleted(self, moment: float, name: str) -> None:
        self.record.lose_pod(self._pod(moment, name, "Running", "vm1", "", ONE))

    def instance(self, name: str, **status: str) -> None:
        self.record.vmis[name] = build(VirtualMachineInstance, name, {}, status, namespace=NAMESPACE)

    def event(self, moment: float, message: str, vmi: str = "vm1", *, name: str = "", count: int | None = None) -> None:
        reference = {"name": vmi, "kind": "VirtualMachineInstance"}
        content = {"involvedObject": reference, "reason": "FailedCreate", "message": message, "count": count}
        metadata = {"name": name or f"{vmi}.{self._version}", **self._meta(moment)}
        self.record.see_event(msgspec.convert({"metadata": metadata, **content}, Event))

    def mark(self, moment: float, kind: str, text: str) -> None:
        self.clock.now = moment
        self.record.mark(kind, text)

    def _pod(self, moment: float, name: str, phase: str, vm: str, job: str, takes: tuple[str, str]) -> Pod:
        labels = {constants.LABEL_APP: constants.APP_VIRT_LAUNCHER}
        if job:
            labels[constants.LABEL_MIGRATION_JOB_UID] = f"uid-{job}"
        owners = controlled_by("VirtualMachineInstance", vm, f"uid-{vm}")
        metadata: dict[str, Any] = {"labels": labels, "ownerReferences": owners, **self._meta(moment)}
        return pod(*takes, name=name, phase=phase, **metadata)

    def _meta(self, moment: float) -> dict[str, str]:
        self.clock.now = moment
        self._version += 1
        return {"namespace": NAMESPACE, "resourceVersion": str(self._version)}


class Watching:
    """Time goes by without anything to see."""

    async def changed(self, timeout: float) -> None:
        await asyncio.sleep(timeout / 10)


def driver_of(builder: RecordBuilder, *, client: Any = None, deserted: bool = False) -> Driver:
    """A driver of steps without a cluster."""
    watching: Any = Watching()
    no_cluster: Any = None
    return Driver(no_cluster, client, builder.record, watching, Report(), is_deserted=lambda: deserted)


BASE, RAISED, HELD = ("3", "5000Mi"), ("5", "9980344313"), ("5015m", "10040344313")
NOTHING, ONE, TWO = ("0", "0"), ("2015m", "4797464313"), ("4030m", "9594928626")


def sample(builder: RecordBuilder | None = None) -> RecordBuilder:
    """Twenty seconds: refused, headroom starts at 5, raised, through at 12, held, the old pod ends at 18."""
    builder = builder or RecordBuilder()
    builder.mark(0, "step", "(a) refused: a quota too small")
    builder.quota(1, BASE, NOTHING)
    builder.quota(2, BASE, ONE)
    builder.pod(2, "source", "Running")
    builder.migration(3, "")
    builder.migration(3, "Pending")
    builder.migration(3, "Pending", refused=True)
    builder.event(3, f"Error creating pod: {REFUSAL}")
    builder.mark(5, "step", "(b) with headroom: it raises the quota")
    builder.mark(5, "headroom", "headroom controller --estimate harvester")
    builder.quota(6, RAISED, ONE, ENTRY)
    builder.quota(6, RAISED, TWO, ENTRY)
    builder.pod(6, "target", "Pending", job="m1")
    builder.pod(7, "target", "Running", job="m1")
    builder.migration(7, "Scheduling")
    builder.migration(8, "Running")
    builder.mark(9, "rancher", "Rancher's agent restarts")
    builder.quota(9.5, BASE, TWO, ENTRY)
    builder.quota(9.51, RAISED, TWO, ENTRY)
    builder.mark(9.6, "note", "reverted, repaired after 10 ms")
    builder.migration(12, "Succeeded")
    builder.quota(12, HELD, TWO, ENTRY)
    builder.pod(18, "source", "Succeeded")
    builder.quota(18, HELD, ONE, ENTRY)
    builder.quota(18, BASE, ONE)
    builder.mark(19, "headroom", "")
    builder.clock.now = 20.0
    return builder


def _resources(amounts: tuple[str, str]) -> dict[str, str | int | float]:
    return {"limits.cpu": amounts[0], "limits.memory": amounts[1]}
