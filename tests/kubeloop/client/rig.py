"""The rig of the client's tests: a transport and its scripted server, and configurations."""

import asyncio
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

from multidict import CIMultiDict

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.client.config import ClientConfig
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import RetryPolicy
from kubeloop.client.transport import Transport
from kubeloop.testing.scripted_server import ScriptedServer
from kubeloop.testing.scripted_steps import obj

Quotas = ResourceClient[ResourceQuota]

PATH = "/api/v1/pods"
WATCHED = {"watch": "true"}


class Sleeps(list[float]):
    """Stands in for asyncio.sleep: notes the waits, takes no time."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@dataclass
class TransportRig:
    server: ScriptedServer
    transport: Transport
    sleeps: Sleeps
    other_transports: list[Transport] = field(default_factory=list)

    def new_transport(self, config: ClientConfig, **options: Any) -> Transport:
        """Returns another transport, closed with the rig; it retries without waiting."""
        options.setdefault("retry", RetryPolicy(sleep=self.sleeps))
        self.other_transports.append(Transport(config, **options))
        return self.other_transports[-1]


async def read_stream(transport: Transport, read_timeout: float = 5.0, got: list[bytes] | None = None) -> list[bytes]:
    """The stream's lines; those before a break stand in `got`."""
    got = [] if got is None else got
    async with transport.stream(PATH, WATCHED, read_timeout) as lines:
        async for line in lines:
            got.append(line)
    return got


ONE = registry.RESOURCE_QUOTAS.path("ns", "q")


QUOTA = obj("q", "5", "ns", spec={"hard": {"limits.cpu": "3"}})


def load(path: str, context: str | None = None, **environ: str) -> ClientConfig:
    return load_config(path, context, environ=environ)


async def authenticate(config: ClientConfig, *, refresh: bool = False) -> tuple[CIMultiDict[str], SSLContext | None]:
    """The headers and the TLS context of a request."""
    return await config.present(await config.credentials.get(refresh=refresh), reread=refresh)


async def token_of(config: ClientConfig) -> str | None:
    return (await authenticate(config))[0].get("Authorization")
