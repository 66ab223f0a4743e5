"""The entrance: one Client for one API server."""

from __future__ import annotations

from typing import Any, Self, TypeVar, cast

from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.client.config import ClientConfig
from pkg.client.resource_client import ResourceClient
from pkg.client.transport import Transport

T = TypeVar("T", bound=Object)


class Client:
    """Resource clients over one transport. `async with Client(config) as client` closes its connections."""

    def __init__(self, config: ClientConfig | Transport, **options: Any) -> None:
        """`options` go to Transport: user_agent, qps, burst, retry, metrics."""
        self.transport = config if isinstance(config, Transport) else Transport(config, **options)
        self._resources: dict[tuple[str, str], ResourceClient[Any]] = {}

    def resource(self, resource: Resource[T]) -> ResourceClient[T]:
        """The client of a kind, made once."""
        key = (resource.api_version, resource.plural)
        if key not in self._resources:
            self._resources[key] = ResourceClient(self.transport, resource)
        return cast("ResourceClient[T]", self._resources[key])

    async def close(self) -> None:
        """Closes every connection."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
