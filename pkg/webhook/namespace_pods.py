"""All pods of the few namespaces that hold added headroom: watched from the first question on, until the last
question is IDLE seconds old.

A process caches KubeVirt's pods only, for a cluster has many others. A live list would do for one question, but the API
server makes it wait for its own cache, and a tenant may ask a hundred times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cachetools import TTLCache
from msgspec.structs import replace

from kubeloop.api.core import Pod
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.objects import find_condition
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.resource_client import ResourceClient
from pkg.util.resourcequota.room import Pods

log = logging.getLogger(__name__)

IDLE: Final = 300.0
"""Seconds without a question after which a namespace is no longer watched."""
MOST: Final = 40
"""Namespaces watched at once: each holds one of the connections that all requests share. The one that has not been
asked about for longest gives way."""
ENDED: Final = 5.0
_ENDED_MOST: Final = 1000
"""For how long, and of how many pods, it is remembered that they ended: status.used may still count them, the reserve
remembers pods that were not seen (ledger.EXPIRY), and a watch may be late."""


@dataclass(eq=False, slots=True)
class _Watch:
    informer: SharedIndexInformer[Pod]
    finished: TTLCache[str, Pod]
    end: asyncio.TimerHandle = field(init=False)


class NamespacePods:
    """Watches the pods of namespaces, with one informer each. Call `close` at the end."""

    def __init__(
        self, pods: ResourceClient[Pod], clock: Callable[[], float], transform: Callable[[Pod], Pod] | None = None
    ) -> None:
        """`clock`: seconds since 1970, the API server's; `transform`: what is held of a pod, as `pods` lists it."""
        self._pods = pods
        self._transform = transform
        self._clock = clock
        self._watches: dict[str, _Watch] = {}
        # Invariant: in the order of the last question about each.
        self._ending: set[asyncio.Task[None]] = set()

    def list_watched(self, namespace: str, *, begin: bool = True) -> Pods | None:
        """Returns the pods that the watch has brought so far. None until its first list has come, or without a watch.
        With `begin` the watch is started, or lasts for IDLE seconds more."""
        watch = self._watch(namespace) if begin else self._watches.get(namespace)
        if watch is None or not watch.informer.has_synced():
            return None
        return Pods(watch.informer.indexer.list(), dict(watch.finished))

    async def live(self, namespace: str) -> Pods:
        """Returns the pods as the API server has them now, and those that finished a moment ago, by the list or the
        watch.
        """
        watch = self._watch(namespace)
        listed = await self._pods.list(namespace)
        alive = {pod.uid for pod in listed if not pod.terminal}
        # What has ended since the list is of a later moment than all else.
        return Pods(
            listed,
            self._recently_finished(listed) | {uid: pod for uid, pod in watch.finished.items() if uid not in alive},
        )

    def _recently_finished(self, pods: Sequence[Pod]) -> dict[str, Pod]:
        """Returns the pods of a list that finished less than ENDED seconds ago, by uid, as they were before."""
        finished = {}
        for pod in pods:
            # A kubelet reports by its node's clock that the containers have ended.
            ready = find_condition(pod.status.conditions, "Ready") if pod.terminal else None
            since = from_rfc3339(ready.last_transition_time) if ready and ready.last_transition_time else 0.0
            if abs(self._clock() - since) < ENDED:
                finished[pod.uid] = replace(pod, status=replace(pod.status, phase=None))
        return finished

    async def close(self) -> None:
        """Ends every watch."""
        for namespace in list(self._watches):
            self._end(namespace)
        if self._ending:
            await asyncio.wait(self._ending)

    def _watch(self, namespace: str) -> _Watch:
        """Returns the namespace's watch, started if there is none, and lets it last for IDLE seconds more."""
        watch = self._watches.pop(namespace, None)
        if watch is None:
            watch = self._start_watch(namespace)
        else:
            watch.end.cancel()
        watch.end = asyncio.get_running_loop().call_later(IDLE, self._end, namespace)
        self._watches[namespace] = watch
        if len(self._watches) > MOST:
            self._end(next(iter(self._watches)))
        return watch

    def _start_watch(self, namespace: str) -> _Watch:
        log.debug("watching the pods of %s", namespace)
        informer = SharedIndexInformer(self._pods.select(namespace=namespace), transform=self._transform)
        finished: TTLCache[str, Pod] = TTLCache(_ENDED_MOST, ENDED, asyncio.get_running_loop().time)

        def on_add(pod: Pod, _: bool) -> None:
            finished.update(self._recently_finished([pod]))

        def on_update(old: Pod, new: Pod) -> None:
            if new.terminal and not old.terminal:
                finished[old.uid] = old

        def on_delete(pod: Pod, _: bool) -> None:
            finished.setdefault(pod.uid, pod)

        informer.add_event_handler(ResourceEventHandlerFuncs(on_add, on_update, on_delete))
        informer.start()
        return _Watch(informer, finished)

    def _end(self, namespace: str) -> None:
        watch = self._watches.pop(namespace)
        watch.end.cancel()
        task = asyncio.create_task(watch.informer.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
