"""Wiring of the migration controllers."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.migration.vmi_controller import PODS_BY_MIGRATION, VMIHandler
from pkg.controller.migration.vmim_controller import VMIMHandler
from pkg.util.kubevirt.migration import MIGRATIONS_BY_VMI, migration_of

VMI_CONTROLLER = "virtualMachineInstanceController"
VMIM_CONTROLLER = "virtualMachineInstanceMigrationController"


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Both modes show the same state. In a dry run nothing is shown: migrations enqueue quotas alone."""
    migrations, instances = management.virtual_machine_instance_migrations, management.virtual_machine_instances
    migrations.cache().add_indexer(MIGRATIONS_BY_VMI, lambda vmim: [f"{vmim.namespace}/{vmim.spec.vmi_name}"])
    handler = VMIMHandler(management.resource_quotas, None if settings.dry_run else instances)
    migrations.on_change(VMIM_CONTROLLER, handler.on_migration_changed)
    if settings.dry_run:
        return
    management.pods.cache().add_indexer(PODS_BY_MIGRATION, lambda pod: [f"{pod.namespace}/{migration_of(pod)}"])
    states = VMIHandler(migrations, instances.client, management.virtual_machines, management.pods)
    instances.on_change(VMI_CONTROLLER, states.on_vmi_changed)
