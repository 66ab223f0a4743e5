"""Creates a namespace's default ResourceQuota from its annotation, as Rancher would.

Updating it is the ResourceQuota controller's affair: with `render_default_quota` its base covers every limit
that the annotation names."""

from __future__ import annotations

from dataclasses import dataclass

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.resource_list import format_resource_list
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.util import constants
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.managed import is_managed, switched_off
from pkg.util.resourcequota.rancher import annotation_of

NAMESPACE_CONTROLLER = "namespaceController"


@dataclass(eq=False)
class NamespaceHandler:
    """Handles Namespaces; creates ResourceQuotas, never changes one."""

    quotas: Controller[ResourceQuota]
    events: EventRecorder

    async def on_namespace_changed(self, _key: str, namespace: Namespace | None) -> None:
        """Creates the default quota of a namespace that has the annotation and no such quota."""
        if namespace is None or namespace.deleting or switched_off(namespace):
            return
        annotation = annotation_of(namespace)
        if not annotation or any(map(is_managed, self.quotas.cache().list(namespace.name))):
            return
        try:
            hard = format_resource_list(parse_base(annotation))
        except ResourceQuotaError as exc:
            self.events.event(namespace, "Warning", exc.reason, str(exc))
            return
        # Asked of the server: the name is generated, so a second one would not collide with the first.
        selector = f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}=true"
        if hard and not await self.quotas.client.list(namespace.name, label_selector=selector):
            metadata = {
                "generateName": constants.DEFAULT_RESOURCE_QUOTA_GENERATE_NAME,
                "labels": {constants.LABEL_DEFAULT_RESOURCE_QUOTA: "true"},
                "annotations": {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: annotation},
            }
            body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
            await self.quotas.client.create(body, namespace=namespace.name)


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the controller of default quotas, with `--render-default-quota` alone."""
    if not settings.policy.render:
        return
    namespaces, quotas = management.namespaces, management.resource_quotas
    handler = NamespaceHandler(quotas, events)
    namespaces.on_change(NAMESPACE_CONTROLLER, handler.on_namespace_changed)
    namespaces.watch_related(quotas, lambda quota: [quota.namespace])
