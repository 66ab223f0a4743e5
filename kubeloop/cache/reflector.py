"""Keeps a store equal to the server: list, then watch, and again when either ends."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from kubeloop.api.meta import Object, ObjectMeta, Status
from kubeloop.cache.lister_watcher import ListerWatcher, bring, note
from kubeloop.cache.processor import SharedProcessor
from kubeloop.cache.recovery import (
    KEEPS_POSITION,
    SLOW_IN_A_ROW,
    Attempt,
    Backoff,
    Health,
    InitialEventsNeverEnded,
    Next,
    Recovery,
    ReflectorOptions,
    Silent,
)
from kubeloop.client.decode import WatchEvent
from kubeloop.client.errors import STATUS_404, ApiError, Gone, NotInstalled, ServerError, Unreachable, error_from_status

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


class Reflector(Generic[T]):
    """client-go's Reflector. `run` continues until it is cancelled, whatever the server does.

    `installed` is False from when the server's discovery says that it does not know the kind until a list comes
    through. Times are those of the running loop.
    """

    def __init__(
        self,
        client: ListerWatcher[T],
        sink: SharedProcessor[T],
        *,
        options: ReflectorOptions | None = None,
        rand: random.Random | None = None,
    ) -> None:
        self.kind = client.resource.plural
        self.last_sync_resource_version = ""
        self.installed = True
        self._client = client
        self._sink = sink
        self._options = options or ReflectorOptions()
        self._rand = rand or random.Random()
        self._recovery = Recovery(self._options, self._rand)
        self.health = Health(self.kind, self._options)
        self._watch_list = self._options.watch_list
        self._slow_watch_lists = 0
        self._wake = asyncio.Event()
        self._resumable = False  # a watch can start at last_sync_resource_version: the store is like the server then
        self._silent = False  # the last watch brought nothing for too long: watches are probed before the next
        # Something did not decode: the next watch does not go on, the kind is listed again.
        self._incomplete = False
        second_look, longest = self._options.second_look, 2 * self._options.min_watch_timeout
        self._second_looks = Backoff(second_look, longest, self._rand)
        # Of the watch that runs.
        self._opened_at: float | None = None
        self._events = 0
        self._silence_limit = 0.0
        self._silence = self._end = asyncio.Timeout(None)

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        self.health.started(self._now())
        try:
            while True:
                await self._pause(await self._attempted())
        finally:
            self.health.watch_works()

    async def _attempted(self) -> float:
        """Makes one attempt; returns how long to wait before the next."""
        self._opened_at, self._events = None, 0
        try:
            await self.list_and_watch()
            following = self._recovery.after_end(self._attempt())
        except Exception as err:
            following = self._failed(err)
        self._resumable = self._resumable and following.resume and not self._incomplete
        return following.delay

    async def list_and_watch(self) -> None:
        """Lists, unless the last watch can be resumed, then watches until the server ends the watch.

        Raises ApiError, NotInstalled where discovery confirms that the server does not know the kind."""
        if not self.installed and not await self._client.is_served():
            raise NotInstalled(f"{self.kind} is not installed")
        try:
            await self._list_and_watch()
        except STATUS_404 as err:
            # A proxy or a server that is starting answers 404 too: only a list of what is served tells.
            if await self._client.is_served():
                raise
            raise NotInstalled(str(err)) from err

    async def _list_and_watch(self) -> None:
        brings = await self._watches_bring() if self._resumable and self._silent else True
        self._resumable = self._resumable and brings is True
        lists_alone = brings is False or self.health.silent
        if not self._resumable and self._watch_list and not lists_alone and await self._watch_listed():
            return
        if not self._resumable:
            self._synced(*await self._listed())
            if self._silent and self._sink.any_object() is not None:  # a WatchList that brought nothing
                brings = await self._watches_bring()
            if brings is False:  # and the server answers
                self.health.watch_is_silent(self._now())
        await self._watch()

    def retry_now(self) -> None:
        """Ends the pause before the next attempt."""
        self._recovery.woken()
        self._wake.set()

    # -- one list -----------------------------------------------------------------------------------------------------

    async def _listed(self) -> tuple[dict[str, T], dict[str, ObjectMeta], str]:
        """Every object by key, those that don't decode, and the resourceVersion to watch from: a consistent read.

        No resourceVersion is sent: kube-apiserver 1.31 and later serve a consistent list from their watch cache; "0"
        may go back in time and would save nothing. Pages of an idle kind cost the server two to four times the CPU of a
        list in one piece (1.34): hence a WatchList comes first. An expired continue token leads to one without pages.
        """
        try:
            return await self._pages(self._options.page_size)
        except Gone as err:
            log.info("%s: the continue token expired, listing without pages: %s", self.kind, err)
            return await self._pages(0)

    async def _pages(self, size: int) -> tuple[dict[str, T], dict[str, ObjectMeta], str]:
        # Only what has begun is worth the transport's retries.
        page = await self._client.list_page(limit=size, retry=False)
        # The first page's version: whatever changed while the later pages came is seen by the watch that starts here.
        resource_version = page.metadata.resource_version
        if not resource_version:
            raise ServerError("the list has no resourceVersion")
        items: dict[str, T] = {}
        undecodable: dict[str, ObjectMeta] = {}
        while True:
            for obj in page.items:
                self._note("ADDED", obj, items, undecodable)
            undecodable.update((Object(metadata=meta).key, meta) for meta in page.undecodable)
            if not page.metadata.continue_:
                return items, undecodable, resource_version
            page = await self._client.list_page(limit=size, continue_=page.metadata.continue_)

    def _synced(self, items: dict[str, T], undecodable: dict[str, ObjectMeta], resource_version: str) -> None:
        """A whole list was received."""
        self._sink.replaced(items, undecodable)
        self._incomplete = bool(undecodable)
        if not undecodable:
            self._second_looks.reset()
        self.last_sync_resource_version = resource_version
        self._resumable = True
        if not self.installed:
            log.info("%s: installed now", self.kind)
        self.installed = True
        self.health.heard(self._now())

    async def _watches_bring(self) -> bool | None:
        """Reports whether watches bring what there is, after one that was silent; if not, lists have to. None when
        the probe itself fails."""
        sample, limit = self._sink.any_object(), self._options.probe_limit
        try:
            brings = await bring(self._client, sample, limit, watch_list=self._watch_list)
        except ApiError as err:
            log.info("%s: whether watches bring anything is not known, listing again: %s", self.kind, err)
            return None
        finally:
            self._silent = False
        if brings:
            self.health.watch_works()
            self.health.heard(self._now())
        return brings

    # -- one watch ----------------------------------------------------------------------------------------------------

    async def _watch_listed(self) -> bool:
        """A WatchList and the watch that it turns into; False when the server has to be asked for a list."""
        try:
            await self._watch(send_initial_events=True)
        except (ApiError, InitialEventsNeverEnded) as err:
            # Once it is synced this is a watch like any other. Other errors a list would meet as well.
            if self._resumable or isinstance(err, (*KEEPS_POSITION, Gone)):
                raise
            if not isinstance(err, ApiError):
                self._slow_watch_lists += 1
                self._watch_list = self._slow_watch_lists < SLOW_IN_A_ROW
            elif 400 <= err.status < 500:
                self._watch_list = False
            log.info("%s: WatchList is not supported, listing instead: %s", self.kind, err)
            return False
        return True

    async def _watch(self, *, send_initial_events: bool = False) -> None:
        options = self._options
        lasts = options.min_watch_timeout * (1 + self._rand.random())
        self._silence_limit = options.initial_silence_limit if send_initial_events else options.opening_limit
        self._end = asyncio.timeout(lasts + options.watch_grace)
        self._silence = asyncio.timeout(self._silence_limit)
        try:
            async with (
                self._end,
                self._silence,
                self._client.watch(
                    resource_version="" if send_initial_events else self.last_sync_resource_version,
                    timeout_seconds=max(1, round(lasts)),
                    send_initial_events=send_initial_events,
                    # The transport's own limit is only the second line: this side knows what silence is normal.
                    read_timeout=2 * options.silence_limit,
                ) as events,
            ):
                self._opened_at = self._now()
                self._heard()
                if send_initial_events:
                    await self._initial_events(events)
                self._silence_limit = options.silence_limit
                self._heard()
                if self._incomplete:
                    self._end_early()
                await self._follow(events)
        except TimeoutError as err:
            if self._incomplete and self._end.expired():
                return  # a second look
            listing = send_initial_events and not self._resumable
            self._silent = self._silence.expired()
            raise (InitialEventsNeverEnded if listing else Silent)(f"no data for {self._silence_limit:g} s") from err

    async def _initial_events(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        """Collects the WatchList's initial events up to the bookmark that ends them (changes made meanwhile may stand
        among them), then replaces the store."""
        items: dict[str, T] = {}
        undecodable: dict[str, ObjectMeta] = {}
        async for event in events:
            self._heard()
            obj, meta = event.object, event.undecodable
            if event.type == "ERROR":
                raise error_from_status(event.status or Status())
            if event.initial_events_end:
                self._slow_watch_lists = 0
                self._synced(items, undecodable, event.resource_version)
                return
            if obj is not None:
                self._note(event.type, obj, items, undecodable)
            elif meta is not None:
                note(event.type, Object(metadata=meta).key, meta, undecodable, items)
        raise Unreachable("the watch ended within its initial events")

    def _note(self, change: str, obj: T, items: dict[str, T], undecodable: dict[str, ObjectMeta]) -> None:
        """An object of a whole list, as it will be stored: as they came they may be several times as large."""
        stored = self._sink.transformed(obj)
        if stored is None:
            note(change, obj.key, obj.metadata, undecodable, items)
        else:
            note(change, obj.key, stored, items, undecodable)

    async def _follow(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            self._heard()
            if event.type == "ERROR":
                raise error_from_status(event.status or Status())
            self._pass_on(event)
            if event.undecodable is not None and not self._incomplete:
                self._incomplete = True
                self._end_early()
            if event.resource_version:
                self.last_sync_resource_version = event.resource_version
            self._events += 1
            self.health.recovered()
            self.health.watch_works()

    def _pass_on(self, event: WatchEvent[T]) -> None:
        obj = event.object
        if event.type == "DELETED":
            meta = event.undecodable if obj is None else obj.metadata
            if meta is not None:
                self._sink.deleted(meta, obj)
        elif obj is not None and event.type in ("ADDED", "MODIFIED"):
            self._sink.changed(obj)
        elif event.undecodable is not None:
            self._sink.undecodable.add(Object(metadata=event.undecodable).key)

    def _end_early(self) -> None:
        """Ends the watch for a second look at what did not decode."""
        when = self._now() + self._second_looks.next()
        if not self._end.expired():
            self._end.reschedule(min(when, self._end.when() or when))

    def _heard(self) -> None:
        """A sign of life: moves the silence limit. Not at every event: a timer each would cost more than decoding."""
        now, limit = self._now(), self._silence_limit
        self.health.heard(now)
        until = self._silence.when()
        if until is not None and abs(now + limit - until) > limit / 16 and not self._silence.expired():
            self._silence.reschedule(now + limit)

    # -- what follows -------------------------------------------------------------------------------------------------

    def _failed(self, err: Exception) -> Next:
        following = self._recovery.after_failure(self._attempt(), err)
        if isinstance(err, NotInstalled):
            self._not_installed(err)
        elif isinstance(err, ApiError):
            self.health.failed(err)
        else:
            log.exception("%s: list and watch failed", self.kind)
        return following

    def _not_installed(self, err: NotInstalled) -> None:
        self.health.heard(self._now())
        self.health.recovered()
        if self.installed:
            log.info("%s: not installed, waiting for it: %s", self.kind, err)
        self.installed = False
        self.last_sync_resource_version = ""
        self._sink.not_installed()

    def _attempt(self) -> Attempt:
        """What came of the attempt that just ended."""
        lasted = 0.0 if self._opened_at is None else self._now() - self._opened_at
        if lasted >= self._options.healthy_after:
            self.health.recovered()
        return Attempt(self._opened_at is not None, lasted, self._events)

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
