"""Wiring of the migration controller."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.controller.migration.state import state_of
from pkg.controller.migration.ui_state import UIStateWriter
from pkg.controller.migration.vmi_controller import VMIHandler
from pkg.controller.options import Options
from pkg.util.kubevirt.migration import is_finished

VMI_CONTROLLER = "virtualMachineInstanceController"


def register(management: Management, events: EventRecorder, options: Options) -> None:
    """`events` and `options` make no difference here: both modes show the same state.

    A migration's events enqueue its VMI, so that one worker at a time writes what a VMI shows.
    """
    migrations = management.virtual_machine_instance_migrations
    instances = management.virtual_machine_instances
    pods = management.pods
    states = UIStateWriter(
        migrations=migrations.client,
        migration_cache=migrations.cache(),
        instances=instances.client,
        machines=management.virtual_machines.client,
        machine_cache=management.virtual_machines.cache(),
    )
    instances.on_change(VMI_CONTROLLER, VMIHandler(pods.cache(), pods.client, states).on_vmi_changed)

    def instance_of(migration: VirtualMachineInstanceMigration) -> list[str]:
        return [f"{migration.namespace}/{migration.spec.vmi_name}"]

    instances.watch_related(migrations, instance_of, reads=_read_of_migration)


def _read_of_migration(migration: VirtualMachineInstanceMigration) -> object:
    """What a VMI shows of it: most phases are shown alike."""
    return migration.uid, None if is_finished(migration) else state_of(migration)
