"""Makes a store like the server and keeps it so: list, then watch, and again when either ends."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

from pkg.api.meta import Object, Status
from pkg.cache.health import Health, Silent
from pkg.cache.lister import ListerWatcher, list_all
from pkg.cache.options import ReflectorOptions
from pkg.cache.recovery import KEEPS_POSITION, Attempt, Next, Recovery
from pkg.client.decode import WatchEvent
from pkg.client.errors import ApiError, Gone, NotFound, Unreachable, error_from_status

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


class Sink(Protocol[T]):
    """Where a reflector writes: an Indexer, or an informer. Sync; must not raise."""

    def add(self, obj: T) -> object: ...

    def update(self, obj: T) -> object: ...

    def delete(self, obj: T) -> object: ...

    def replace(self, items: list[T], resource_version: str) -> object: ...


class InitialEventsNeverEnded(Exception):
    """The server says nothing more, but not that the initial events are over: it does not know WatchList."""


class Reflector(Generic[T]):
    """client-go's Reflector. `run` goes on until it is cancelled, whatever the server does.

    The first list is a WatchList (one object at a time, never a whole page in memory), unless `watch_list` is false
    or the server refuses it: then pages of `page_size`. `on_missing` is called when the server does not know the kind;
    `installed` is False from then on until it does. Times are those of the running loop.
    """

    def __init__(
        self,
        client: ListerWatcher[T],
        sink: Sink[T],
        *,
        page_size: int = 500,
        watch_list: bool = True,
        options: ReflectorOptions | None = None,
        rand: random.Random | None = None,
        on_missing: Callable[[], object] | None = None,
    ) -> None:
        self.kind = client.resource.plural
        self.last_sync_resource_version = ""
        self.installed = True
        self._client = client
        self._sink = sink
        self._page_size = page_size
        self._watch_list = watch_list
        self._options = options or ReflectorOptions()
        self._rand = rand or random.Random()
        self._on_missing = on_missing
        self._recovery = Recovery(self._options, self._rand)
        # A watch that is still allowed to be silent is not stale, nor is the one that follows it.
        stale_after = max(self._options.stale_after, 2 * self._options.silence_limit)
        self._health = Health(self.kind, stale_after)
        self._wake = asyncio.Event()
        # The store is like the server was at last_sync_resource_version: a watch can start there.
        self._resumable = False
        # Something was listed since the kind was last found missing.
        self._filled = False
        self._opened: float | None = None
        self._events = 0

    async def run(self) -> None:
        """Lists and watches for ever."""
        self._health.started(self._now())
        while True:
            self._opened, self._events = None, 0
            try:
                await self.list_and_watch()
                following = self._recovery.after_end(self._finished())
            except Exception as err:
                following = self._failed(err)
            self._resumable = self._resumable and following.resume
            await self._pause(following.delay)

    async def list_and_watch(self) -> None:
        """Lists, unless the last watch can be resumed, then watches until the server ends the watch.

        Raises ApiError when either fails.
        """
        if not self._resumable and self._watch_list and await self._watch_listed():
            return
        if not self._resumable:
            items, resource_version = await list_all(self._client, self._page_size)
            self._synced(items, resource_version)
        await self._watch()

    def healthy(self, now: float) -> bool:
        """Whether there was a sign of life lately; `now` is the loop's time()."""
        return not self._health.problems(now)

    def problems(self, now: float) -> list[str]:
        """`healthy` in words."""
        return self._health.problems(now)

    def retry_now(self) -> None:
        """Ends the pause before the next attempt."""
        self._recovery.woken()
        self._wake.set()

    # -- one watch ----------------------------------------------------------------------------------------------------

    async def _watch_listed(self) -> bool:
        """A WatchList and the watch that it turns into; False when the server has to be asked for a list."""
        try:
            await self._watch(send_initial_events=True)
        except (ApiError, InitialEventsNeverEnded) as err:
            # Once it is synced this is a watch like any other. Other errors a list would meet as well.
            if self._resumable or isinstance(err, (*KEEPS_POSITION, NotFound, Gone)):
                raise
            if not isinstance(err, ApiError) or 400 <= err.status < 500:
                self._watch_list = False
            log.info("%s: no WatchList, listing instead: %s", self.kind, err)
            return False
        return True

    async def _watch(self, *, send_initial_events: bool = False) -> None:
        options = self._options
        lasts = options.min_watch_timeout * (1 + self._rand.random())
        limit = options.initial_silence_limit if send_initial_events else options.silence_limit
        try:
            async with (
                asyncio.timeout(lasts + options.watch_grace),
                asyncio.timeout(limit) as silence,
                self._client.watch(
                    resource_version="" if send_initial_events else self.last_sync_resource_version,
                    timeout_seconds=max(1, round(lasts)),
                    send_initial_events=send_initial_events,
                    # The transport's own limit is only the second line: this side knows what silence is normal.
                    read_timeout=2 * options.silence_limit,
                ) as events,
            ):
                self._opened = self._now()
                self._heard(silence, limit)
                if send_initial_events:
                    await self._initial_events(events, silence, limit)
                    limit = options.silence_limit
                    self._heard(silence, limit)
                await self._follow(events, silence, limit)
        except TimeoutError as err:
            if send_initial_events and not self._resumable:
                raise InitialEventsNeverEnded(
                    f"no end of the initial events, silent for {limit:g} s"
                ) from err
            raise Silent(f"nothing heard for {limit:g} s") from err

    async def _initial_events(
        self, events: AsyncIterator[WatchEvent[T]], silence: asyncio.Timeout, limit: float
    ) -> None:
        """Collects the WatchList's initial events up to the bookmark that ends them, then replaces the store.

        Changes made meanwhile may stand among them, so this is a small store of its own.
        """
        collected: dict[str, T] = {}
        async for event in events:
            self._heard(silence, limit)
            obj = event.object
            if event.type == "ERROR":
                raise error_from_status(event.status or Status())
            if event.initial_events_end:
                self._synced(list(collected.values()), event.resource_version)
                return
            if obj is not None and event.type == "DELETED":
                collected.pop(obj.key, None)
            elif obj is not None:
                collected[obj.key] = obj
        raise Unreachable("the watch ended within its initial events")

    async def _follow(
        self, events: AsyncIterator[WatchEvent[T]], silence: asyncio.Timeout, limit: float
    ) -> None:
        writes = {"ADDED": self._sink.add, "MODIFIED": self._sink.update, "DELETED": self._sink.delete}
        async for event in events:
            self._heard(silence, limit)
            if event.type == "ERROR":
                raise error_from_status(event.status or Status())
            write = writes.get(event.type)
            if write is not None and event.object is not None:
                write(event.object)
            if event.resource_version:
                self.last_sync_resource_version = event.resource_version
            self._events += 1
            self._health.recovered()

    def _heard(self, silence: asyncio.Timeout, limit: float) -> None:
        """A sign of life: moves the silence limit. Not at every event: a timer each would cost more than decoding."""
        now = self._now()
        self._health.heard(now)
        until = silence.when()
        if until is not None and abs(now + limit - until) > limit / 16 and not silence.expired():
            silence.reschedule(now + limit)

    def _synced(self, items: list[T], resource_version: str) -> None:
        """A whole list is here."""
        self._sink.replace(items, resource_version)
        self.last_sync_resource_version = resource_version
        self._resumable = self._filled = True
        if not self.installed:
            log.info("%s: installed now", self.kind)
        self.installed = True
        self._recovery.listed()
        self._health.heard(self._now())

    # -- what follows -------------------------------------------------------------------------------------------------

    def _failed(self, err: Exception) -> Next:
        following = self._recovery.after_failure(self._finished(), err, filled=self._filled)
        if isinstance(err, NotFound):
            self._health.heard(self._now())
        elif isinstance(err, ApiError):
            self._health.failed(err)
        else:
            log.exception("%s: list and watch failed", self.kind)
        if following.missing:
            self._missing(err)
        return following

    def _missing(self, err: Exception) -> None:
        """The kind is not installed: what was there is gone."""
        if self._filled:
            self._filled = False
            self._sink.replace([], "")
        if self.installed:
            log.info("%s: not installed, waiting for it: %s", self.kind, err)
        self.installed = False
        self.last_sync_resource_version = ""
        if self._on_missing is not None:
            self._on_missing()

    def _finished(self) -> Attempt:
        """What came of the attempt that just ended."""
        lasted = 0.0 if self._opened is None else self._now() - self._opened
        if lasted >= self._options.healthy_after:
            self._health.recovered()
        return Attempt(self._opened is not None, lasted, self._events)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
