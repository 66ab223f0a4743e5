"""All pods of the few namespaces that hold added headroom: watched from the first question on, until the last
question is IDLE seconds old, twice that at most.

A process caches KubeVirt's pods only, for a cluster has many others. A live list would do for one question, but the API
server makes it wait for its own cache, and a tenant may ask a hundred times a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
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


class NamespacePods:
    """One informer a namespace. `close` at the end."""

    def __init__(self, pods: ResourceClient[Pod], clock: Callable[[], float] = time.monotonic) -> None:
        self._pods = pods
        self._clock = clock
        self._informers: dict[str, SharedIndexInformer[Pod]] = {}
        self._gone: dict[str, TTLCache[str, None]] = {}
        self._asked_at: dict[str, float] = {}
        # Invariant: whatever is watched was asked about.
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        # Invariant: set while anything is watched.

    async def of(self, namespace: str) -> list[Pod] | None:
        """What the watch has brought so far; None while the first list has not come."""
        self._asked_at[namespace] = self._clock()
        informer = self._informers.get(namespace)
        if informer is None:
            self._make_room(1)
            informer = self._informers[namespace] = SharedIndexInformer(self._pods.select(namespace=namespace))
            gone: TTLCache[str, None] = TTLCache(_GONE_MOST, _GONE_SECONDS, self._clock)
            self._gone[namespace] = gone
            informer.add_event_handler(ResourceEventHandlerFuncs(on_delete=lambda pod, _: gone.update({pod.uid: None})))
            informer.start()
            log.debug("watching the pods of %s", namespace)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(IDLE, self._end_idle)
        if not informer.has_synced() and not await informer.wait_for_sync(SYNC_TIMEOUT):
            return None
        return informer.indexer.list()

    def gone(self, namespace: str) -> Collection[str]:
        """The uids of pods that the watch saw deleted a moment ago; `of` may never have shown them."""
        return list(self._gone.get(namespace, ()))

    async def close(self) -> None:
        """End every watch."""
        if self._timer is not None:
            self._timer.cancel()
        for namespace in list(self._informers):
            self._end(namespace)
        if self._ending:
            await asyncio.wait(self._ending)

    def _end_idle(self) -> None:
        self._make_room(0)
        waits = bool(self._informers)
        self._timer = asyncio.get_running_loop().call_later(IDLE, self._end_idle) if waits else None

    def _make_room(self, more: int) -> None:
        longest_idle_first = sorted(self._informers, key=self._asked_at.__getitem__)
        too_many = len(longest_idle_first) - MOST + more
        for number, namespace in enumerate(longest_idle_first):
            if number < too_many or self._clock() - self._asked_at[namespace] > IDLE:
                self._end(namespace)

    def _end(self, namespace: str) -> None:
        del self._asked_at[namespace], self._gone[namespace]
        task = asyncio.create_task(self._informers.pop(namespace).stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
