"""What a reflector needs of a client, and a whole list from it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.client.decode import ListPage, WatchEvent
from pkg.client.errors import Gone

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


class ListerWatcher(Protocol[T]):
    """The part of a ResourceClient that a reflector uses."""

    @property
    def resource(self) -> Resource[T]: ...

    async def list_page(
        self, namespace: str = "", *, limit: int, continue_: str = "", retry: bool = True
    ) -> ListPage[T]: ...

    def watch(
        self,
        namespace: str = "",
        *,
        resource_version: str,
        timeout_seconds: int,
        send_initial_events: bool = False,
        read_timeout: float = ...,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]: ...


async def list_all(client: ListerWatcher[T], page_size: int) -> tuple[list[T], str]:
    """Every object and the resourceVersion to watch from: a consistent read, page by page.

    No resourceVersion is sent: kube-apiserver 1.31 and later serve a consistent list from their watch cache, so that
    "0", which may go back in time, would save nothing. Pages were the cheapest in a fresh cluster (1.34), but some
    minutes later those of an idle kind cost the server two to four times the CPU of a list in one piece (presumably
    the cache no longer has their snapshot and etcd is read): hence a WatchList, whose cost is steady, comes first.
    A continue token that expires half-way leads to one request without pages, as client-go's pager does it: that
    always gets through. Raises what the client raises.
    """
    try:
        return await _pages(client, page_size)
    except Gone as err:
        log.info(
            "%s: the list's continue token expired, listing in one piece: %s", client.resource.plural, err
        )
        return await _pages(client, 0)


async def _pages(client: ListerWatcher[T], page_size: int) -> tuple[list[T], str]:
    # The reflector has a backoff of its own; only what has begun is worth the transport's retries.
    page = await client.list_page(limit=page_size, retry=False)
    items = page.items
    # The first page's version: whatever changed while the later pages came is seen by the watch that starts here.
    resource_version = page.metadata.resource_version
    while page.metadata.continue_:
        page = await client.list_page(limit=page_size, continue_=page.metadata.continue_)
        items.extend(page.items)
    return items, resource_version
