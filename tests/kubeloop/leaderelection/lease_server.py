"""A Lease on the fake API server, and candidates' connections to it that can be cut off, be slow or refuse."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from kubeloop.api.core import Lease, LeaseSpec
from kubeloop.api.registry import LEASES, Resource
from kubeloop.client.errors import ApiError, Unreachable
from kubeloop.testing.fake.server import FakeCluster, FakeTransport
from kubeloop.testing.virtual_time import now

KEY = "ns/headroom"


class LeaseServer(FakeCluster):
    """`written` is every change: when, and by whom it is held from then on."""

    def __init__(self) -> None:
        super().__init__(LEASES)
        self.written: list[tuple[float, str]] = []

    @property
    def lease(self) -> Lease:
        lease = self.get(LEASES, KEY)
        assert lease is not None
        return lease

    def set(self, spec: LeaseSpec) -> None:
        """Another client writes the Lease."""
        self.put(LEASES, {"metadata": {"name": "headroom", "namespace": "ns"}, "spec": msgspec.to_builtins(spec)})

    def store(self, resource: Resource[Any], key: str, old: Any, new: Any) -> Any:
        self.written.append((now(), new["spec"].get("holderIdentity", "") if new else "deleted"))
        return super().store(resource, key, old, new)


class Link(FakeTransport):
    """`answers_lost`: writes arrive, their answers do not."""

    def __init__(self, server: LeaseServer) -> None:
        super().__init__(server)
        self.cut = False
        self.hangs = False
        self.answers_lost = False
        self.watches = True
        self.delay = 0.0
        self.error: ApiError | None = None
        self.gets: list[float] = []

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        if method == "GET":
            self.gets.append(now())
        await asyncio.sleep(self.delay)
        if self.hangs:
            await asyncio.Event().wait()
        if self.cut:
            raise Unreachable("cut off")
        if self.error is not None:
            raise self.error
        answer = await super().request(method, path, **options)
        if self.answers_lost and method != "GET":
            raise Unreachable("the answer was lost")
        return answer

    @asynccontextmanager
    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.cut or not self.watches:
            raise Unreachable("cut off")
        async with super().stream(*args, **options) as lines:
            yield self._delivered(lines)

    async def _delivered(self, lines: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for line in lines:
            if not self.cut:
                yield line
