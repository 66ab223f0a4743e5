"""What decisions look at: the caches, and the API server itself where a cache may be behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pkg.api.core import Namespace, Pod, ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import Object
from pkg.api.registry import (
    NAMESPACES,
    PODS,
    RESOURCE_QUOTAS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    Resource,
)
from pkg.client.client import Client
from pkg.client.errors import ApiError, NotFound
from pkg.generic.cache_reader import CacheReader
from pkg.util import constants
from pkg.util.resourcequota.planner import Observed
from pkg.webhook.namespace_pods import NamespacePods

log = logging.getLogger(__name__)

LIVE_TIMEOUT: Final = 2.0
"""Seconds for one live look: the API server waits 5 s for the whole answer."""

Observe = Callable[[ResourceQuota], Observed]
"""What a controller sees of the quota's namespace in its caches, with this object in the cached one's place."""

T = TypeVar("T")
K = TypeVar("K", bound=Object)


class View:
    """Reads of the webhook. A live look gives None when the API server does not answer in time: then the caches
    are all there is."""

    def __init__(
        self,
        client: Client,
        observe: Observe,
        namespaces: CacheReader[Namespace],
        quotas: CacheReader[ResourceQuota],
        pods: NamespacePods,
        migrations: CacheReader[VirtualMachineInstanceMigration],
    ) -> None:
        self._client = client
        self._observe = observe
        self._namespaces = namespaces
        self._quotas = quotas
        self._pods = pods
        self._cached_migrations = migrations

    def observe(self, quota: ResourceQuota) -> Observed:
        """The quota among what the caches hold."""
        return self._observe(quota)

    def default_quotas(self, namespace: str) -> list[ResourceQuota]:
        """Rancher's default quotas of a namespace, by name."""
        return _defaults(self._quotas.list(namespace))

    def annotation(self, namespace: str) -> str:
        """The namespace's quota annotation, "" when there is none."""
        return _annotation(self._namespaces.get("", namespace))

    def quotas(self, namespace: str) -> list[ResourceQuota]:
        """Every quota of a namespace."""
        return self._quotas.list(namespace)

    async def pods(self, namespace: str) -> list[Pod] | None:
        """Every pod of a namespace that holds room, as a watch has brought them; None while that has only begun."""
        return await self._pods.of(namespace)

    def migrations(self, namespace: str) -> Sequence[VirtualMachineInstanceMigration]:
        return self._cached_migrations.list(namespace)

    async def quota_live(self, quota: ResourceQuota) -> ResourceQuota:
        """One quota as it is now; the cached one when the API server does not answer, or knows it no more.

        A get, not a list: a list waits for the API server's own cache, up to a tenth of a second.
        """
        live = await _in_time(self._client.resource(RESOURCE_QUOTAS).get(quota.name, quota.namespace))
        return live if live is not None and live.uid == quota.uid else quota

    async def quotas_live(self, namespace: str) -> list[ResourceQuota] | None:
        return await _in_time(self._list(RESOURCE_QUOTAS, namespace))

    async def migrations_live(self, namespace: str) -> Sequence[VirtualMachineInstanceMigration] | None:
        return await _in_time(self._migrations(namespace))

    async def observe_live(self, quota: ResourceQuota) -> Observed | None:
        """The quota among what the API server holds now."""
        return await _in_time(self._observe_live(quota))

    async def default_quotas_live(self, namespace: str) -> list[ResourceQuota] | None:
        quotas = await self.quotas_live(namespace)
        return None if quotas is None else _defaults(quotas)

    async def annotation_live(self, namespace: str) -> str | None:
        found = await self.namespace_live(namespace)
        return None if found is None else _annotation(found)

    async def namespace_live(self, name: str) -> Namespace | None:
        """None also when it is gone."""
        return await _in_time(self._client.resource(NAMESPACES).get(name))

    async def _observe_live(self, quota: ResourceQuota) -> Observed:
        cached = self._observe(quota)
        namespace, migrations, pods = await asyncio.gather(
            self._client.resource(NAMESPACES).get(quota.namespace),
            self._migrations(quota.namespace),
            self._launchers(quota.namespace),
        )
        return replace(
            cached,
            limits=_annotation(namespace),
            migrations=migrations,
            instances=await self._instances(quota.namespace, migrations, cached.instances),
            pods=pods,
        )

    async def _launchers(self, namespace: str) -> Sequence[Pod]:
        """Launcher and attachment pods: no other says anything about a migration."""
        selector = f"{constants.LABEL_APP} in ({constants.APP_VIRT_LAUNCHER},{constants.APP_HOTPLUG_DISK})"
        pods, _version = await self._client.resource(PODS).list(namespace, label_selector=selector)
        return pods

    async def _list(self, resource: Resource[K], namespace: str) -> list[K]:
        found, _version = await self._client.resource(resource).list(namespace)
        return found

    async def _migrations(self, namespace: str) -> Sequence[VirtualMachineInstanceMigration]:
        try:
            found, _version = await self._client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).list(namespace)
        except NotFound:  # the kind is not installed
            return []
        return found

    async def _instances(
        self,
        namespace: str,
        migrations: Sequence[VirtualMachineInstanceMigration],
        cached: Mapping[str, VirtualMachineInstance],
    ) -> Mapping[str, VirtualMachineInstance]:
        """A VMI's shape does not change while it lives: only those the cache has never seen are fetched."""
        found = dict(cached)
        for name in {migration.spec.vmi_name for migration in migrations} - found.keys():
            try:
                found[name] = await self._client.resource(VIRTUAL_MACHINE_INSTANCES).get(name, namespace)
            except NotFound:
                continue
        return found


async def _in_time(look: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(LIVE_TIMEOUT):
            return await look
    except NotFound:
        return None
    except (ApiError, TimeoutError) as exc:
        log.warning("deciding by the caches, no live look: %s", exc or "timed out")
        return None


def _defaults(quotas: list[ResourceQuota]) -> list[ResourceQuota]:
    label = constants.LABEL_DEFAULT_RESOURCE_QUOTA
    return sorted((q for q in quotas if q.labels.get(label) == "true"), key=lambda quota: quota.name)


def _annotation(namespace: Namespace | None) -> str:
    if namespace is None:
        return ""
    return namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
