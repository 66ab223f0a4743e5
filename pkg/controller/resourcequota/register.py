"""Wiring of the ResourceQuota controller: what may change a decision enqueues the quotas it is about, at once where a
migration waits for that, else a moment later: KubeVirt updates what belongs to one step of a migration a few
milliseconds apart, and one decision serves it all. After every event comes a decision that sees its object."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kubeloop.api.core import Namespace, PersistentVolumeClaim, ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.meta import Object
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.enqueue import EnqueueHandler
from kubeloop.controllers.events import EventRecorder
from kubeloop.workqueue.queue import DEFAULT_PRIORITY
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.resourcequota.resourcequota_controller import BeforeRaise, ResourceQuotaHandler
from pkg.util import constants
from pkg.util.kubevirt import claims
from pkg.util.kubevirt.migration import MIGRATIONS_BY_VMI, is_finished
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Source, read_of_migration, read_of_pod, read_of_vmi
from pkg.util.resourcequota.policy import RancherQuotas
from pkg.util.resourcequota.rancher import annotation_of, locks_quotas, project_of
from pkg.util.resourcequota.timing import is_urgent, pause


def register(
    management: Management, events: EventRecorder, settings: Settings, before_raise: BeforeRaise | None = None
) -> None:
    """Registers the writer of quotas. `before_raise` readies a namespace for added headroom."""
    client, quotas = management.client, management.resource_quotas
    rancher, reverts = management.rancher, management.reverts
    source = replace(management.source(settings.profile), asks=rancher.asks)
    if not settings.dry_run:  # which needs no rights for what it never writes
        rancher.registrations = management.locks.cache()
    handler = ResourceQuotaHandler(
        client, rancher, reverts, source, events, settings.policy, before_raise=before_raise, dry_run=settings.dry_run
    )
    quotas.on_change("resourceQuotaController", handler.on_resource_quota_changed, reads=lambda quota: quota.uid)
    _watch(management, Pace(quotas, source, handler.is_as_written), settings)


def _watch(management: Management, pace: "Pace", settings: Settings) -> None:
    """Watches all that enqueues the quotas of its namespace, or of every namespace with migrations: VMIs that migrate,
    and where an administrator lets volumes move, VMs and claims too."""
    quotas, migrations = management.resource_quotas, management.virtual_machine_instance_migrations
    vmis, pods = management.virtual_machine_instances, management.pods

    def keys_in_namespace(obj: Object) -> list[str]:
        return [quota.key for quota in quotas.cache().list(obj.namespace or obj.name)]

    def keys_with_migrations(_: object) -> set[str]:
        return {key for migration in migrations.cache().list() for key in keys_in_namespace(migration)}

    def where_volumes_move(obj: Object) -> list[str]:
        namespace = management.namespaces.cache().get(name=obj.namespace)
        is_one = namespace is not None and constants.ANNOTATION_STORAGE_MIGRATION in namespace.annotations
        return keys_in_namespace(obj) if is_one else []

    def keys_of_vmi(vmi: VirtualMachineInstance) -> list[str]:
        is_migrating = migrations.cache().by_index(MIGRATIONS_BY_VMI, vmi.key)
        return keys_in_namespace(vmi) if is_migrating else where_volumes_move(vmi)

    def keys_of_pvc(pvc: PersistentVolumeClaim) -> list[str]:
        return keys_in_namespace(pvc) if pvc.name.startswith(claims.STATE_PREFIX) else where_volumes_move(pvc)

    migrations.informer.add_event_handler(pace.migration_handlers())
    quotas.informer.add_event_handler(pace.quota_handlers())
    pods.informer.add_event_handler(EnqueueHandler(keys_in_namespace, pace.soon, [read_of_pod]))
    vmis.informer.add_event_handler(EnqueueHandler(keys_of_vmi, pace.soon, [read_of_vmi]))
    quotas.watch_related(management.namespaces, keys_in_namespace)
    quotas.watch_related(management.limit_ranges, keys_in_namespace)
    quotas.watch_related(management.virtual_machine_migration_resource_quotas, keys_in_namespace)
    quotas.watch_related(management.settings, keys_with_migrations)
    quotas.watch_related(management.kubevirts, keys_with_migrations)
    quotas.watch_related(management.virtual_machines, where_volumes_move, reads=lambda vm: vm.spec)
    pvcs = management.persistent_volume_claims
    quotas.watch_related(pvcs, keys_of_pvc, reads=lambda pvc: (pvc.uid, pvc.labels, pvc.spec, pvc.status))
    _watch_rancher(management, settings)


def _watch_rancher(management: Management, settings: Settings) -> None:
    quotas, migrations = management.resource_quotas, management.virtual_machine_instance_migrations

    def keys_of_default_quotas(configuration: ValidatingWebhookConfiguration) -> list[str]:
        """Rancher's webhooks have changed: another way of writing its quotas may be needed."""
        is_ranchers = configuration.name.startswith(constants.RANCHER_WEBHOOKS)
        return [quota.key for quota in filter(is_default, quotas.cache().list()) if is_ranchers]

    def keys_in_project(namespace: Namespace) -> list[str]:
        """Returns the quotas that may get what this namespace requests of their Rancher project no longer."""
        project = project_of(namespace) if management.rancher.way is RancherQuotas.ANNOTATION else ""
        siblings = management.namespaces.cache().list() if project else ()
        names = [sibling.name for sibling in siblings if project_of(sibling) == project]
        waiting = [name for name in names if not all(map(is_finished, migrations.cache().list(name)))]
        return [q.key for name in waiting if name != namespace.name for q in quotas.cache().list(name) if is_default(q)]

    quotas.watch_related(management.namespaces, keys_in_project, reads=annotation_of)
    if not settings.dry_run:
        quotas.watch_related(management.locks, keys_of_default_quotas, reads=lambda webhooks: locks_quotas([webhooks]))


@dataclass(eq=False)
class Pace:
    quotas: Controller[ResourceQuota]
    source: Source
    is_as_written: Callable[[ResourceQuota], bool]
    """Whether a quota is as headroom's last patch left it."""
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    # Invariant: a timer runs for each of these keys, and when it was set no migration waited.

    def soon(self, key: str, priority: int = DEFAULT_PRIORITY) -> None:
        """Enqueues a quota, at once where a migration waits. One timer serves all that happens until it fires."""
        quota = self.quotas.cache().get_by_key(key)
        if quota is None or key in self._timers:
            return
        if is_urgent(quota, self.source.migrations.list(quota.namespace), self.source.instances):
            self._at_once(key)
        else:
            later = asyncio.get_running_loop().call_later
            self._timers[key] = later(pause(quota.annotations), self._at_once, key, priority)

    def _at_once(self, key: str, priority: int = DEFAULT_PRIORITY) -> None:
        self._forget(key)
        self.quotas.queue.add(key, priority)

    def _forget(self, key: str) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def migration_handlers(self) -> ResourceEventHandlerFuncs[VirtualMachineInstanceMigration]:
        """Returns the handlers of migrations. Only the one that is new, gone or different may wait because of it."""

        def enqueue(migration: VirtualMachineInstanceMigration, *, hurry: bool = False) -> None:
            for quota in self.quotas.cache().list(migration.namespace):
                waits = hurry or is_urgent(quota, [migration], self.source.instances)
                (self._at_once if waits else self.soon)(quota.key)

        return ResourceEventHandlerFuncs(
            lambda migration, _: enqueue(migration, hurry=not is_finished(migration)),
            lambda old, new: enqueue(new) if read_of_migration(old) != read_of_migration(new) else None,
            lambda migration, _: enqueue(migration),
        )

    def quota_handlers(self) -> ResourceEventHandlerFuncs[ResourceQuota]:
        """Returns the handlers of quotas. What others change of spec or metadata is repaired at once. Of a first list,
        in which thousands may be, quotas of namespaces in which a VM migrates come first."""

        def add(quota: ResourceQuota, _: bool) -> None:
            if not all(map(is_finished, self.source.migrations.list(quota.namespace))):
                self._at_once(quota.key)

        def all_but_status(quota: ResourceQuota) -> object:
            meta = quota.metadata
            return meta.uid, meta.deletion_timestamp, meta.labels, meta.annotations, quota.spec

        def update(old: ResourceQuota, new: ResourceQuota) -> None:
            can_wait = self.is_as_written(new) or all_but_status(old) == all_but_status(new)
            (self.soon if can_wait else self._at_once)(new.key)

        return ResourceEventHandlerFuncs(add, update, lambda quota, _: self._forget(quota.key))
