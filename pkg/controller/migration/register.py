"""Wiring of the migration controllers."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.controller.migration.state import shown_of
from pkg.controller.migration.vmi_controller import MIGRATIONS_BY_VMI, PODS_BY_MIGRATION, VMIHandler
from pkg.controller.options import Options
from pkg.util.kubevirt.migration import migration_of

VMI_CONTROLLER = "virtualMachineInstanceController"


def register(management: Management, _events: EventRecorder, options: Options) -> None:
    """Both modes show the same state; in a dry run nothing does. Quotas watch migrations by themselves (Harvester's
    vmim_controller.go writes both): each object has one writer, so that no two workers conflict."""
    migrations, instances = management.virtual_machine_instance_migrations, management.virtual_machine_instances

    def vmi_of(migration: VirtualMachineInstanceMigration) -> list[str]:
        return [f"{migration.namespace}/{migration.spec.vmi_name}"]

    migrations.cache().add_indexer(MIGRATIONS_BY_VMI, vmi_of)
    if options.dry_run:
        return
    management.pods.cache().add_indexer(PODS_BY_MIGRATION, lambda pod: [f"{pod.namespace}/{migration_of(pod)}"])
    states = VMIHandler(migrations, instances.client, management.virtual_machines, management.pods)
    instances.on_change(VMI_CONTROLLER, states.on_vmi_changed)
    instances.watch_related(migrations, vmi_of, reads=shown_of)
