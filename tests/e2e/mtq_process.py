"""The controllers in this process, over a connection that goes dead after a chosen write, as if they were killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.client.transport import Transport
from kubeloop.testing.cluster.cluster import Cluster
from pkg.config.management import Management
from pkg.controller.options import Options
from pkg.controller.registry import register_all

_OF_THE_SEQUENCE = (
    "/validatingwebhookconfigurations",
    "/virtualmachinemigrationresourcequotas",
    "/resourcequotas",
)


class MortalTransport(Transport):
    """Counts the sequence's writes in a namespace. After the one with number `last` nothing gets through any more, not
    even its answer: a process that was killed at that moment would have seen and done just as much."""

    def __init__(self, *args: Any, namespace: str, last: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._namespace = namespace
        self._last = last
        self.writes: list[str] = []
        self.ended = asyncio.Event()

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        await self._while_alive()
        answer = await super().request(method, path, **options)
        if (
            method != "GET"
            and any(part in path for part in _OF_THE_SEQUENCE)
            and self._is_there(path, options)
        ):
            self.writes.append(f"{method} {path}")
            if len(self.writes) == self._last:
                self.ended.set()
        await self._while_alive()
        return answer

    def _is_there(self, path: str, options: dict[str, Any]) -> bool:
        return self._namespace in path or self._namespace.encode() in (options.get("body") or b"")

    async def _while_alive(self) -> None:
        if self.ended.is_set():
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def controllers(
    cluster: Cluster, namespace: str, last: int | None = None
) -> AsyncIterator[MortalTransport]:
    """All of them, until the block ends or the namespace's write with number `last` was made."""
    transport = MortalTransport(load_config(str(cluster.kubeconfig)), namespace=namespace, last=last)
    async with Client(transport) as client:
        management = Management(client)
        register_all(management, management.recorder("headroom"), Options())
        await management.start()
        assert await management.wait_for_sync(20)
        try:
            yield transport
        finally:
            await management.stop(timeout=0.1 if transport.ended.is_set() else 3.0)
