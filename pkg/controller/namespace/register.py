"""Wiring of the namespace controller."""

from __future__ import annotations

from pkg.api.core import ResourceQuota
from pkg.controller.namespace.namespace_controller import Handler
from pkg.controller.options import Options
from pkg.generic.events import EventRecorder
from pkg.generic.factory import Management

NAMESPACE_CONTROLLER = "namespaceController"


def register(management: Management, events: EventRecorder, options: Options) -> None:
    """Only with `--render-default-quota`."""
    if not options.policy.render:
        return
    namespaces = management.namespaces
    quotas = management.resource_quotas
    handler = Handler(quotas=quotas.client, quota_cache=quotas.cache(), events=events)
    namespaces.on_change(NAMESPACE_CONTROLLER, handler.on_namespace_changed)

    def namespace_of(quota: ResourceQuota) -> list[str]:
        return [quota.namespace]

    namespaces.watch_related(quotas, namespace_of)
