"""Two controllers: of the label of namespaces whose pods the webhook shall see, and of default ResourceQuotas.

The label is on namespaces with a managed quota and a VM, long before headroom is added. An API server learns of it by a
watch, and pods that it admitted just before still have to pass quota admission: where the label is new, `before_raise`
delays the raise until both have happened. With failurePolicy Fail an outage would stop the pods of all these: there,
only namespaces that hold added headroom have it, or are about to, and a namespace's first migration waits for it."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from dataclasses import dataclass, field

from kubeloop.api.core import Namespace, ValidatingWebhookConfiguration
from kubeloop.api.meta import Object
from kubeloop.api.registry import NAMESPACES
from kubeloop.api.resource_list import format_resource_list
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader, newer
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.workqueue.queue import loop_time
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.problems import ResourceQuotaError
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.guard import FAIL, holding_state_of, holds, policy_for_pods
from pkg.util.resourcequota.managed import is_managed, is_served, switched_off
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.rancher import annotation_of

log = logging.getLogger(__name__)

SETTLE, LONGEST_SETTLE = 0.25, 2.0
"""Seconds from the label to the raise: API servers have seen it by then, and pods admitted before were counted."""
SETTLE_FACTOR = 10.0
"""The same as a multiple of the time that writing the label took: a busy API server is slower to admit pods."""
LINGER = 30.0  # seconds that the label stays when nothing is held any more
EVENT_LABEL_REMOVED = "ReserveLabelRemoved"
_REMOVED = (
    f"another client has removed the label {constants.LABEL_HOLDING}: until it is set again, any pod may take the "
    "headroom that is added for migrations here; have that client (a GitOps tool that prunes) leave it alone"
)


@dataclass(slots=True)
class _Label:
    """The label of a namespace, as far as this process has to do with it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A raise while the label goes waits for that, and has it set anew."""
    written: Namespace | None = None  # as our last patch left it: the cache may be behind
    effective_from: float = float("-inf")  # a label that was there before we started
    unneeded_since: float | None = None


@dataclass(eq=False)
class HoldingHandler:
    """Handles Namespaces; the one writer of the label."""

    namespaces: Controller[Namespace]
    source: Source
    registrations: CacheReader[ValidatingWebhookConfiguration]
    events: EventRecorder
    reserve: bool
    """False, or no webhook for pods among `registrations`: labels are only removed, they have no use."""
    _labels: defaultdict[str, _Label] = field(default_factory=lambda: defaultdict(_Label), init=False)

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """Sets the label, or removes it LINGER seconds after the last entry. Raises RetryAfter until then."""
        if namespace is None or namespace.deleting:
            self._labels.pop(key, None)
            return
        policy = self.policy()
        if policy and not switched_off(namespace) and self._needs_label(key, policy):
            await self._ensure_label(key)
        elif self._is_labelled(key):
            label = self._labels[key]
            label.unneeded_since = loop_time() if label.unneeded_since is None else label.unneeded_since
            seconds_left = label.unneeded_since + LINGER - loop_time()
            if policy and seconds_left > 0:
                raise RetryAfter(seconds_left, "keeping the label for the next migration")
            async with label.lock:
                label.written = await _write_label(self.namespaces.client, key, None)

    def policy(self) -> str:
        """Returns the failure policy for pods: with FAIL namespaces with migrations are labelled; with "" none is."""
        return policy_for_pods(self.registrations.list()) if self.reserve else ""

    def _needs_label(self, name: str, policy: str) -> bool:
        if self.source.budgets.list(name):  # nothing is added there
            return False
        quotas = self.source.list_quotas(name)
        if policy != FAIL and self.source.instances.list(name):
            return any(map(is_served, quotas))
        return holds(quotas, self.source.migrations.list(name))

    async def before_raise(self, namespace: str) -> None:
        """Sets the label; call before a quota of the namespace is raised. Raises RetryAfter while the label does not
        count yet. One that cannot be written does not delay a migration: the headroom is then not reserved."""
        if not self.policy():
            return
        try:
            await self._ensure_label(namespace)
        except ApiError as exc:
            log.warning("namespace %s cannot be labelled, its added headroom is not reserved: %s", namespace, exc)
            return
        seconds_left = self._labels[namespace].effective_from - loop_time()
        if seconds_left > 0:
            raise RetryAfter(seconds_left, "the namespace was labelled just now")

    async def _ensure_label(self, name: str) -> None:
        label = self._labels[name]
        label.unneeded_since = None
        async with label.lock:
            if self._is_labelled(name):
                return
            if label.written is not None and label.written.labels.get(constants.LABEL_HOLDING) == constants.TRUE:
                self.events.event(label.written, WARNING, EVENT_LABEL_REMOVED, _REMOVED)
            began = loop_time()
            label.written = await _write_label(self.namespaces.client, name, constants.TRUE)
            took = loop_time() - began
            label.effective_from = loop_time() + min(LONGEST_SETTLE, max(SETTLE, SETTLE_FACTOR * took))

    def _is_labelled(self, name: str) -> bool:
        """True also if the namespace does not exist: it needs none."""
        cached, label = self.namespaces.cache().get(name=name), self._labels.get(name)
        newest = cached and newer(cached, label.written if label else None)
        return newest is None or newest.labels.get(constants.LABEL_HOLDING) == constants.TRUE


async def _write_label(namespaces: ResourceClient[Namespace], name: str, value: str | None) -> Namespace | None:
    """Sets the label, or removes it; returns None if the namespace does not exist."""
    with contextlib.suppress(NotFound):
        return await namespaces.merge_patch({"metadata": {"labels": {constants.LABEL_HOLDING: value}}}, name=name)
    return None


async def unlabel_all(client: Client) -> None:
    """Removes the label everywhere. Raises ApiError."""
    namespaces = client.resource(NAMESPACES)
    for namespace in await namespaces.list(label_selector=constants.LABEL_HOLDING):
        await _write_label(namespaces, namespace.name, None)


def register_holding(management: Management, events: EventRecorder, settings: Settings) -> HoldingHandler:
    """Registers the controller of the label."""
    namespaces, quotas, registrations = management.namespaces, management.resource_quotas, management.own_webhooks
    handler = HoldingHandler(namespaces, management.source(), registrations.cache(), events, settings.reserve)
    namespaces.on_change("holdingController", handler.on_namespace_changed)

    def where_migrations_matter(obj: Object) -> list[str]:
        return [obj.namespace] if handler.policy() == FAIL else []

    namespaces.watch_related(quotas, _namespace_of, reads=is_served)
    namespaces.watch_related(quotas, where_migrations_matter, reads=holding_state_of)
    namespaces.watch_related(management.virtual_machine_instance_migrations, where_migrations_matter, reads=is_finished)
    namespaces.watch_related(management.virtual_machine_instances, _namespace_of, reads=lambda _: None)
    namespaces.watch_related(management.virtual_machine_migration_resource_quotas, _namespace_of)

    def with_quotas(_: object) -> set[str]:
        return {quota.namespace for quota in quotas.cache().list()}

    namespaces.watch_related(registrations, with_quotas, reads=lambda webhooks: policy_for_pods([webhooks]))
    return handler


def _namespace_of(obj: Object) -> list[str]:
    return [obj.namespace]


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the controller of default quotas, with `--render-default-quota` alone."""
    namespaces, quotas = management.namespaces, management.resource_quotas

    async def on_namespace_changed(_key: str, namespace: Namespace | None) -> None:
        """Creates the default quota of a namespace that has the annotation and no such quota."""
        if namespace is None or namespace.deleting or switched_off(namespace):
            return
        annotation = annotation_of(namespace)
        if not annotation or any(map(is_managed, quotas.cache().list(namespace.name))):
            return
        try:
            hard = format_resource_list(parse_base(annotation))
        except ResourceQuotaError as exc:
            events.event(namespace, WARNING, exc.reason, str(exc))
            return
        # Asked of the server: the name is generated, so a second one would not collide with the first.
        labels = {constants.LABEL_DEFAULT_RESOURCE_QUOTA: constants.TRUE}
        if hard and not await quotas.client.list(namespace.name, label_selector=constants.DEFAULT_QUOTAS):
            annotations = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: annotation}
            metadata = {"generateName": "default-", "labels": labels, "annotations": annotations}
            body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
            await quotas.client.create(body, namespace=namespace.name)

    if settings.policy.render:
        namespaces.on_change("namespaceController", on_namespace_changed)
        namespaces.watch_related(quotas, _namespace_of)
