"""ListerWatcher: what lists and watches a kind, and the probe of whether its watches bring anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from kubeloop.api.meta import Object, ObjectMeta, Status
from kubeloop.api.registry import Resource
from kubeloop.client.decode import ListPage, WatchEvent
from kubeloop.client.errors import error_from_status

T = TypeVar("T", bound=Object)
K = TypeVar("K")


class ListerWatcher(Protocol[T]):
    """The part of a ResourceClient that a reflector uses."""

    @property
    def resource(self) -> Resource[T]: ...

    async def is_served(self) -> bool: ...

    async def list_page(self, *, limit: int, continue_: str = "", retry: bool = True) -> ListPage[T]: ...

    def watch(
        self,
        *,
        resource_version: str,
        timeout_seconds: int,
        send_initial_events: bool = False,
        read_timeout: float = ...,
        only: ObjectMeta | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]: ...


async def bring(client: ListerWatcher[T], sample: T | None, limit: float, *, watch_list: bool) -> bool:
    """Reports whether the kind's watches bring what there is, within `limit` seconds.

    A watch of `sample`, an object of the store, from version 0 on brings it at once; one that is gone was missed, too.
    Of an empty store a WatchList says that there is none, or a list does. Raises ApiError.
    """
    if sample is not None:
        return await _first_event(client, limit, resource_version="0", only=sample.metadata) == "ADDED"
    if watch_list:
        return await _first_event(client, limit, resource_version="", send_initial_events=True) == "BOOKMARK"
    page = await client.list_page(limit=1, retry=False)
    return not (page.items or page.undecodable)


async def _first_event(client: ListerWatcher[T], limit: float, **options: Any) -> str:
    """Returns the type of the event that a watch brings first; "" when it brings nothing in time."""
    seconds = max(1, round(limit))
    try:
        async with (
            asyncio.timeout(limit),
            client.watch(timeout_seconds=seconds, read_timeout=2 * limit, **options) as events,
        ):
            async for event in events:
                if event.type == "ERROR":
                    raise error_from_status(event.status or Status())
                return event.type
    except TimeoutError:
        pass
    return ""


def note(change: str, key: str, known: K, notes: dict[str, K], others: dict[str, Any]) -> None:
    """Stores an object in one of the two."""
    if others:
        others.pop(key, None)
    if change == "DELETED":
        notes.pop(key, None)
    else:
        notes[key] = known
