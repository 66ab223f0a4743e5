"""What a migration asks of its namespace's quota. Pure.

Phases are a table. A phase that is not in it counts as migrating: newer KubeVirt adds some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from kubeloop.api.meta import from_rfc3339
from kubeloop.api.objects import condition_is_true
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants


class Stage(IntEnum):
    """Where a VM's migration is, as far as quota is concerned. The greatest of a VM's migrations counts."""

    FINISHED = 0
    """Only Succeeded or Failed migrations: the entry goes."""
    ARRIVED = 1
    """The VM lives in its target already, whatever the migration says: only its old side may still count."""
    ANNOUNCED = 2
    """No target pod will be created any more, or none here: an entry that stands stays, none is added."""
    CREATED = 3
    """Phase unset: virt-controller asks for the target pod next, within milliseconds. Harvester adds nothing yet."""
    WANTED = 4
    """Pending or any later phase: an entry is needed."""
    REFUSED = 5
    """Likewise, and quota refused its target pod, which KubeVirt has not got past yet."""


_STAGES = {"": Stage.CREATED, constants.PHASE_SUCCEEDED: Stage.FINISHED, constants.PHASE_FAILED: Stage.FINISHED}


def is_finished(migration: VirtualMachineInstanceMigration) -> bool:
    """Succeeded or Failed: nothing happens to it any more."""
    return _STAGES.get(migration.phase) is Stage.FINISHED


def abort_requested(migration: VirtualMachineInstanceMigration) -> bool:
    """Whether an abort of this migration was requested."""
    return condition_is_true(migration.status.conditions, constants.CONDITION_ABORT_REQUESTED)


def is_refused(migration: VirtualMachineInstanceMigration) -> bool:
    """Pending because quota admission refused the target pod, and not being aborted."""
    return (
        migration.phase == constants.PHASE_PENDING
        and not abort_requested(migration)
        and condition_is_true(migration.status.conditions, constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA)
    )


def without_state(annotations: Mapping[str, str]) -> dict[str, str]:
    """A VMI's annotations but those that only show the state of its migration: no decision reads them."""
    return {key: text for key, text in annotations.items() if key not in constants.VMI_STATE_ANNOTATIONS}


def may_attach(migration: VirtualMachineInstanceMigration) -> bool:
    """Whether KubeVirt may still create the target's attachment pod."""
    return migration.phase in (constants.PHASE_PENDING, constants.PHASE_SCHEDULING, constants.PHASE_SCHEDULED)


def is_decentralized(migration: VirtualMachineInstanceMigration) -> bool:
    """Whether the VM moves to or from another namespace or cluster: no pod is added here. The sender gets no target
    pod, and the receiver's target is its VM's only pod (KubeVirt's spec.sendTo and spec.receive)."""
    return migration.spec.send_to is not None or migration.spec.receive is not None


def stage_of(migration: VirtualMachineInstanceMigration) -> Stage:
    """The stage of one migration by itself."""
    stage = _STAGES.get(migration.phase, Stage.WANTED)
    if stage < Stage.CREATED:
        return stage
    if abort_requested(migration) or migration.deleting or is_decentralized(migration):
        return Stage.ANNOUNCED
    # KubeVirt creates no target before utility volumes are detached. During a backup it does, and waits then.
    if condition_is_true(migration.status.conditions, constants.CONDITION_BLOCKED_BY_UTILITY_VOLUMES):
        return Stage.ANNOUNCED
    return Stage.REFUSED if is_refused(migration) else stage


def left_at(pod: str, migrations: Iterable[VirtualMachineInstanceMigration]) -> float | None:
    """When the migration that left a launcher pod of this name behind ended, in seconds since the epoch, as far as
    KubeVirt says so. Too early a time only shortens the hold."""
    ordered = sorted(migrations, key=lambda each: each.metadata.creation_timestamp or "")
    states = [each.status.migration_state for each in ordered if each.status.migration_state]
    left = [state for state in states if state.source_pod == pod]
    last = (left or [state for state in states if state.target_pod == pod])[-1:]
    try:
        return from_rfc3339(last[0].end_timestamp or "") if last else None
    except ValueError:
        return None
