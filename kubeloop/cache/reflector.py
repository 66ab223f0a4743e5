"""Keeps a store equal to the server: list, then watch, and again when either ends."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from kubeloop.api.meta import Object, is_older
from kubeloop.cache import recovery
from kubeloop.cache.lister_watcher import ListerWatcher, Listing, bring, read_list
from kubeloop.cache.processor import SharedProcessor
from kubeloop.cache.recovery import Attempt, Health, Next, Recovery, ReflectorOptions
from kubeloop.client.decode import WatchEvent
from kubeloop.client.errors import STATUS_404, ApiError, Forbidden, Gone, NotInstalled, Unreachable

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Object)


class Reflector(Generic[T]):
    """client-go's Reflector. `run` continues until it is cancelled, whatever the server does. `installed` is False from
    when the server's discovery says that it does not know the kind until a list comes through."""

    def __init__(
        self, client: ListerWatcher[T], sink: SharedProcessor[T], *, options: ReflectorOptions | None = None
    ) -> None:
        self.kind = client.resource.plural
        self.last_sync_resource_version = ""
        self.installed = True
        self._client = client
        self._sink = sink
        self._options = options or ReflectorOptions()
        self._rand = random.Random()
        self._recovery = Recovery(self._options, self._rand)
        self.health = Health(self.kind, self._options)
        self._watch_list = self._options.watch_list
        self._slow_watch_lists = 0
        self._wake = asyncio.Event()
        self._resumable = False  # a watch can start at last_sync_resource_version: the store is like the server then
        self._silent = False  # the last watch brought nothing for too long: watches are probed before the next
        self._incomplete = False  # something did not decode, perhaps by a proxy's fault: the kind is listed again
        self._polls = False
        # Of the watch that runs.
        self._opened_at: float | None = None
        self._events = 0
        self._silence_limit = 0.0
        self._silence = asyncio.Timeout(None)

    async def run(self) -> None:
        self.health.last_heard = self._now()
        try:
            while True:
                self._opened_at, self._events = None, 0
                try:
                    await self.list_and_watch()
                    following = self._recovery.after_end(self._attempt())
                except Exception as err:
                    following = self._failed(err)
                self._resumable = self._resumable and following.resume and not self._incomplete
                await self._pause(following.delay)
        finally:
            self.health.watch_works()

    async def list_and_watch(self) -> None:
        """Lists, unless the last watch can be resumed, then watches. Raises ApiError, NotInstalled (by discovery)."""
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
        refused: ApiError | None = None
        brings = await self._watches_bring() if self._resumable and self._silent else True
        self._resumable = self._resumable and brings is True
        resumed, lists_alone = self._resumable, brings is False or self.health.silent_since is not None
        try:
            if not resumed and self._watch_list and not lists_alone and await self._try_watch_list():
                return
        except Forbidden as err:
            refused = self._refusal_of(err)
        if not resumed:
            try:
                await self._mark_synced(await self._list())
            except ApiError as err:
                raise refused or err from None
            if self._silent and self._sink.newest_object() is not None:  # a WatchList that brought nothing
                brings = await self._watches_bring()
            if brings is False:  # and the server answers
                self.health.watch_is_silent(self._now())
        try:
            if refused is None and self.last_sync_resource_version:
                await self._watch()
                return
        except ApiError as err:
            refused = self._refusal_of(err)
            if resumed:
                self._resumable = False
                raise
        await self._poll(refused or "its lists have no resourceVersion to watch from")

    def _refusal_of(self, err: ApiError) -> ApiError:
        """The error of a watch that was refused at once; raises others."""
        if self._opened_at is not None or err.status not in (403, 405):
            raise err
        return err

    async def _poll(self, reason: object) -> None:
        """Waits for the next list of a kind that cannot be watched (metrics.k8s.io), or may not be."""
        if not self._polls:
            log.warning("%s: listed every %g s instead of watched: %s", self.kind, self._options.list_poll, reason)
        self._polls, self._resumable = True, False
        self.health.recovered()
        await self._pause(self._options.list_poll)

    def retry_now(self) -> None:
        self._recovery.woken()
        self._wake.set()

    async def _list(self) -> Listing[T]:
        """A consistent read of the kind, without pages where the continue token expired. No resourceVersion is sent:
        kube-apiserver 1.31 and later serve a consistent list from their watch cache; "0" may go back in time. Pages of
        an idle kind cost the server two to four times the CPU of one list (1.34): a WatchList comes first."""
        try:
            return await read_list(self._client, self._sink.listing(), self._options.page_size, self._sink.transform)
        except Gone as err:
            log.info("%s: the continue token expired, listing without pages: %s", self.kind, err)
            return await read_list(self._client, self._sink.listing(), 0, self._sink.transform)

    async def _mark_synced(self, listing: Listing[T]) -> None:
        with contextlib.closing(self._sink.replaced(listing)) as steps:
            for _ in steps:
                await asyncio.sleep(0)
        self._incomplete = bool(listing.undecodable)
        self.last_sync_resource_version = listing.resource_version
        self._resumable = True
        if not self.installed:
            log.info("%s: installed now", self.kind)
        self.installed = True
        self.health.last_heard = self._now()

    async def _watches_bring(self) -> bool | None:
        """Reports whether watches bring what there is; None when the probe itself fails, or etcd was restored."""
        sample, limit = self._sink.newest_object(), self._options.probe_limit
        version = self.last_sync_resource_version
        try:
            brings = await bring(self._client, sample, limit, seen_version=version, watch_list=self._watch_list)
        except ApiError as err:
            log.info("%s: whether watches bring anything is not known, listing again: %s", self.kind, err)
            return None
        finally:
            self._silent = False
        if brings:
            self.health.watch_works()
            self.health.last_heard = self._now()
        elif brings is None:
            log.warning("%s: the server's objects are older than before (etcd restored?): listing again", self.kind)
        return brings

    async def _try_watch_list(self) -> bool:
        """A WatchList and the watch that it turns into; False when the server has to be asked for a list."""
        try:
            await self._watch(send_initial_events=True)
        except (ApiError, recovery.InitialEventsNeverEnded) as err:
            # Once it is synced this is a watch like any other. Other errors a list would meet as well.
            if self._resumable or isinstance(err, (*recovery.KEEPS_POSITION, Gone)):
                raise
            if not isinstance(err, ApiError):
                self._slow_watch_lists += 1
                self._watch_list = self._slow_watch_lists < recovery.SLOW_IN_A_ROW
            elif 400 <= err.status < 500:
                self._watch_list = False
            log.info("%s: WatchList is not supported, listing instead: %s", self.kind, err)
            return False
        return True

    async def _watch(self, *, send_initial_events: bool = False) -> None:
        options = self._options
        lasts = options.min_watch_timeout * (1 + self._rand.random())
        self._silence_limit = options.initial_silence_limit if send_initial_events else options.opening_limit
        self._silence = asyncio.timeout(self._silence_limit)
        try:
            async with (
                asyncio.timeout(lasts + options.watch_grace),
                self._silence,
                self._client.watch(
                    resource_version="" if send_initial_events else self.last_sync_resource_version,
                    timeout_seconds=max(1, round(lasts)),
                    send_initial_events=send_initial_events,
                    # The transport's own limit is only the second line: this side knows what silence is normal.
                    read_timeout=2 * options.silence_limit,
                    transform=self._sink.transform,
                ) as events,
            ):
                self._opened_at, self._polls = self._now(), False
                self._note_life()
                if send_initial_events:
                    initial = self._sink.listing()
                    await initial.collect(events, self._note_life)
                    self._slow_watch_lists = 0
                    await self._mark_synced(initial)
                self._silence_limit = options.silence_limit
                self._note_life()
                await self._follow(events)
        except TimeoutError as err:
            self._silent = self._silence.expired()
            is_initial = send_initial_events and not self._resumable
            error = recovery.InitialEventsNeverEnded if is_initial else recovery.Silent
            raise error(f"no data for {self._silence_limit:g} s") from err

    async def _follow(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            self._note_life()
            last_version = self.last_sync_resource_version
            if is_older(event.resource_version, last_version):  # etcd was restored, the store may be wrong
                raise Gone(f"the server's resourceVersion went back from {last_version} to {event.resource_version}")
            self.last_sync_resource_version = event.resource_version or last_version
            obj = event.object
            meta = event.undecodable if obj is None else obj.metadata
            if meta is not None and event.type == "DELETED":
                self._sink.deleted(meta, obj)
            elif obj is not None and event.type in ("ADDED", "MODIFIED"):
                self._sink.changed(obj)
            elif obj is None and meta is not None:
                self._sink.not_decoded(meta)
            self._incomplete = self._incomplete or event.undecodable is not None
            self._events += 1
            self.health.recovered()
            self.health.watch_works()

    def _note_life(self) -> None:
        """A sign of life: moves the silence limit. Not at every event: a timer each would cost more than decoding."""
        now, limit = self._now(), self._silence_limit
        self.health.last_heard = now
        until = self._silence.when()
        if until is not None and abs(now + limit - until) > limit / 16 and not self._silence.expired():
            self._silence.reschedule(now + limit)

    def _failed(self, err: Exception) -> Next:
        attempt = self._attempt()
        following = self._recovery.after_failure(attempt, err)
        if isinstance(err, NotInstalled):
            self.health.last_heard = self._now()
            self.health.recovered()
            if self.installed:
                log.info("%s: not installed, waiting for it: %s", self.kind, err)
            self.installed = False
            self.last_sync_resource_version = ""
            self._sink.not_installed()
        elif isinstance(err, ApiError):
            cut = isinstance(err, Unreachable) and attempt.lasted >= self._options.healthy_after
            self.health.failed(err, cut=cut)
        else:
            log.exception("%s: list and watch failed", self.kind)
        return following

    def _attempt(self) -> Attempt:
        lasted = 0.0 if self._opened_at is None else self._now() - self._opened_at
        if lasted >= self._options.healthy_after:
            self.health.recovered()
        return Attempt(self._opened_at is not None, lasted, self._events)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
