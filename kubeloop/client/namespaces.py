"""Several namespaces as one: what an informer lists and watches where it may not, or need not, see all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

from kubeloop.api.meta import ListMeta, Object, ObjectMeta, is_older
from kubeloop.client.decode import ListPage, WatchEvent
from kubeloop.client.errors import Gone
from kubeloop.client.resource_reader import Selection

T = TypeVar("T", bound=Object)

_AHEAD = 100
"""Events of all namespaces that are decoded before the ones before them are handled."""


class Namespaces(Generic[T]):
    """A ListerWatcher over a list and a watch for each part, one a namespace.

    Its resourceVersion is that of every part, joined by commas: an event of one says nothing about how far another is.
    When one watch ends, all end, and go on from there."""

    def __init__(self, parts: Sequence[Selection[T]]) -> None:
        if not parts:
            raise ValueError("name at least one namespace")
        self.resource = parts[0].resource
        self._parts = parts

    async def is_served(self) -> bool:
        return await self._parts[0].is_served()

    async def list_page(self, *, limit: int, continue_: str = "", **options: Any) -> ListPage[T]:
        """Returns everything in one page: `limit` is ignored."""
        pages = [await part.list_page(limit=0, **options) for part in self._parts]
        return ListPage(
            [obj for page in pages for obj in page.items],
            ListMeta(resource_version=_join_versions([page.metadata.resource_version for page in pages])),
            [meta for page in pages for meta in page.undecodable],
        )

    @contextlib.asynccontextmanager
    async def watch(
        self, *, resource_version: str, only: ObjectMeta | None = None, **options: Any
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        if only is not None:
            async with self._parts[0].watch(resource_version=resource_version, only=only, **options) as events:
                yield events
            return
        versions = resource_version.split(",") if resource_version else [""] * len(self._parts)
        queue: asyncio.Queue[tuple[int, WatchEvent[T] | Exception | None]] = asyncio.Queue(_AHEAD)
        async with contextlib.AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(part.watch(resource_version=version, **options))
                for part, version in zip(self._parts, versions, strict=True)
            ]
            readers = [asyncio.create_task(_read(number, stream, queue)) for number, stream in enumerate(streams)]
            try:
                yield _merge(queue, versions)
            finally:
                for reader in readers:
                    reader.cancel()
                await asyncio.gather(*readers, return_exceptions=True)


async def _read(number: int, stream: AsyncIterator[WatchEvent[T]], queue: asyncio.Queue[tuple[int, Any]]) -> None:
    """The events of one watch; None where it ended."""
    try:
        async for event in stream:
            await queue.put((number, event))
        await queue.put((number, None))
    except Exception as error:
        await queue.put((number, error))


async def _merge(queue: asyncio.Queue[tuple[int, Any]], versions: list[str]) -> AsyncGenerator[WatchEvent[T], None]:
    """The events of all, until one ends; the initial events have ended where they have in each. Raises Gone where a
    version goes back: etcd was restored."""
    unfinished, is_resumed = set(range(len(versions))), versions[0] != ""
    while (item := await queue.get())[1] is not None:
        number, event = item
        if isinstance(event, Exception):
            raise event
        if (is_resumed or number not in unfinished) and is_older(event.resource_version, versions[number]):
            raise Gone(f"the server's resourceVersion went back from {versions[number]} to {event.resource_version}")
        versions[number] = event.resource_version or versions[number]
        event.resource_version = _join_versions(versions)
        if event.initial_events_end:
            unfinished.discard(number)
            event.initial_events_end = not unfinished
        yield event


def _join_versions(versions: Sequence[str]) -> str:
    """Returns the versions in one text, "" unless each is known."""
    return ",".join(versions) if all(versions) else ""
