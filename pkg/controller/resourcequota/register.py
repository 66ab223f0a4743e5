"""Wiring of the ResourceQuota controller: what may change a decision enqueues the quotas it is about."""

from __future__ import annotations

from collections.abc import Iterable

from pkg.api.core import Namespace
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.controller.indexes import MIGRATIONS_BY_VMI
from pkg.controller.options import Options
from pkg.controller.resourcequota.observation import Observer
from pkg.controller.resourcequota.resourcequota_controller import Handler
from pkg.generic.events import EventRecorder
from pkg.generic.factory import Management
from pkg.util import constants
from pkg.util.resourcequota.planner import Policy

RESOURCE_QUOTA_CONTROLLER = "resourceQuotaController"


def register(management: Management, events: EventRecorder, options: Options) -> None:
    """The handler reads five caches and writes one kind."""
    quotas = management.resource_quotas
    migrations = management.virtual_machine_instance_migrations
    observer = Observer(
        namespaces=management.namespaces.cache(),
        migrations=migrations.cache(),
        instances=management.virtual_machine_instances.cache(),
        settings=management.settings.cache(),
    )
    handler = Handler(quotas.client, observer, events, Policy(options.mode))
    quotas.on_change(RESOURCE_QUOTA_CONTROLLER, handler.on_resource_quota_changed)

    def in_namespace(name: str) -> list[str]:
        return [quota.key for quota in quotas.cache().list(name)]

    def of_migration(migration: VirtualMachineInstanceMigration) -> list[str]:
        return in_namespace(migration.namespace)

    def of_instance(instance: VirtualMachineInstance) -> list[str]:
        migrating = migrations.cache().by_index(MIGRATIONS_BY_VMI, instance.key)
        return in_namespace(instance.namespace) if migrating else []

    def of_namespace(namespace: Namespace) -> list[str]:
        return in_namespace(namespace.name)

    def of_setting(setting: Setting) -> Iterable[str]:
        if setting.name != constants.SETTING_OVERHEAD_RATIO:
            return []
        return {key for migration in migrations.cache().list() for key in of_migration(migration)}

    quotas.watch_related(migrations, of_migration)
    quotas.watch_related(management.virtual_machine_instances, of_instance)
    quotas.watch_related(management.namespaces, of_namespace)
    quotas.watch_related(management.settings, of_setting)
