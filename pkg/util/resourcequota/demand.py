"""What the migrations of a namespace ask of its quota: one Demand a VM.

Phases are a table (domain: VMIM phases in order). A phase that is not in it counts as migrating: newer
KubeVirt adds some.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import condition_is_true
from pkg.util import constants


class Standing(IntEnum):
    """Where a VM's migration stands, as far as quota cares. The greatest of a VM's migrations counts."""

    FINISHED = 0
    """Only Succeeded or Failed migrations: the entry goes."""
    ANNOUNCED = 1
    """Phase unset, or Pending with an abort asked for: an entry that stands stays, none is added."""
    WANTED = 2
    """Pending or any later phase: an entry is needed."""


_STANDING = {
    "": Standing.ANNOUNCED,
    constants.PHASE_SUCCEEDED: Standing.FINISHED,
    constants.PHASE_FAILED: Standing.FINISHED,
}


@dataclass(frozen=True, slots=True)
class Demand:
    """One VM's claim. `refused`: quota refused its target pod and KubeVirt has not got past that yet."""

    vm_name: str
    standing: Standing
    refused: bool
    vmi: VirtualMachineInstance | None

    @property
    def vmi_uid(self) -> str:
        """Empty when the VMI is not there."""
        return self.vmi.uid if self.vmi else ""


def is_finished(migration: VirtualMachineInstanceMigration) -> bool:
    """Succeeded or Failed: nothing happens to it any more."""
    return _STANDING.get(migration.phase) is Standing.FINISHED


def abort_requested(migration: VirtualMachineInstanceMigration) -> bool:
    """Whether somebody asked for this migration to be aborted."""
    return condition_is_true(migration.status.conditions, constants.CONDITION_ABORT_REQUESTED)


def is_refused(migration: VirtualMachineInstanceMigration) -> bool:
    """Pending because quota admission refused the target pod, and not being aborted."""
    return (
        migration.phase == constants.PHASE_PENDING
        and not abort_requested(migration)
        and condition_is_true(migration.status.conditions, constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA)
    )


def standing_of(migration: VirtualMachineInstanceMigration) -> Standing:
    """The standing of one migration by itself."""
    standing = _STANDING.get(migration.phase, Standing.WANTED)
    if standing is Standing.WANTED and abort_requested(migration):
        return Standing.ANNOUNCED
    return standing


def demands(
    migrations: Iterable[VirtualMachineInstanceMigration], instances: Mapping[str, VirtualMachineInstance]
) -> dict[str, Demand]:
    """One Demand a VM that has migrations, by VM name in sorted order. `instances` is by VMI name."""
    by_vm: dict[str, list[VirtualMachineInstanceMigration]] = defaultdict(list)
    for migration in migrations:
        by_vm[migration.spec.vmi_name].append(migration)
    return {
        name: Demand(
            vm_name=name,
            standing=max(map(standing_of, by_vm[name])),
            refused=any(map(is_refused, by_vm[name])),
            vmi=instances.get(name),
        )
        for name in sorted(by_vm)
    }
