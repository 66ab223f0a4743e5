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
    quotas = management.resource_quotas
    migrations = management.virtual_machine_instance_migrations
    instances = management.virtual_machine_instances
    handler = VMIMHandler(quotas, None if options.dry_run else instances)
    migrations.on_change(VMIM_CONTROLLER, handler.on_migration_changed)
    if options.dry_run:
        return
    pods = management.pods
    states = VMIHandler(
        migrations=migrations.client,
        migration_cache=migrations.cache(),
        instances=instances.client,
        machines=management.virtual_machines.client,
        machine_cache=management.virtual_machines.cache(),
        pods=pods.client,
        pod_cache=pods.cache(),
    )
    instances.on_change(VMI_CONTROLLER, states.on_vmi_changed)
