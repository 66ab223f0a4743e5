"""A transport and its scripted server, as the transport's tests use them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from pkg.api import registry
from pkg.client.config import ClientConfig
from pkg.client.metrics import RestClientMetrics
from pkg.client.retry import RetryPolicy
from pkg.client.transport import Transport
from tests.scripted_server import (
    ScriptedServer,
    obj,
)

PATH = "/api/v1/pods"
WATCHED = {"watch": "true"}


class Sleeps(list[float]):
    """Stands in for asyncio.sleep: notes the waits, takes no time."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@dataclass
class Rig:
    server: ScriptedServer
    transport: Transport
    sleeps: Sleeps
    registry: CollectorRegistry
    others: list[Transport] = field(default_factory=list)

    def another(self, config: ClientConfig, **options: Any) -> Transport:
        """One more transport, closed with the rig; it retries without waiting."""
        options.setdefault("retry", RetryPolicy(sleep=self.sleeps))
        self.others.append(Transport(config, metrics=RestClientMetrics(CollectorRegistry()), **options))
        return self.others[-1]


async def read_stream(
    transport: Transport, read_timeout: float = 5.0, got: list[bytes] | None = None
) -> list[bytes]:
    """The stream's lines; those before a break stand in `got`."""
    got = [] if got is None else got
    async with transport.stream(PATH, WATCHED, read_timeout) as lines:
        async for each in lines:
            got.append(each)
    return got


ONE = registry.RESOURCE_QUOTAS.path("ns", "q")


QUOTA = obj("q", "5", "ns", spec={"hard": {"limits.cpu": "3"}})
