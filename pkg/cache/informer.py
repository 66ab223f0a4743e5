"""One list and one watch a kind, shared by all who want to know: client-go's SharedIndexInformer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from pkg.api.meta import Object
from pkg.cache.handlers import HandlerRegistration, ResourceEventHandler
from pkg.cache.lister import ListerWatcher
from pkg.cache.options import ReflectorOptions
from pkg.cache.reflector import Reflector
from pkg.cache.store import Indexer, IndexFunc

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


class SharedIndexInformer(Generic[T]):
    """Keeps `indexer` like the server and tells the handlers of every change.

    `resync_period` (seconds, 0: never) is the default of handlers that bring none: so often a handler gets
    `on_update(obj, obj)` for every object. `transform` sees every object before it is stored (to drop fields).
    """

    def __init__(
        self,
        client: ListerWatcher[T],
        *,
        resync_period: float = 0.0,
        transform: Callable[[T], T] | None = None,
        indexers: Mapping[str, IndexFunc[T]] | None = None,
        page_size: int = 500,
        watch_list: bool = True,
        options: ReflectorOptions | None = None,
    ) -> None:
        self.kind = client.resource.plural
        self.indexer: Indexer[T] = Indexer(indexers=indexers)
        self._resync_period = resync_period
        self._transform = transform
        self._handlers: list[HandlerRegistration[T]] = []
        self._listed = False
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._running = False
        self._reflector: Reflector[T] = Reflector(
            client,
            self,
            page_size=page_size,
            watch_list=watch_list,
            options=options,
            on_missing=self._ready.set,
        )

    @property
    def installed(self) -> bool:
        """False while the server does not know this kind (its CRD is missing)."""
        return self._reflector.installed

    @property
    def last_sync_resource_version(self) -> str:
        """The resourceVersion up to which the indexer is like the server; "" before the first list."""
        return self._reflector.last_sync_resource_version

    def has_synced(self) -> bool:
        """Whether every handler was told of the whole first list, or there is nothing to list: the kind is missing."""
        return self._listed or not self.installed

    async def wait_for_sync(self, timeout: float | None = None) -> bool:
        """Waits for `has_synced`; False when that took longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    def problems(self, now: float) -> list[str]:
        """What is wrong, in words: a watch without a sign of life, a task that ended. `now` is the loop's time()."""
        if self._task is not None and self._task.done():
            return [f"{self.kind}: the informer's task ended"]
        return self._reflector.problems(now)

    def retry_now(self) -> None:
        """Ends the wait for the next attempt: whoever knows that a CRD or the server came back says so here."""
        self._reflector.retry_now()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        self._running = True
        try:
            for registration in self._handlers:
                self._schedule_resync(registration)
            await self._reflector.run()
        finally:
            self._running = False
            for registration in self._handlers:
                registration.stop_resync()

    def start(self, tasks: asyncio.TaskGroup | None = None) -> None:
        """Runs as a task, in a group if one is given; a second call does nothing."""
        if self._task is None:
            create = tasks.create_task if tasks is not None else asyncio.create_task
            self._task = create(self.run(), name=f"informer {self.kind}")

    async def stop(self) -> None:
        """Ends the task that `start` made, and waits for its end. The indexer stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    # -- handlers -----------------------------------------------------------------------------------------------------

    def add_event_handler(
        self, handler: ResourceEventHandler[T], resync_period: float | None = None
    ) -> HandlerRegistration[T]:
        """Adds a handler; one that comes late is told of every object at once, as of an initial list."""
        period = self._resync_period if resync_period is None else resync_period
        registration = HandlerRegistration(handler, period, self.kind)
        self._handlers = [*self._handlers, registration]
        for obj in self.indexer.list():
            registration.add(obj, True)
        if self._listed:
            registration.mark_synced()
        if self._running:
            self._schedule_resync(registration)
        return registration

    def remove_event_handler(self, registration: HandlerRegistration[T]) -> None:
        """Takes a handler out; nothing is told to it any more."""
        registration.stop_resync()
        self._handlers = [other for other in self._handlers if other is not registration]

    def _schedule_resync(self, registration: HandlerRegistration[T]) -> None:
        if registration.resync_period > 0:
            registration.resync_timer = asyncio.get_running_loop().call_later(
                registration.resync_period, self._resync, registration
            )

    def _resync(self, registration: HandlerRegistration[T]) -> None:
        for obj in self.indexer.list():
            registration.update(obj, obj)
        self._schedule_resync(registration)

    # -- the reflector's sink -----------------------------------------------------------------------------------------

    def add(self, obj: T) -> None:
        """ADDED: an object that is known already is an update."""
        self._upsert(obj)

    def update(self, obj: T) -> None:
        """MODIFIED: an object that is not known yet (its ADDED was missed) is an addition."""
        self._upsert(obj)

    def delete(self, obj: T) -> None:
        """DELETED. Of an object that is not known, or of a predecessor of the same name: nothing to do."""
        key = self.indexer.key_of(obj)
        old = self.indexer.get_by_key(key)
        if old is None or _is_other(old, obj):
            return
        obj = self._transformed(obj)
        self.indexer.delete_key(key)
        for registration in self._handlers:
            registration.delete(obj, False)

    def replace(self, items: list[T], resource_version: str) -> None:
        """A list: what differs reaches the handlers, once the indexer holds the whole list.

        Objects that are gone are deletions whose final state is unknown.
        """
        initial = not self._listed
        changes: list[tuple[T | None, T]] = []
        listed: set[str] = set()
        for obj in items:
            key = self.indexer.key_of(obj)
            listed.add(key)
            if (change := self._store(key, obj)) is not None:
                changes.append(change)
        gone = [old for key in self.indexer.list_keys() if key not in listed for old in self._drop(key)]
        handlers = self._handlers
        for old, new in changes:
            self._tell(handlers, old, new, initial)
        for old in gone:
            for registration in handlers:
                registration.delete(old, True)
        self._listed = True
        for registration in self._handlers:
            registration.mark_synced()
        self._ready.set()

    def _upsert(self, obj: T) -> None:
        change = self._store(self.indexer.key_of(obj), obj)
        if change is not None:
            self._tell(self._handlers, *change, False)

    def _store(self, key: str, obj: T) -> tuple[T | None, T] | None:
        """Puts an object into the indexer; returns (old, new), None when nothing is new about it.

        resourceVersions are compared for equality alone: one that is not what is stored is news, as for client-go.
        """
        old = self.indexer.get_by_key(key)
        if old is not None and _same_version(old, obj):
            return None
        new = self._transformed(obj)
        self.indexer.put(key, new)
        return old, new

    def _drop(self, key: str) -> list[T]:
        old = self.indexer.delete_key(key)
        return [] if old is None else [old]

    @staticmethod
    def _tell(handlers: list[HandlerRegistration[T]], old: T | None, new: T, initial: bool) -> None:
        for registration in handlers:
            if old is None:
                registration.add(new, initial)
            elif _is_other(old, new):
                # Deleted and created anew under the same name while nobody looked: no update, two lives.
                registration.delete(old, True)
                registration.add(new, False)
            else:
                registration.update(old, new)

    def _transformed(self, obj: T) -> T:
        if self._transform is None:
            return obj
        try:
            return self._transform(obj)
        except Exception:
            log.exception("%s %s: transform failed, stored as it came", self.kind, obj.key)
            return obj


def _same_version(old: Object, new: Object) -> bool:
    was, now = old.metadata, new.metadata
    return was.resource_version == now.resource_version != "" and was.uid == now.uid


def _is_other(old: Object, new: Object) -> bool:
    """Whether two objects of one name are two lives. Where a uid is missing, they are not told apart."""
    return bool(old.metadata.uid and new.metadata.uid) and old.metadata.uid != new.metadata.uid


async def wait_for_cache_sync(*informers: SharedIndexInformer[Any], timeout: float | None = None) -> bool:
    """Waits until every informer has synced; False when that took longer than `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            for informer in informers:
                await informer.wait_for_sync()
    except TimeoutError:
        return False
    return True
