"""Wiring of the migration controllers."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.migration.vmi_controller import PODS_BY_MIGRATION, VMIHandler, read_of_vmi, shown_of_migration
from pkg.util.kubevirt.migration import MIGRATIONS_BY_VMI, migration_of

VMI_CONTROLLER = "virtualMachineInstanceController"


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the controller of VMIs. A dry run shows no state."""
    migrations, vmis = management.virtual_machine_instance_migrations, management.virtual_machine_instances
    migrations.cache().add_indexer(MIGRATIONS_BY_VMI, lambda vmim: [f"{vmim.namespace}/{vmim.spec.vmi_name}"])
    if settings.dry_run:
        return
    management.pods.cache().add_indexer(PODS_BY_MIGRATION, lambda pod: [f"{pod.namespace}/{migration_of(pod)}"])
    states = VMIHandler(migrations, vmis.client, management.virtual_machines, management.pods)
    vmis.on_change(VMI_CONTROLLER, states.on_vmi_changed, reads=read_of_vmi)
    vmis.watch_related(migrations, states.keys_of_migration, reads=shown_of_migration)
