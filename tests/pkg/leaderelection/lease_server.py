"""One Lease on an API server that can be cut off, be slow or refuse, as candidates of a test see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from pkg.api.coordination import Lease, LeaseSpec
from pkg.api.meta import ObjectMeta
from pkg.client.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from tests.virtual_time import now


class LeaseServer:
    """`written` is every change: when, and by whom it is held from then on."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.written: list[tuple[float, str]] = []
        self._version = 0
        self._watchers: list[asyncio.Queue[Lease]] = []

    def store(self, spec: LeaseSpec | None) -> Lease | None:
        """Another client writes the Lease, or deletes it."""
        self._version += 1
        self.lease = None if spec is None else Lease(
            metadata=ObjectMeta(name="headroom", namespace="ns", resource_version=str(self._version)), spec=spec
        )  # fmt: skip
        self.written.append((now(), (spec.holder_identity or "") if spec else "deleted"))
        for queue in self._watchers:
            if self.lease is not None:
                queue.put_nowait(self.lease)
        return self.lease

    async def events(self) -> AsyncGenerator[Lease, None]:
        queue: asyncio.Queue[Lease] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            if self.lease is not None:
                yield self.lease
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(queue)


class Link:
    """A candidate's way to the server, as LeaseLock is one. `answers_lost`: writes arrive, their answers do not."""

    def __init__(self, server: LeaseServer, identity: str) -> None:
        self.server = server
        self.identity = identity
        self.cut = False
        self.hangs = False
        self.answers_lost = False
        self.watches = True
        self.delay = 0.0
        self.error: ApiError | None = None
        self.gets: list[float] = []
        self.writes: list[float] = []

    def __str__(self) -> str:
        return "ns/headroom"

    async def get(self) -> Lease:
        self.gets.append(now())
        await self._travel()
        if self.server.lease is None:
            raise NotFound("no such lease", status=404)
        return self.server.lease

    async def create(self, spec: LeaseSpec) -> Lease:
        self.writes.append(now())
        await self._travel()
        if self.server.lease is not None:
            raise AlreadyExists("it is there", status=409)
        return self._answer(spec)

    async def update(self, spec: LeaseSpec, resource_version: str) -> Lease:
        self.writes.append(now())
        await self._travel()
        if self.server.lease is None:
            raise NotFound("no such lease", status=404)
        if self.server.lease.metadata.resource_version != resource_version:
            raise Conflict("it was changed", status=409)
        return self._answer(spec)

    async def watch(self) -> AsyncGenerator[Lease, None]:
        if self.cut or not self.watches:
            raise Unreachable("cut off")
        async for lease in self.server.events():
            if not self.cut:
                yield lease

    def _answer(self, spec: LeaseSpec) -> Lease:
        stored = self.server.store(spec)
        if self.answers_lost:
            raise Unreachable("the answer was lost")
        assert stored is not None
        return stored

    async def _travel(self) -> None:
        await asyncio.sleep(self.delay)
        if self.hangs:
            await asyncio.Event().wait()
        if self.cut:
            raise Unreachable("cut off")
        if self.error is not None:
            raise self.error
