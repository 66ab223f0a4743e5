"""The webhooks' reads: the caches, the API server itself where a cache may be stale, and all pods of a few namespaces.

A process caches KubeVirt's pods only, for a cluster has many others. Those of a namespace that holds added headroom are
watched, from the first question on, until the last one is IDLE seconds old: a live list waits for the API server's own
cache, and a tenant may ask a hundred times a second."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
from cachetools import TTLCache

from kubeloop.api.core import Namespace, Pod, ResourceQuota
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.objects import find_condition
from kubeloop.api.registry import NAMESPACES, PODS, RESOURCE_QUOTAS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.resource_reader import list_installed
from kubeloop.webhook.admission import time_left
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.metrics import METRICS
from pkg.config.slim import CacheTransforms
from pkg.util import constants
from pkg.util.resourcequota.entries import names_by_key
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.room import Pods

log = logging.getLogger(__name__)
T = TypeVar("T")

_TIMEOUTS = METRICS["headroom_admission_timeouts_total"].counter()

IDLE: Final = 300.0
MOST: Final = 40
"""Namespaces watched at once, the last asked about: each holds one of the connections that all requests share."""
ENDED: Final = 5.0
"""Seconds for which it is remembered that a pod ended, of 1000 in a namespace: status.used may still count it, the
reserve remembers pods that were not seen (`pod.EXPIRY`), and a watch may be late."""


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
    except (TimeoutError, ApiError) as exc:
        _TIMEOUTS.inc(isinstance(exc, TimeoutError))
        raise NoAnswer(f"the API server does not answer: {str(exc) or 'timed out'}") from exc


class View:
    """Reads of the webhook. A live look gives None for what is not there, and raises NoAnswer when the API server does
    not answer before the review's deadline: then the caches are all there is."""

    def __init__(self, client: Client, source: Source, clock: Callable[[], float], slim: CacheTransforms) -> None:
        """`clock`: seconds since 1970, the API server's; `slim` shares what it holds with the caches."""
        self._source, self._clock = source, clock
        self.quotas, self.releases = source.list_quotas, source.kubernetes
        self._quotas, self._namespaces = client.resource(RESOURCE_QUOTAS), client.resource(NAMESPACES)
        self._all_pods = client.resource(PODS).transformed(slim.pod)
        self._vmis = client.resource(VIRTUAL_MACHINE_INSTANCES).transformed(slim.instance)
        self._migrations = client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).transformed(slim.plain)
        self._pods = NamespacePods(self._all_pods, clock, slim.pod)
        self.pods, self.close = self._pods.list_watched, self._pods.close

    def observe(self, quota: ResourceQuota, source: Source | None = None) -> Facts:
        return (source or self._source).observe(quota, self._clock())

    def namespace(self, name: str) -> Namespace | None:
        return self._source.namespaces.get(name=name)

    def migrating(self, quota: ResourceQuota) -> tuple[str, ...]:
        """Returns the names of the VMs that have an entry on a quota, in order."""
        source, namespace = self._source, quota.namespace
        by_key = names_by_key(quota.annotations, source.migrations.list(namespace), source.instances.list(namespace))
        return tuple(sorted({*by_key.values()}))

    async def pods_live(self, namespace: str) -> Pods:
        return await read_in_time(self._pods.live(namespace)) or Pods()

    async def quota_live(self, quota: ResourceQuota) -> ResourceQuota:
        """Returns the cached quota if it is gone. A get: a list waits for the API server's own cache, up to 0.1 s."""
        live = await read_in_time(self._quotas.get(name=quota.name, namespace=quota.namespace))
        return live if live is not None and live.uid == quota.uid else quota

    async def quotas_live(self, namespace: str) -> list[ResourceQuota]:
        return await read_in_time(self._quotas.list(namespace)) or []

    async def observe_live(self, quota: ResourceQuota) -> Facts | None:
        """Returns the observation of a quota by live objects, or None if its namespace is gone."""
        # KubeVirt's: no other pod says anything about a migration. Before the rest: a migration, and what its VMI says,
        # are known as long as their pods are there, but a target could be made between a list without its migration and
        # a list of pods.
        pods = await read_in_time(self._all_pods.list(quota.namespace, label_selector=constants.KUBEVIRT_PODS))
        source = await self.source_live(quota.namespace)
        return self.observe(quota, replace(source, pods=Listed(pods or []))) if source else None

    async def source_live(self, namespace: str) -> Source | None:
        """Returns namespace, VMIMs and VMIs, all read at once; None if the namespace is gone."""
        live, migrations, instances = await asyncio.gather(
            self.namespace_live(namespace),
            read_in_time(list_installed(self._migrations, namespace)),
            read_in_time(list_installed(self._vmis, namespace)),
        )
        source = replace(self._source, migrations=Listed(migrations or ()), instances=Listed(instances or ()))
        return None if live is None else replace(source, namespaces=Listed([live]))

    async def namespace_live(self, name: str) -> Namespace | None:
        return await read_in_time(self._namespaces.get(name=name))


def defaults(quotas: Iterable[ResourceQuota]) -> list[ResourceQuota]:
    """Returns Rancher's default quotas, sorted by name."""
    return sorted(filter(is_default, quotas), key=lambda quota: quota.name)


@dataclass(eq=False, slots=True)
class _Watch:
    informer: SharedIndexInformer[Pod]
    finished: TTLCache[str, Pod]
    """Pods that ended a moment ago, by uid, as they were before."""
    end: asyncio.TimerHandle


class NamespacePods:
    """Watches the pods of namespaces, with one informer each. Call `close` at the end."""

    def __init__(self, pods: ResourceClient[Pod], clock: Callable[[], float], transform: Callable[[Pod], Pod]) -> None:
        """`transform`: what is held of a pod, as `pods` lists it."""
        self._pods, self._clock, self._transform = pods, clock, transform
        self._watches: dict[str, _Watch] = {}
        # Invariant: in the order of the last question about each.
        self._ending: set[asyncio.Task[None]] = set()

    def list_watched(self, namespace: str, *, begin: bool = True) -> Pods | None:
        """Returns the pods that the watch has brought so far, or None. With `begin` it is started, or lasts longer."""
        watch = self._watch(namespace) if begin else self._watches.get(namespace)
        if watch is None or not watch.informer.has_synced():
            return None
        return Pods(watch.informer.indexer.list(), dict(watch.finished))

    async def live(self, namespace: str) -> Pods:
        """Returns the pods as they are now, and those that finished a moment ago, by the list or the watch."""
        watch = self._watch(namespace)
        listed = await self._pods.list(namespace)
        alive = {pod.uid for pod in listed if not pod.terminal}
        # What has ended since the list is of a later moment than all else.
        by_watch = {uid: pod for uid, pod in watch.finished.items() if uid not in alive}
        return Pods(listed, self._recently_finished(listed) | by_watch)

    def _recently_finished(self, pods: Sequence[Pod]) -> dict[str, Pod]:
        """Returns the pods of a list that finished less than ENDED seconds ago, by uid, as they were before."""
        finished = {}
        for pod in pods:
            # A kubelet reports by its node's clock that the containers have ended.
            ready = find_condition(pod.status.conditions, "Ready") if pod.terminal else None
            since = from_rfc3339(ready.last_transition_time) if ready and ready.last_transition_time else 0.0
            if abs(self._clock() - since) < ENDED:
                finished[pod.uid] = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=None))
        return finished

    async def close(self) -> None:
        for namespace in list(self._watches):
            self._end(namespace)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _watch(self, namespace: str) -> _Watch:
        """Returns the namespace's watch, which lasts for IDLE seconds more."""
        watch = self._watches.pop(namespace, None) or self._start_watch(namespace)
        self._watches[namespace] = watch
        watch.end.cancel()
        watch.end = asyncio.get_running_loop().call_later(IDLE, self._end, namespace)
        if len(self._watches) > MOST:
            self._end(next(iter(self._watches)))
        return watch

    def _start_watch(self, namespace: str) -> _Watch:
        log.debug("watching the pods of %s", namespace)
        loop = asyncio.get_running_loop()
        informer = SharedIndexInformer(self._pods.select(namespace=namespace), transform=self._transform)
        finished: TTLCache[str, Pod] = TTLCache(1000, ENDED, loop.time)

        def on_update(old: Pod, new: Pod) -> None:
            if new.terminal and not old.terminal:
                finished[old.uid] = old

        def on_delete(pod: Pod, _: bool) -> None:
            finished.setdefault(pod.uid, pod)

        def on_add(pod: Pod, _: bool) -> None:
            finished.update(self._recently_finished([pod]))

        informer.add_event_handler(ResourceEventHandlerFuncs(on_add, on_update, on_delete))
        informer.start()
        return _Watch(informer, finished, loop.call_later(IDLE, self._end, namespace))

    def _end(self, namespace: str) -> None:
        watch = self._watches.pop(namespace)
        watch.end.cancel()
        task = asyncio.create_task(watch.informer.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
