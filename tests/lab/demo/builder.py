"""A short demo as the API server would show it: one migration, refused at first, then done; by the second."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kubeloop.api.core import Event, Pod, ResourceQuota
from lab.demo.checks import Report
from lab.demo.driver import Driver
from lab.demo.history import History
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.constants import CONDITION_REJECTED_BY_RESOURCE_QUOTA as REJECTED
from tests.kinds import Clock
from tests.objects import build, pod

NAMESPACE = "quota-test"
QUOTA = "default-abc"
REFUSAL = "exceeded quota: default-abc, requested: limits.cpu=2015m"
ENTRY = "harvesterhci.io/migrating-vm1"


class HistoryBuilder:
    """Writes a history; every call is the next version, `at` seconds after the beginning."""

    def __init__(self) -> None:
        self.clock = Clock(0.0)
        self.history = History(self.clock)
        self._version = 100

    def quota(self, at: float, hard: tuple[str, str], used: tuple[str, str], *entries: str) -> None:
        annotations = dict.fromkeys(entries, "{}")
        status = {"used": _resources(used)}
        self.history.see_quota(
            build(
                ResourceQuota,
                QUOTA,
                {"hard": _resources(hard)},
                status,
                annotations=annotations,
                **self._meta(at),
            )
        )

    def migration(
        self, at: float, phase: str, *, name: str = "m1", vm: str = "vm1", refused: bool = False
    ) -> None:
        conditions = [{"type": REJECTED, "status": "True"}] if refused else None
        status = {"phase": phase or None, "conditions": conditions}
        spec = {"vmiName": vm}
        self.history.see_migration(
            build(VirtualMachineInstanceMigration, name, spec, status, **self._meta(at))
        )

    def pod(self, at: float, name: str, phase: str, *, vm: str = "vm1", of: str = "") -> None:
        self.history.see_pod(self._pod(at, name, phase, vm, of))

    def pod_deleted(self, at: float, name: str, *, vm: str = "vm1", of: str = "") -> None:
        self.history.lose_pod(self._pod(at, name, "Running", vm, of))

    def event(self, at: float, message: str, about: str = "vm1") -> None:
        content = {"involvedObject": {"name": about}, "reason": "FailedCreate", "message": message}
        metadata = {"name": f"{about}.1", "namespace": NAMESPACE, **self._meta(at)}
        self.history.see_event(msgspec.convert({"metadata": metadata, **content}, Event))

    def mark(self, at: float, kind: str, text: str) -> None:
        self.clock.now = at
        self.history.mark(kind, text)

    def _pod(self, at: float, name: str, phase: str, vm: str, of: str) -> Pod:
        labels = {constants.LABEL_VM_NAME: vm}
        if of:
            labels[constants.LABEL_MIGRATION_JOB_UID] = f"uid-{of}"
        return pod("2015m", "4797464313", name=name, phase=phase, labels=labels, **self._meta(at))

    def _meta(self, at: float) -> dict[str, str]:
        self.clock.now = at
        self._version += 1
        return {"namespace": NAMESPACE, "resourceVersion": str(self._version)}


class Watching:
    """Time goes by without anything to see."""

    async def changed(self, timeout: float) -> None:
        await asyncio.sleep(timeout / 10)


def driver_of(
    builder: HistoryBuilder, *, client: Any = None, cluster: Any = None, deserted: bool = False
) -> Driver:
    """A driver of steps without a cluster, or with what the test gives it."""
    watching: Any = Watching()
    return Driver(cluster, client, builder.history, watching, Report(), speed=1.0, deserted=lambda: deserted)


BASE, RAISED, HELD = ("3", "5000Mi"), ("5", "9980344313"), ("5015m", "10040344313")
NOTHING, ONE, TWO = ("0", "0"), ("2015m", "4797464313"), ("4030m", "9594928626")


def sample() -> HistoryBuilder:
    """Twenty seconds: refused, headroom starts at 5, raised, through at 12, held, the old pod ends at 18."""
    builder = HistoryBuilder()
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
    builder.pod(6, "target", "Pending", of="m1")
    builder.pod(7, "target", "Running", of="m1")
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
