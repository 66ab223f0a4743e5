"""Client: the entry point to an API server."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar, Unpack, cast

import msgspec

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.client.config import ClientConfig
from kubeloop.client.discovery import resource_of
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.transport import Transport, TransportOptions

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Object)
Item = TypeVar("Item")
R = TypeVar("R")


class Client:
    """Resource clients over one transport. `async with Client(config) as client` closes its connections."""

    def __init__(self, config: ClientConfig | Transport, **options: Unpack[TransportOptions]) -> None:
        self.transport = config if isinstance(config, Transport) else Transport(config, **options)
        self._resources: dict[Resource[Any], ResourceClient[Any]] = {}
        self._by_kind: dict[tuple[str, str], ResourceClient[Object]] = {}

    def resource(self, resource: Resource[T]) -> ResourceClient[T]:
        """The client of a kind, made once; of a definition with a struct of its own, another one."""
        if resource not in self._resources:
            self._resources[resource] = ResourceClient(self.transport, resource)
        return cast("ResourceClient[T]", self._resources[resource])

    async def resource_by_kind(self, api_version: str, kind: str) -> ResourceClient[Object]:
        """The client of a manifest's kind, by discovery (RESTMapper): it reads metadata alone. Raises NotInstalled."""
        if (api_version, kind) not in self._by_kind:
            self._by_kind[api_version, kind] = self.resource(await resource_of(self.transport, api_version, kind))
        return self._by_kind[api_version, kind]

    async def close(self) -> None:
        """Closes every connection; running requests raise Unreachable, later ones Closed."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def own_user(client: Client) -> str:
    """The user name of this client; "" when the API server does not report it (before Kubernetes 1.28)."""
    body = msgspec.json.encode({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    with contextlib.suppress(ApiError, msgspec.DecodeError, KeyError, TypeError):
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = await client.transport.request("POST", path, body=body)
        return str(msgspec.json.decode(answer)["status"]["userInfo"]["username"])
    return ""


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[R]]) -> list[R]:
    """The results in order, also after an item that fails. Raises the first ApiError at the end, logs the others."""
    results: list[R] = []
    errors: list[ApiError] = []
    for item in items:
        try:
            results.append(await work(item))
        except ApiError as exc:
            if errors:
                log.warning("%s: %s", getattr(item, "key", item), exc)
            errors.append(exc)
    if errors:
        raise errors[0]
    return results
