"""Wiring of the namespace controllers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kubeloop.api.meta import Object
from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.namespace.holding_controller import HoldingHandler
from pkg.controller.namespace.namespace_controller import NamespaceHandler
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.holding import holding_state_of, policy_for_pods
from pkg.util.resourcequota.managed import is_served

NAMESPACE_CONTROLLER = "namespaceController"
HOLDING_CONTROLLER = "holdingController"


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the controller of default quotas, with `--render-default-quota` alone."""
    if not settings.policy.render:
        return
    namespaces, quotas = management.namespaces, management.resource_quotas
    handler = NamespaceHandler(quotas, events)
    namespaces.on_change(NAMESPACE_CONTROLLER, handler.on_namespace_changed)
    namespaces.watch_related(quotas, _namespace_of)


def register_holding(
    management: Management, events: EventRecorder, settings: Settings
) -> Callable[[str], Awaitable[None]]:
    """Registers the controller of the label, and returns what the writer of quotas calls before it raises one."""
    namespaces, quotas, registrations = management.namespaces, management.resource_quotas, management.own_webhooks
    handler = HoldingHandler(namespaces, management.source(), registrations.cache(), events, settings.reserve)
    namespaces.on_change(HOLDING_CONTROLLER, handler.on_namespace_changed)

    def where_migrations_matter(obj: Object) -> list[str]:
        return [obj.namespace] if handler.depends_on_migrations() else []

    namespaces.watch_related(quotas, _namespace_of, reads=is_served)
    namespaces.watch_related(quotas, where_migrations_matter, reads=holding_state_of)
    namespaces.watch_related(management.virtual_machine_instance_migrations, where_migrations_matter, reads=is_finished)
    namespaces.watch_related(management.virtual_machine_instances, _namespace_of, reads=lambda _: None)
    namespaces.watch_related(management.virtual_machine_migration_resource_quotas, _namespace_of)
    namespaces.watch_related(
        registrations,
        lambda _: {quota.namespace for quota in quotas.cache().list()},
        reads=lambda registration: policy_for_pods([registration]),
    )
    return handler.before_raise


def _namespace_of(obj: Object) -> list[str]:
    return [obj.namespace]
