"""Wiring of the migration state: a change of a VMI, or of a migration of it.

Source: Harvester vmim_controller.go and vmi_controller.go. The other half of the former, the scaling, is
`pkg.controller.resourcequota`: each object has one writer, so that no two workers conflict.
"""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.controller.indexes import vmi_of
from pkg.controller.migration.state import state_of
from pkg.controller.migration.ui_state import UIStateWriter
from pkg.controller.migration.vmi_controller import VMIHandler
from pkg.controller.options import Options
from pkg.util.kubevirt.migration import is_finished

VMI_CONTROLLER = "virtualMachineInstanceController"


def register(management: Management, _events: EventRecorder, _options: Options) -> None:
    """Both modes show the same state."""
    migrations, pods = management.virtual_machine_instance_migrations, management.pods
    instances, machines = management.virtual_machine_instances, management.virtual_machines
    states = UIStateWriter(
        migrations=migrations.client,
        migration_cache=migrations.cache(),
        instances=instances.client,
        machines=machines.client,
        machine_cache=machines.cache(),
    )
    instances.on_change(VMI_CONTROLLER, VMIHandler(pods.cache(), pods.client, states).on_vmi_changed)
    instances.watch_related(migrations, vmi_of, reads=_read_of_migration)


def _read_of_migration(migration: VirtualMachineInstanceMigration) -> object:
    return migration.uid, is_finished(migration) or state_of(migration)
