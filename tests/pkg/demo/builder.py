"""A short demo as the API server would show it: one migration, refused at first, then done; by the second."""

from __future__ import annotations

from pkg.api.core import (
    Container,
    Event,
    ObjectReference,
    Pod,
    PodSpec,
    PodStatus,
    ResourceQuota,
    ResourceQuotaSpec,
    ResourceQuotaStatus,
    ResourceRequirements,
)
from pkg.api.kubevirt import (
    VirtualMachineInstanceMigration,
    VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstanceMigrationStatus,
)
from pkg.api.meta import Condition, ObjectMeta
from pkg.demo.history import History
from pkg.util import constants

QUOTA = "default-abc"
REFUSAL = "exceeded quota: default-abc, requested: limits.cpu=2015m"
ENTRY = "harvesterhci.io/migrating-vm1"


class Clock:
    """Says what it was told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class HistoryBuilder:
    """Writes a history; every call is the next version, `at` seconds after the beginning."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.history = History(self.clock)
        self._version = 100

    def quota(self, at: float, hard: tuple[str, str], used: tuple[str, str], *entries: str) -> None:
        self.history.see_quota(
            ResourceQuota(
                metadata=self._meta(at, QUOTA, annotations=dict.fromkeys(entries, "{}")),
                spec=ResourceQuotaSpec(hard=_resources(hard)),
                status=ResourceQuotaStatus(used=_resources(used)),
            )
        )

    def migration(
        self, at: float, phase: str, *, name: str = "m1", vm: str = "vm1", refused: bool = False
    ) -> None:
        rejected = Condition(type=constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA, status="True")
        self.history.see_migration(
            VirtualMachineInstanceMigration(
                metadata=self._meta(at, name),
                spec=VirtualMachineInstanceMigrationSpec(vmi_name=vm),
                status=VirtualMachineInstanceMigrationStatus(
                    phase=phase or None, conditions=[rejected] if refused else None
                ),
            )
        )

    def pod(self, at: float, name: str, phase: str, *, vm: str = "vm1", of: str = "") -> None:
        self.history.see_pod(self._pod(at, name, phase, vm, of))

    def pod_deleted(self, at: float, name: str, *, vm: str = "vm1", of: str = "") -> None:
        self.history.lose_pod(self._pod(at, name, "Running", vm, of))

    def event(self, at: float, message: str, about: str = "m1") -> None:
        self.history.see_event(
            Event(
                metadata=self._meta(at, f"{about}.1"),
                involved_object=ObjectReference(name=about),
                reason="FailedCreate",
                message=message,
            )
        )

    def mark(self, at: float, kind: str, text: str) -> None:
        self.clock.now = at
        self.history.mark(kind, text)

    def _pod(self, at: float, name: str, phase: str, vm: str, of: str) -> Pod:
        labels = {constants.LABEL_VM_NAME: vm}
        if of:
            labels[constants.LABEL_MIGRATION_JOB_UID] = f"uid-{of}"
        limits = ResourceRequirements(limits={"cpu": "2015m", "memory": "4797464313"})
        return Pod(
            metadata=self._meta(at, name, labels=labels),
            spec=PodSpec(containers=[Container(name="compute", resources=limits)]),
            status=PodStatus(phase=phase),
        )

    def _meta(
        self,
        at: float,
        name: str,
        *,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
    ) -> ObjectMeta:
        self.clock.now = at
        self._version += 1
        return ObjectMeta(
            name=name,
            namespace="quota-test",
            uid=f"uid-{name}",
            resource_version=str(self._version),
            annotations=annotations,
            labels=labels,
        )


BASE, RAISED, HELD = ("3", "5000Mi"), ("5", "9980344313"), ("5015m", "10040344313")
NOTHING, ONE, TWO = ("0", "0"), ("2015m", "4797464313"), ("4030m", "9594928626")


def sample() -> HistoryBuilder:
    """Twenty seconds: refused, headroom starts at 5, raised, through at 12, held, the old pod ends at 18."""
    builder = HistoryBuilder()
    builder.mark(0, "step", "(a) refused: a quota without room")
    builder.quota(1, BASE, NOTHING)
    builder.quota(2, BASE, ONE)
    builder.pod(2, "source", "Running")
    builder.migration(3, "")
    builder.migration(3, "Pending")
    builder.migration(3, "Pending", refused=True)
    builder.event(3, f"Error creating pod: {REFUSAL}")
    builder.mark(5, "step", "(b) with headroom: it makes room")
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
