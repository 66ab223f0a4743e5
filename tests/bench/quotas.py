"""ResourceQuotas as the API server's watch shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.client.client import Client
from lab.watching import Watching
from pkg.util import constants
from pkg.util.constants import LIMITS_MEMORY
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.base import quantity_of

TIMEOUT = 60.0


class QuotaWatch(Watching):
    """Notes when each namespace's limits.memory was last seen to change, and counts what was written.

    A change of status alone, which the API server and its controller manager write, is no update.
    """

    def __init__(self, client: Client, namespaces: Collection[str]) -> None:
        super().__init__(client, namespaces)
        self.seen_at: dict[str, float] = {}
        self.updates = 0
        self._last: dict[str, ResourceQuota] = {}
        self.watch(registry.RESOURCE_QUOTAS, self._see)

    def _see(self, quota: ResourceQuota) -> None:
        before, self._last[quota.namespace] = self._last.get(quota.namespace), quota
        if before is not None and (before.hard, before.annotations) != (quota.hard, quota.annotations):
            self.updates += 1
        if before is None or _limit(before) != _limit(quota):
            self.seen_at[quota.namespace] = time.perf_counter()

    async def wait_for(self, namespace: str, limit: Quantity) -> None:
        """Until the namespace's limits.memory is `limit`. Raises TimeoutError."""
        await self._wait_for(namespace, lambda quota: _limit(quota) == limit)

    async def wait_until_taken_over(self, namespace: str) -> None:
        """Until the controller has marked the namespace's quota. Raises TimeoutError."""
        await self._wait_for(namespace, lambda quota: constants.ANNOTATION_OWNER in quota.annotations)

    async def _wait_for(self, namespace: str, done: Callable[[ResourceQuota], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while (quota := self._last.get(namespace)) is None or not done(quota):
                await self.changed(TIMEOUT)


def _limit(quota: ResourceQuota) -> Quantity:
    return quantity_of(quota.hard, LIMITS_MEMORY)
