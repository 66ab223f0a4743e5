"""The webhooks' reads: the caches, and the API server itself where a cache may be stale."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.registry import NAMESPACES, PODS, RESOURCE_QUOTAS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.webhook.admission import time_left
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.slim import CacheTransforms
from pkg.util import constants
from pkg.util.quotacount.releases import Releases
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.guard import migrating_vms
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.util.resourcequota.room import Pods
from pkg.webhook.metrics import TIMEOUTS
from pkg.webhook.namespace_pods import NamespacePods

T = TypeVar("T")


class NoAnswer(Exception):
    """The API server did not answer in time, or with an error. That says nothing about the object."""


async def read_in_time(read: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of a live read, or None if the object does not exist. Raises NoAnswer."""
    if (seconds_left := time_left()) <= 0:
        read.close()
        raise NoAnswer("no time is left to ask the API server")
    try:
        async with asyncio.timeout(seconds_left):
            return await read
    except NotFound:
        return None
    except TimeoutError as exc:
        TIMEOUTS.inc()
        raise NoAnswer("the API server does not answer: timed out") from exc
    except ApiError as exc:
        raise NoAnswer(f"the API server does not answer: {exc or 'timed out'}") from exc


class View:
    """Reads of the webhook. A live look gives None for what is not there, and raises NoAnswer when the API server does
    not answer before the review's deadline: then the caches are all there is."""

    def __init__(
        self, client: Client, observer: Observer, clock: Callable[[], float], slim: CacheTransforms | None = None
    ) -> None:
        """`clock`: seconds since 1970, the API server's; `slim` shares what it holds with the caches."""
        slim = slim or CacheTransforms()
        self._client = client
        self._observer = observer
        self._source = observer.source
        self._all_pods = client.resource(PODS).transformed(slim.pod)
        self._vmis = client.resource(VIRTUAL_MACHINE_INSTANCES).transformed(slim.instance)
        self._migrations = client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).transformed(slim.migration)
        self._pods = NamespacePods(self._all_pods, clock, slim.pod)
        self._clock = clock

    async def close(self) -> None:
        """Ends every watch of pods."""
        await self._pods.close()

    def observe(self, quota: ResourceQuota, source: Source | None = None) -> Facts:
        """Returns the observation of a quota, by the caches or by `source`."""
        return self._observer.observe(quota, self._clock(), source=source)

    def namespace(self, name: str) -> Namespace | None:
        return self._source.namespaces.get(name=name)

    def migrating(self, quota: ResourceQuota) -> tuple[str, ...]:
        """Returns the names of the VMs that have an entry on a quota, in order."""
        migrations, instances = self._source.migrations, self._source.instances
        return migrating_vms(quota, migrations.list(quota.namespace), instances.list(quota.namespace))

    def quotas(self, namespace: str) -> Sequence[ResourceQuota]:
        """Returns every quota of a namespace."""
        return self._source.quotas.list(namespace)

    def pods(self, namespace: str, *, watch: bool = True) -> Pods | None:
        """Returns every pod of a namespace as a watch has brought them, or None until it has. Without `watch` none is
        started.
        """
        return self._pods.list_watched(namespace, begin=watch)

    def releases(self) -> Releases:
        """Returns the releases by which the API servers count."""
        return self._source.kubernetes()

    async def pods_live(self, namespace: str) -> Pods:
        """Returns the pods as the API server has them, and those that the watch saw finish."""
        return await read_in_time(self._pods.live(namespace)) or Pods()

    async def quota_live(self, quota: ResourceQuota) -> ResourceQuota:
        """Returns a quota as it is now, or the cached one if it is gone.

        A get, not a list: a list waits for the API server's own cache, up to a tenth of a second.
        """
        quotas = self._client.resource(RESOURCE_QUOTAS)
        live = await read_in_time(quotas.get(name=quota.name, namespace=quota.namespace))
        return live if live is not None and live.uid == quota.uid else quota

    async def quotas_live(self, namespace: str) -> list[ResourceQuota]:
        return await read_in_time(self._client.resource(RESOURCE_QUOTAS).list(namespace)) or []

    async def observe_live(self, quota: ResourceQuota) -> Facts | None:
        """Returns the observation of a quota by live objects, or None if its namespace is gone."""
        # KubeVirt's: no other pod says anything about a migration. Before the rest: a migration, and what its VMI says,
        # are known as long as their pods are there, but a target could be made between a list without its migration and
        # a list of pods.
        pods = await read_in_time(self._all_pods.list(quota.namespace, label_selector=constants.KUBEVIRT_PODS))
        source = await self.source_live(quota.namespace)
        return self.observe(quota, replace(source, pods=Listed(pods or []))) if source else None

    async def source_live(self, namespace: str) -> Source | None:
        """Returns the namespace, its VMIMs and its VMIs, read live. None if the namespace is gone."""
        return await read_in_time(self._source_live(namespace))

    async def _source_live(self, namespace: str) -> Source:
        live_namespace, migrations, instances = await asyncio.gather(
            self._client.resource(NAMESPACES).get(name=namespace),
            list_installed(self._migrations, namespace),
            list_installed(self._vmis, namespace),
        )
        return replace(
            self._source,
            namespaces=Listed([live_namespace]),
            migrations=Listed(migrations),
            instances=Listed(instances),
        )

    async def namespace_live(self, name: str) -> Namespace | None:
        """Returns the namespace, read live, or None if it is gone."""
        return await read_in_time(self._client.resource(NAMESPACES).get(name=name))


def defaults(quotas: Iterable[ResourceQuota]) -> list[ResourceQuota]:
    """Returns Rancher's default quotas, sorted by name."""
    return sorted(filter(is_default, quotas), key=lambda quota: quota.name)
