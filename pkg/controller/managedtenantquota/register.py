"""Wiring of managed tenant quota: whatever may change a decision enqueues the namespace that it is about."""

from __future__ import annotations

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.meta import Object
from kubeloop.controllers.enqueue import EnqueueHandler
from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.managedtenantquota.managedtenantquota_controller import WindowHandler
from pkg.controller.managedtenantquota.observation import WindowObserver
from pkg.controller.managedtenantquota.writer import Writer
from pkg.controller.reads import read_of_migration, read_of_pod, read_of_vmi
from pkg.util.kubevirt.migration import is_refused
from pkg.util.managedtenantquota.lock import lock_name, recognise
from pkg.util.managedtenantquota.model import WindowPolicy
from pkg.util.resourcequota.observe import Observer as FactsObserver

MANAGED_TENANT_QUOTA_CONTROLLER = "managedTenantQuotaController"
_PAUSE = 0.1
"""Seconds after which a namespace without a lock is decided about for what neither quota nor a refusal shows: one
decision serves what KubeVirt changes meanwhile."""


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the controller. Namespaces are the key: two objects of one namespace are never worked on at a time."""
    namespaces, locks = management.namespaces, management.locks
    budgets = management.virtual_machine_migration_resource_quotas
    facts = FactsObserver(management.source(), settings.profile)
    observer = WindowObserver(facts, management.client, locks.cache(), settings, management.clock, management.rancher)
    policy = WindowPolicy(lock_limit=settings.lock_limit)
    handler = WindowHandler(observer, Writer(management.client, events, management.rancher), events, policy)
    namespaces.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_namespace_changed)
    locks.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_lock_changed)

    def namespace_with_window(obj: Object) -> list[str]:
        return [obj.namespace] if observer.concerns_us(obj.namespace) else []

    def soon(namespace: str, priority: int) -> None:
        if locks.cache().get(name=lock_name(namespace)):
            namespaces.queue.add(namespace, priority)
        else:
            namespaces.queue.add_after(namespace, _PAUSE)

    def locked_namespace(configuration: ValidatingWebhookConfiguration) -> list[str]:
        lock = recognise(configuration)
        return [lock.namespace] if lock else []

    namespaces.watch_related(budgets, lambda budget: [budget.namespace])
    namespaces.watch_related(locks, locked_namespace)
    namespaces.watch_related(management.resource_quotas, namespace_with_window)
    migrations, vmis = management.virtual_machine_instance_migrations, management.virtual_machine_instances
    namespaces.watch_related(migrations, namespace_with_window, reads=is_refused)
    migrations.informer.add_event_handler(EnqueueHandler(namespace_with_window, soon, [read_of_migration]))
    vmis.informer.add_event_handler(EnqueueHandler(namespace_with_window, soon, [read_of_vmi]))
    management.pods.informer.add_event_handler(
        EnqueueHandler(namespace_with_window, soon, [read_of_pod, lambda pod: pod.status.phase])
    )
    namespaces.watch_related(management.limit_ranges, namespace_with_window)
    namespaces.watch_related(management.kubevirts, lambda _: {budget.namespace for budget in budgets.cache().list()})
