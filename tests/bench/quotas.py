"""ResourceQuotas as the API server's watch shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from itertools import groupby

from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.client import Client
from lab.questions import writes
from lab.record import QuotaVersion, Record
from lab.watching import Watching
from pkg.util import constants
from pkg.util.quantity import Quantity

TIMEOUT = 60.0


class QuotaWatch(Watching):
    """The quotas of some namespaces, and nothing else."""

    def __init__(self, client: Client, namespaces: Collection[str]) -> None:
        super().__init__(client, {name: Record(time.perf_counter) for name in namespaces}, RESOURCE_QUOTAS)

    @property
    def updates(self) -> int:
        """How often they were written, status apart."""
        return sum(len(writes(record)) for record in self.records.values())

    def changed_at(self, namespace: str) -> float:
        """When limits.memory was last seen to change."""
        same = groupby(self.records[namespace].quotas, lambda version: version.hard.memory)
        return [next(versions).at for _, versions in same][-1]

    async def wait_for(self, namespace: str, limit: Quantity) -> None:
        """Until the namespace's limits.memory is `limit`. Raises TimeoutError."""
        await self._wait_for(namespace, lambda version: version.hard.memory == limit)

    async def wait_until_taken_over(self, namespace: str) -> None:
        """Until the controller has marked the namespace's quota. Raises TimeoutError."""
        await self._wait_for(namespace, lambda version: constants.ANNOTATION_OWNER in version.quota.annotations)

    async def _wait_for(self, namespace: str, done: Callable[[QuotaVersion], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while (quota := self.records[namespace].quota) is None or not done(quota):
                await self.changed(TIMEOUT)
