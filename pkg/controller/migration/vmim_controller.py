"""On a change of a migration: enqueue its VMI and the quotas of its namespace.

Source: Harvester vmim_controller.go, whose handler writes both objects itself. Here each object has one writer, so that
no two workers conflict: vmi_controller.py of a VMI's state, `pkg.controller.resourcequota` of a quota.
"""

from __future__ import annotations

from kubeloop.api.core import ResourceQuota
from kubeloop.controllers.controller import Controller
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished, may_attach, read_of, stage_of
from pkg.util.kubevirt.migration_state import state_of


class VMIMHandler:
    """Handles VirtualMachineInstanceMigrations."""

    def __init__(self, quotas: Controller[ResourceQuota], instances: Controller[VirtualMachineInstance] | None) -> None:
        """`instances` None: nothing shows the state of migrations (a dry run)."""
        self._quotas, self._instances = quotas, instances
        # Of each migration its VMI's key, the state that is shown of it, and what was read of it last: most updates
        # of a migration lead to nothing, and a deleted one has to be known by its key alone.
        self._seen: dict[str, tuple[str, object, object]] = {}

    async def on_migration_changed(self, key: str, migration: VirtualMachineInstanceMigration | None) -> None:
        """Also when it is gone."""
        before = self._seen.pop(key, None)
        if migration is not None:
            vmi = f"{migration.namespace}/{migration.spec.vmi_name}"
            self._seen[key] = (vmi, shown_of_migration(migration), read_of_migration(migration))
        seen = self._seen.get(key)
        known = seen or before
        if known is None or seen == before:
            return
        if self._instances is not None and (seen is None or before is None or seen[:2] != before[:2]):
            self._instances.enqueue(known[0], immediately=True)
        for quota in self._quotas.cache().list(key.partition("/")[0]):
            self._quotas.enqueue(quota.key, immediately=True)


def shown_of_migration(migration: VirtualMachineInstanceMigration) -> object:
    """What a VMI shows of it."""
    return migration.uid, None if is_finished(migration) else state_of(migration)


def read_of_migration(migration: VirtualMachineInstanceMigration) -> object:
    """What a decision about a quota reads of it. Of its phases those are alike in which the target's pods exist."""
    meta, status = migration.metadata, migration.status
    identity = meta.uid, meta.deletion_timestamp, meta.deletion_grace_period_seconds, meta.owner_references
    phase = stage_of(migration), may_attach(migration), migration.phase == constants.PHASE_PENDING
    ended = [t for t in status.phase_transition_timestamps or () if t.phase in constants.FINAL_PHASES]
    return identity, migration.spec, phase, read_of(status.migration_state), ended
