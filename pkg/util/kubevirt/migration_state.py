"""The migration state that a VMI shall show. Pure; source: Harvester vmim_controller.go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeloop.api.objects import by_creation
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import abort_requested, is_finished

_STATES = {constants.PHASE_UNSET: constants.STATE_PENDING, constants.PHASE_PENDING: constants.STATE_PENDING}
"""Phase to state; every other phase that is not final is "Migrating"."""


def state_of(migration: VirtualMachineInstanceMigration) -> str:
    """Returns the state of a migration that is not finished."""
    if abort_requested(migration):
        return constants.STATE_ABORTING
    return _STATES.get(migration.phase, constants.STATE_MIGRATING)


def annotations_for(
    vmi: VirtualMachineInstance, migrations: Iterable[VirtualMachineInstanceMigration]
) -> Mapping[str, str | None]:
    """Returns the change of the VMI's annotations; empty if it shows the right state already.

    A migration under way wins over finished ones, whichever event came last: upstream lets the event of an old,
    finished migration clear the state of the one that runs. A migration is finished when its phase says so or when the
    VMI does, whichever is seen first. The state of an unknown migration is left alone (`unknown_migration`).
    """
    all_migrations = list(migrations)
    completed_uids = {migration.uid for migration in all_migrations if is_finished(migration)} | _completed_uids(vmi)
    active = [migration for migration in all_migrations if migration.uid not in completed_uids]
    if active:
        current = max(active, key=by_creation)
        desired = {
            constants.ANNOTATION_MIGRATION_UID: current.uid,
            constants.ANNOTATION_MIGRATION_STATE: state_of(current),
        }
        return {key: value for key, value in desired.items() if vmi.annotations.get(key) != value}
    shown_uid = vmi.annotations.get(constants.ANNOTATION_MIGRATION_UID)
    return state_removal(vmi) if completed_uids and (shown_uid is None or shown_uid in completed_uids) else {}


def _completed_uids(vmi: VirtualMachineInstance) -> set[str]:
    """Returns the migration that the VMI itself reports as completed (upstream OnVmiChanged), as a set of uids."""
    state = trusted_status(vmi).migration_state
    return {state.migration_uid} if state is not None and state.completed and state.migration_uid else set()


def unknown_migration(vmi: VirtualMachineInstance, migrations: Iterable[VirtualMachineInstanceMigration]) -> str | None:
    """Returns the UID of the migration that the VMI shows if that migration is unknown, else None."""
    shown_uid = vmi.annotations.get(constants.ANNOTATION_MIGRATION_UID)
    if (
        not shown_uid
        or shown_uid in _completed_uids(vmi)
        or any(migration.uid == shown_uid for migration in migrations)
    ):
        return None
    return shown_uid


def state_removal(vmi: VirtualMachineInstance) -> Mapping[str, str | None]:
    """Returns the change that removes the state annotations."""
    return {key: None for key in constants.VMI_STATE_ANNOTATIONS if key in vmi.annotations}


def leftover_migration(vmi: VirtualMachineInstance) -> str | None:
    """Returns the UID of an aborted migration whose pods KubeVirt may leave behind (kubevirt issue 5373)."""
    state = trusted_status(vmi).migration_state
    if state is None or not state.completed or state.abort_status != constants.ABORT_SUCCEEDED:
        return None
    return state.migration_uid or None
