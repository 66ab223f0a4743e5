"""Wiring of the migration controllers."""

from __future__ import annotations

from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.controller.indexes import MIGRATIONS_BY_VMI
from pkg.controller.migration.ui_state import UIStateWriter
from pkg.controller.migration.vmi_controller import VMIHandler
from pkg.controller.migration.vmim_controller import VMIMHandler
from pkg.controller.options import Options
from pkg.generic.events import EventRecorder

VMIM_CONTROLLER = "virtualMachineInstanceMigrationController"
VMI_CONTROLLER = "virtualMachineInstanceController"


def register(management: Management, events: EventRecorder, options: Options) -> None:
    """`events` and `options` make no difference here: both modes show the same state."""
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
    migrations.on_change(VMIM_CONTROLLER, VMIMHandler(instances.cache(), states).on_vmim_changed)
    instances.on_change(VMI_CONTROLLER, VMIHandler(pods.cache(), pods.client, states).on_vmi_changed)

    def instance_of(migration: VirtualMachineInstanceMigration) -> list[str]:
        return [f"{migration.namespace}/{migration.spec.vmi_name}"]

    def migrations_of(instance: VirtualMachineInstance) -> list[str]:
        return [m.key for m in migrations.cache().by_index(MIGRATIONS_BY_VMI, instance.key)]

    # A VMI that is created after its migration, and a migration that is deleted before its VMI.
    migrations.watch_related(instances, migrations_of)
    instances.watch_related(migrations, instance_of)
