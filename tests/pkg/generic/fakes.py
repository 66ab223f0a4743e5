"""The fake cluster kind by kind: the tests of controllers have one object that is a kind's client and its server."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from pkg.api.core import ResourceQuota
from pkg.api.meta import Object
from pkg.api.registry import RESOURCE_QUOTAS, Resource
from pkg.cache import SharedIndexInformer
from pkg.client.client import Client
from pkg.client.errors import (
    ApiError,
)
from pkg.client.fake import FakeCluster, Request
from pkg.client.fake.objects import Raw
from pkg.client.fake.server import FakeTransport
from pkg.client.resource_client import ResourceClient
from pkg.generic.controller import Controller
from pkg.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from tests.virtual_time import now, settle

T = TypeVar("T", bound=Object)


class FakeResource(ResourceClient[T]):
    """One kind. `errors` holds what the next calls of a verb raise, `calls` what was asked."""

    def __init__(self, resource: Resource[T], cluster: FakeCluster | None = None) -> None:
        self.cluster = cluster or FakeCluster(resource)
        super().__init__(FakeTransport(self.cluster), resource)
        self.errors: dict[str, list[ApiError]] = {}
        self.answering = asyncio.Event()
        self.answering.set()
        self.cluster.install(resource)
        self.cluster.reactors.append(self._admit)

    @property
    def objects(self) -> dict[str, Raw]:
        return self.cluster.raw(self.resource)

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        requests = [request for request in self.cluster.requests if request.plural == self.resource.plural]
        return [(_verb(request), request.key, request.body) for request in requests]

    def put(self, name: str, namespace: str = "", **fields: Any) -> T:
        """An object is created or replaced."""
        metadata = {"uid": f"uid-{name}", **fields.pop("metadata", {})} | {"name": name}
        return self.cluster.put(self.resource, fields | {"metadata": metadata | _place(namespace)})

    def remove(self, key: str) -> None:
        """An object is gone at once."""
        self.cluster.remove(self.resource, key)

    def mark_deleted(self, key: str) -> None:
        """An object that finalizers hold is deleted."""
        raw = self.objects[key]
        metadata = raw["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        self.cluster.put(self.resource, raw | {"metadata": metadata})

    def install(self, installed: bool) -> None:
        """The CRD comes or goes."""
        self.cluster.install(self.resource, installed)

    def asked(self, verb: str) -> list[Any]:
        """The bodies of all requests of a verb."""
        return [body for called, _, body in self.calls if called == verb]

    async def _admit(self, request: Request) -> None:
        if request.plural != self.resource.plural:
            return
        await self.answering.wait()
        if self.errors.get(_verb(request)):
            raise self.errors[_verb(request)].pop(0)


class FakeClient(Client):
    """A Client whose resources are FakeResources of one cluster."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        super().__init__(FakeTransport(self.cluster))

    def resource(self, resource: Resource[T]) -> FakeResource[T]:
        if resource not in self._resources:
            self._resources[resource] = FakeResource(resource, self.cluster)
        found: Any = self._resources[resource]
        return found


def _place(namespace: str) -> dict[str, str]:
    return {"namespace": namespace} if namespace else {}


def _verb(request: Request) -> str:
    """Patches by their type."""
    if request.verb == "patch":
        return "json_patch" if isinstance(request.body, list) else "merge_patch"
    return request.verb


class Kind:
    """ResourceQuotas on a fake server, their informer and controller. Retries after 1, 2, 4, ... 64 seconds."""

    def __init__(self, *, workers: int = 2, client: FakeClient | None = None) -> None:
        self.server: FakeResource[ResourceQuota] = (client or FakeClient()).resource(RESOURCE_QUOTAS)
        self.informer: SharedIndexInformer[ResourceQuota] = SharedIndexInformer(self.server)
        self.controller: Controller[ResourceQuota] = Controller(
            "quotas",
            self.informer,
            workers=workers,
            rate_limiter=ItemExponentialFailureRateLimiter(1.0, 64.0),
            client=self.server,  # type: ignore[arg-type]
        )

    async def start(self) -> None:
        self.informer.start()
        await self.informer.wait_for_sync()
        self.controller.start_workers()
        await settle()

    async def stop(self) -> None:
        await self.controller.stop()
        await self.informer.stop()


class Calls:
    """A handler that remembers when it was called with what, and does what it was told to."""

    def __init__(self, *script: BaseException | None) -> None:
        self.script = list(script)
        self.times: list[float] = []
        self.keys: list[str] = []
        self.objects: list[Any] = []

    async def __call__(self, key: str, obj: Any) -> None:
        self.times.append(now())
        self.keys.append(key)
        self.objects.append(obj)
        step = self.script.pop(0) if self.script else None
        if step is not None:
            raise step
