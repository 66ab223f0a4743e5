"""Wiring of managed tenant quota: whatever may change a decision enqueues the namespace that it is about."""

from __future__ import annotations

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.meta import Object
from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.managedtenantquota.managedtenantquota_controller import Handler
from pkg.controller.managedtenantquota.observation import Observer
from pkg.controller.managedtenantquota.writer import Writer
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Policy
from pkg.util.resourcequota.observe import Observer as FactsObserver

MANAGED_TENANT_QUOTA_CONTROLLER = "managedTenantQuotaController"


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Namespaces are the key: two objects of one namespace are never worked on at a time."""
    namespaces, locks = management.namespaces, management.locks
    budgets = management.virtual_machine_migration_resource_quotas
    facts = FactsObserver(management.source(), settings.profile)
    observer = Observer(facts, management.client, locks.cache(), settings, management.clock, management.rancher)
    policy = Policy(lock_limit=settings.lock_limit)
    handler = Handler(observer, Writer(management.client, events, management.rancher), events, policy)
    namespaces.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_namespace_changed)
    locks.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_lock_changed)

    def beside(obj: Object) -> list[str]:
        return [obj.namespace] if observer.concerns_us(obj.namespace) else []

    def locked(configuration: ValidatingWebhookConfiguration) -> list[str]:
        lock = recognise(configuration)
        return [lock.namespace] if lock else []

    namespaces.watch_related(budgets, lambda budget: [budget.namespace])
    namespaces.watch_related(locks, locked)
    namespaces.watch_related(management.resource_quotas, beside)
    namespaces.watch_related(management.virtual_machine_instance_migrations, beside)
    namespaces.watch_related(management.virtual_machine_instances, beside)
    namespaces.watch_related(management.pods, beside)
    namespaces.watch_related(management.limit_ranges, beside)
    namespaces.watch_related(management.kubevirts, lambda _: {budget.namespace for budget in budgets.cache().list()})
