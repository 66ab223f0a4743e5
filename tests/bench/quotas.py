"""ResourceQuotas as the API server's watch shows them."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.client.client import Client
from pkg.util import constants
from pkg.util.constants import LIMITS_MEMORY
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota.base import quantity_of

TIMEOUT = 60.0


class QuotaWatch:
    """Notes when each namespace's limits.memory was last seen to change, and counts what was written.

    A change of status alone, which the API server and its controller manager write, is no update.
    """

    def __init__(self, client: Client) -> None:
        self.seen_at: dict[str, float] = {}
        self.updates = 0
        self._limits: dict[str, Quantity] = {}
        self._taken_over: set[str] = set()
        self._changed = asyncio.Event()
        self._informer = SharedIndexInformer(client.resource(registry.RESOURCE_QUOTAS))
        self._informer.add_event_handler(self)

    def on_add(self, quota: ResourceQuota, is_in_initial_list: bool) -> None:
        self._note(quota)

    def on_update(self, old: ResourceQuota, new: ResourceQuota) -> None:
        if (old.hard, old.annotations) != (new.hard, new.annotations):
            self.updates += 1
            self._note(new)

    def on_delete(self, quota: ResourceQuota, final_state_unknown: bool) -> None:
        self._limits.pop(quota.namespace, None)

    def _note(self, quota: ResourceQuota) -> None:
        limit = quantity_of(quota.hard, LIMITS_MEMORY)
        if self._limits.get(quota.namespace, ZERO) != limit:
            self._limits[quota.namespace] = limit
            self.seen_at[quota.namespace] = time.perf_counter()
        if constants.ANNOTATION_OWNER in quota.annotations:
            self._taken_over.add(quota.namespace)
        self._changed.set()

    async def wait_for(self, namespace: str, limit: Quantity) -> None:
        """Until the namespace's limits.memory is `limit`. Raises TimeoutError."""
        async with asyncio.timeout(TIMEOUT):
            while self._limits.get(namespace) != limit:
                self._changed.clear()
                await self._changed.wait()

    async def wait_until_taken_over(self, namespace: str) -> None:
        """Until the controller has marked the namespace's quota. Raises TimeoutError."""
        async with asyncio.timeout(TIMEOUT):
            while namespace not in self._taken_over:
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        self._informer.start()
        await self._informer.wait_for_sync(TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._informer.stop()
