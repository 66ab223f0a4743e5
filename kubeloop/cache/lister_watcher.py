"""Lists and watches of a kind, or of several namespaces of it; the probe of whether its watches bring anything."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar

from kubeloop.api.meta import ListMeta, Object, ObjectMeta, as_number, is_older
from kubeloop.cache.store import STEP, Indexer, is_version
from kubeloop.client.decode import ListPage, WatchEvent
from kubeloop.client.errors import Gone, ServerError, Unreachable
from kubeloop.client.resource_reader import ResourceReader

T = TypeVar("T", bound=Object)


async def bring(
    client: "ListerWatcher[T]", sample: T | None, limit: float, *, seen_version: str, watch_list: bool
) -> bool | None:
    """Reports whether the kind's watches bring what there is, within `limit` seconds: a WatchList brings `sample`, an
    object of the store, at once, or a watch from version 0 where there are none; one that is gone was missed. Of an
    empty store a WatchList says that there is none, or a list does. None where the sample is older there, or the kind
    is at a version before `seen_version`, to which the last watch came: etcd was restored. Raises ApiError."""
    only = None if sample is None else sample.metadata
    first_event, version, is_there = None, "", False
    if watch_list:
        options = {"resource_version": "", "send_initial_events": True}
        first_event, version = await _read_first_event(client, limit, only=only, **options)
    else:
        if only is not None:
            first_event, _ = await _read_first_event(client, limit, resource_version="0", only=only)
        if only is None or "," not in seen_version:  # a list of several namespaces is whole, whatever its limit
            page = await client.list_page(limit=1, retry=False)
            version, is_there = page.metadata.resource_version, bool(page.items or page.undecodable)
    latest = max(seen_version.split(","), key=as_number)  # of several namespaces: each knows the kind's version
    if is_older(version, latest):
        return None
    if only is None:
        return first_event is None and not is_there and (version != "" or not watch_list)
    if first_event is not None and is_older(first_event.resource_version, only.resource_version):
        return None
    return first_event is not None


async def _read_first_event(
    client: "ListerWatcher[T]", limit: float, **options: Any
) -> tuple[WatchEvent[T] | None, str]:
    """Returns the first object that a watch brings, and the version at which its initial events end; or None, ""."""
    first_event, watch = None, client.watch(timeout_seconds=max(1, round(limit)), read_timeout=2 * limit, **options)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit), watch as events:
            async for event in events:
                if event.initial_events_end:
                    return first_event, event.resource_version
                first_event = first_event or (event if event.type == "ADDED" else None)
                if first_event is not None and "send_initial_events" not in options:
                    break
    return first_event, ""


class Listing(Generic[T]):
    """A whole list in the making: a store to take the current one's place, and what did not decode or transform."""

    def __init__(self, current: Indexer[T]) -> None:
        self.store = current.prepare()
        self.undecodable: dict[str, ObjectMeta] = {}
        self.resource_version = ""
        self._current = current

    def note(self, change: str, obj: T) -> None:
        """An object that is there, or a change of one. An object of the current store stays what readers have."""
        key = obj.key
        if self.undecodable:
            self.undecodable.pop(key, None)
        if change == "DELETED":
            self.store.delete_key(key)
        else:
            old = self._current.get_by_key(key)
            self.store.put(key, old if old is not None and is_version(old, obj.metadata) else obj)

    def note_undecodable(self, change: str, meta: ObjectMeta) -> None:
        """The same of one that does not decode."""
        key = Object(metadata=meta).key
        self.store.delete_key(key)
        self.undecodable.pop(key, None)
        if change != "DELETED":
            self.undecodable[key] = meta

    async def collect(self, events: AsyncIterator[WatchEvent[T]], heard: Callable[[], None]) -> None:
        """Notes a WatchList's initial events, changes made meanwhile among them; calls `heard` at each."""
        async for event in events:
            heard()
            if event.initial_events_end:
                self.resource_version = event.resource_version
                return
            if event.object is not None:
                self.note(event.type, event.object)
            elif event.undecodable is not None:
                self.note_undecodable(event.type, event.undecodable)
        raise Unreachable("the watch ended within its initial events")


async def read_list(
    client: "ListerWatcher[T]", listing: Listing[T], size: int, transform: Callable[[T], T | None] | None
) -> Listing[T]:
    """Returns the listing with every object, read in pages of `size` (0: in one). Raises ApiError."""
    # Only what has begun is worth the transport's retries.
    page = await client.list_page(limit=size, retry=False, transform=transform)
    # The first page's version: whatever changed while the later pages came is seen by the watch that starts here.
    listing.resource_version = page.metadata.resource_version
    if not listing.resource_version and not page.kind.endswith("List"):
        raise ServerError("the list has no resourceVersion")  # an aggregated API's has none, but its kind
    while True:
        for number, obj in enumerate(page.items, 1):
            listing.note("ADDED", obj)
            if number % STEP == 0:
                await asyncio.sleep(0)
        for meta in page.undecodable:
            listing.note_undecodable("ADDED", meta)
        if not page.metadata.continue_:
            return listing
        page = await client.list_page(limit=size, continue_=page.metadata.continue_, transform=transform)


_AHEAD = 100
"""Events of all namespaces that are decoded before the ones before them are handled."""


class Namespaces(Generic[T]):
    """A list and a watch for each part, one a namespace. Its resourceVersion is those of all, joined: an event of one
    says nothing about how far another is. When one watch ends, all end, and go on from there."""

    def __init__(self, parts: Sequence[ResourceReader[T]]) -> None:
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
    """The events of one watch, and then None, or the error that ended it."""
    try:
        async for event in stream:
            await queue.put((number, event))
        await queue.put((number, None))
    except Exception as error:
        await queue.put((number, error))


async def _merge(queue: asyncio.Queue[tuple[int, Any]], versions: list[str]) -> AsyncGenerator[WatchEvent[T], None]:
    """The events of all, until one ends. Raises Gone where a version goes back: etcd was restored."""
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


ListerWatcher = ResourceReader[T] | Namespaces[T]
"""What a reflector can list and watch."""
