"""All pods of the few namespaces that hold added headroom: watched from the first question on, until the last
question is IDLE seconds old.

A process caches KubeVirt's pods only, for a cluster has many others. A live list would do for one question, but the API
server makes it wait for its own cache, and a tenant may ask a hundred times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from cachetools import TTLCache

from kubeloop.api.core import Pod
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.resource_client import ResourceClient

log = logging.getLogger(__name__)

SYNC_TIMEOUT: Final = 2.0
"""Seconds that the first question of a namespace waits: the API server waits 5 s for the whole answer."""
IDLE: Final = 300.0
"""Seconds without a question after which a namespace is no longer watched."""
MOST: Final = 40
"""Namespaces watched at once: each holds one of the connections that all requests share. The one that has not been
asked about for longest gives way."""
_GONE_SECONDS: Final = 5.0
_GONE_MOST: Final = 1000
"""For how long, and of how many pods, it is remembered that they were deleted: as long as the reserve remembers pods
that were not seen (ledger.EXPIRY), and a watch may be late."""


@dataclass(eq=False, slots=True)
class _Watch:
    informer: SharedIndexInformer[Pod]
    gone: TTLCache[str, None]
    """Uids."""
    end: asyncio.TimerHandle = field(init=False)


class NamespacePods:
    """One informer a namespace. `close` at the end."""

    def __init__(self, pods: ResourceClient[Pod]) -> None:
        self._pods = pods
        self._watches: dict[str, _Watch] = {}
        # Invariant: in the order of the last question about each.
        self._ending: set[asyncio.Task[None]] = set()

    async def of(self, namespace: str) -> list[Pod] | None:
        """What the watch has brought so far; None while the first list has not come."""
        watch = self._watches.pop(namespace, None)
        if watch is None:
            watch = self._begun(namespace)
        else:
            watch.end.cancel()
        watch.end = asyncio.get_running_loop().call_later(IDLE, self._end, namespace)
        self._watches[namespace] = watch
        if len(self._watches) > MOST:
            self._end(next(iter(self._watches)))
        informer = watch.informer
        if not informer.has_synced() and not await informer.wait_for_sync(SYNC_TIMEOUT):
            return None
        return informer.indexer.list()

    def gone(self, namespace: str) -> Collection[str]:
        """The uids of pods that the watch saw deleted a moment ago; `of` may never have shown them."""
        return list(self._watches[namespace].gone) if namespace in self._watches else ()

    async def close(self) -> None:
        """End every watch."""
        for namespace in list(self._watches):
            self._end(namespace)
        if self._ending:
            await asyncio.wait(self._ending)

    def _begun(self, namespace: str) -> _Watch:
        log.debug("watching the pods of %s", namespace)
        informer = SharedIndexInformer(self._pods.select(namespace=namespace))
        gone: TTLCache[str, None] = TTLCache(_GONE_MOST, _GONE_SECONDS, asyncio.get_running_loop().time)
        informer.add_event_handler(ResourceEventHandlerFuncs(on_delete=lambda pod, _: gone.update({pod.uid: None})))
        informer.start()
        return _Watch(informer, gone)

    def _end(self, namespace: str) -> None:
        watch = self._watches.pop(namespace)
        watch.end.cancel()
        task = asyncio.create_task(watch.informer.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
