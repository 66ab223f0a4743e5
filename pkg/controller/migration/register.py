"""Wiring of the migration controllers."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.controller.migration.vmi_controller import VMIHandler
from pkg.controller.migration.vmim_controller import VMIMHandler
from pkg.controller.options import Options

VMI_CONTROLLER = "virtualMachineInstanceController"
VMIM_CONTROLLER = "virtualMachineInstanceMigrationController"


def register(management: Management, events: EventRecorder, options: Options) -> None:
    """Both modes show the same state. In a dry run nothing is shown: migrations enqueue quotas alone."""
    migrations, instances = management.virtual_machine_instance_migrations, management.virtual_machine_instances
    handler = VMIMHandler(management.resource_quotas, None if options.dry_run else instances)
    migrations.on_change(VMIM_CONTROLLER, handler.on_migration_changed)
    if options.dry_run:
        return
    states = VMIHandler(migrations, instances.client, management.virtual_machines, management.pods)
    instances.on_change(VMI_CONTROLLER, states.on_vmi_changed)
