"""Wiring of managed tenant quota: whatever may change a decision enqueues the namespace that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.meta import Object
from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.config.probe import probe
from pkg.controller.managedtenantquota.lock_maker import LockMaker
from pkg.controller.managedtenantquota.managedtenantquota_controller import Handler
from pkg.controller.managedtenantquota.observation import Observer
from pkg.controller.managedtenantquota.writer import Clients, Writer
from pkg.controller.options import Options
from pkg.util.constants import NEVER_LOCKED
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Policy
from pkg.util.resourcequota.observe import Observer as FactsObserver

MANAGED_TENANT_QUOTA_CONTROLLER = "managedTenantQuotaController"


def register(management: Management, events: EventRecorder, options: Options) -> None:
    """Namespaces are the key: two objects of one namespace are never worked on at a time."""
    namespaces = management.namespaces
    budgets = management.virtual_machine_migration_resource_quotas
    quotas, locks = management.resource_quotas, management.locks
    clients = Clients(management.client)
    maker = LockMaker(
        management.client,
        management.kubevirts.cache(),
        holders=options.controller_users,
        kubevirt_users=options.kubevirt_users,
        never_lock=(*NEVER_LOCKED, options.namespace, *options.never_lock),
        probe=partial(probe, management.client, options.namespace),
    )
    observer = Observer(FactsObserver(management.source(), options.profile), clients, locks.cache(), maker)
    policy = Policy(lock_limit=options.lock_limit)
    handler = Handler(observer, Writer(clients, events), events, policy, management.clock)
    namespaces.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_namespace_changed)
    locks.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_lock_changed)

    def with_budgets(_: KubeVirt) -> Iterable[str]:
        return {budget.namespace for budget in budgets.cache().list()}

    def beside(obj: Object) -> list[str]:
        return [obj.namespace] if observer.concerns_us(obj.namespace) else []

    namespaces.watch_related(budgets, _own)
    namespaces.watch_related(locks, _locked)
    namespaces.watch_related(quotas, beside)
    namespaces.watch_related(management.virtual_machine_instance_migrations, beside)
    namespaces.watch_related(management.virtual_machine_instances, beside)
    namespaces.watch_related(management.pods, beside)
    namespaces.watch_related(management.limit_ranges, beside)
    namespaces.watch_related(management.kubevirts, with_budgets)


def _own(obj: Object) -> list[str]:
    return [obj.namespace]


def _locked(configuration: ValidatingWebhookConfiguration) -> list[str]:
    lock = recognise(configuration)
    return [lock.namespace] if lock else []
