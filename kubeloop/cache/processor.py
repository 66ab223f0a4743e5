"""Stores what a reflector delivers in the indexer and notifies the handlers (client-go's sharedProcessor)."""

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kubeloop.api.meta import Object, ObjectMeta, as_number
from kubeloop.cache.lister_watcher import Listing
from kubeloop.cache.store import STEP, Indexer, is_version

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Object)
_In = TypeVar("_In", bound=Object, contravariant=True)


class ResourceEventHandler(Protocol[_In]):
    """client-go's ResourceEventHandler. Called inside the event loop: must not block, should only enqueue."""

    def on_add(self, obj: _In, is_in_initial_list: bool) -> None:
        """An object came. `is_in_initial_list`: it was there before the handler was."""

    def on_update(self, old: _In, new: _In) -> None:
        """An object changed; on a resync `old` and `new` are the same object."""

    def on_delete(self, obj: _In, final_state_unknown: bool) -> None:
        """An object is gone. `final_state_unknown`: its deletion was missed, `obj` is what was last seen."""


def _ignore(*_: Any) -> None:
    """The default of a handler that was not given."""


@dataclass
class ResourceEventHandlerFuncs(Generic[T]):
    """A ResourceEventHandler from functions, each of which can be left out."""

    on_add: Callable[[T, bool], None] = _ignore
    on_update: Callable[[T, T], None] = _ignore
    on_delete: Callable[[T, bool], None] = _ignore


@dataclass(eq=False)
class HandlerRegistration(Generic[T]):
    """A handler's place in an informer: `add_event_handler` returns it, `remove_event_handler` takes it."""

    handler: ResourceEventHandler[T]
    removed: bool = False


class SharedProcessor(Generic[T]):
    """The sink of an informer's reflector. Every method updates the indexer first, then notifies the handlers.

    `synced` is set once every handler was notified of the whole first list, or there is nothing to list;
    `on_not_installed` is called whenever the server does not know the kind. It may leave the objects as they are: a
    version that is no longer served hides them, and what cannot be read is not gone."""

    def __init__(self, kind: str, indexer: Indexer[T], transform: Callable[[T], T] | None = None) -> None:
        self.synced = asyncio.Event()
        self.on_not_installed: Callable[[], object] = self.uninstalled
        self.undecodable: set[str] = set()
        # Invariant: the keys of the objects that are there and do not decode; "" for those without a known name.
        self.untransformed: set[str] = set()
        # Invariant: the keys of those whose transform raised.
        self._kind = kind
        self._indexer = indexer
        self.transform = None if transform is None else functools.partial(self._transformed, transform)
        self._listed = False
        # Replaced, never changed: an iteration may be interrupted by a handler that adds or removes one.
        self._handlers: list[HandlerRegistration[T]] = []

    def _transformed(self, transform: Callable[[T], T], obj: T) -> T | None:
        """An object as it is stored. None when the transform raises: what it should take out (a secret, 1 MB) must not
        be stored, so the object counts as one that does not decode."""
        key = obj.key
        try:
            stored = transform(obj)
            if not isinstance(stored, Object):
                raise TypeError(f"a transform returns the object, not {stored!r}")
        except Exception:
            log.exception("%s %s: transform failed, what was stored of it before is kept", self._kind, key)
            self.untransformed.add(key)
            return None
        self.untransformed.discard(key)
        return stored

    def changed(self, obj: T) -> None:
        """Stores an object that was ADDED or MODIFIED; the store decides which: an event may have been missed."""
        key = obj.key
        if self.undecodable:
            self.undecodable.discard(key)
        old = self._indexer.get_by_key(key)
        if old is None or not is_version(old, obj.metadata):
            self._indexer.put(key, obj)
            self._tell(self._handlers, old, obj, False)

    def not_decoded(self, meta: ObjectMeta) -> None:
        """An object that was ADDED or MODIFIED does not decode, or its transform raised: what is stored of it stays."""
        key = Object(metadata=meta).key
        if key not in self.untransformed:
            self.undecodable.add(key)

    def deleted(self, meta: ObjectMeta, obj: T | None) -> None:
        """Removes what was DELETED, no successor of its name; without `obj` its final state is unknown."""
        key = Object(metadata=meta).key
        self.undecodable.discard(key)
        self.untransformed.discard(key)
        old = self._indexer.get_by_key(key)
        if old is None or _is_other(old.metadata, meta):
            return
        self._indexer.delete_key(key)
        self._call(self._handlers, "on_delete", obj or old, obj is None)

    def listing(self) -> Listing[T]:
        """A whole list in the making, for `replaced`."""
        return Listing(self._indexer)

    def replaced(self, listing: Listing[T]) -> Generator[None]:
        """Makes a whole list the store's content, at once; then what differs reaches the handlers, a part at each step,
        or all at once when it is closed. Objects that are gone are deletions whose final state is unknown; one that is
        there but does not decode stays as it was."""
        self.undecodable = set(listing.undecodable) - self.untransformed
        self.untransformed &= listing.undecodable.keys()
        self._keep_undecodable(listing)
        changes, initial, handlers = self._changes(listing.store), not self._listed, self._handlers
        try:
            for number, change in enumerate(changes, 1):
                self._tell(handlers, *change, initial)
                if number % STEP == 0:
                    yield
        finally:
            for change in changes:
                self._tell(handlers, *change, initial)
            self._listed = True
            self.synced.set()

    def _keep_undecodable(self, listing: Listing[T]) -> None:
        if listing.undecodable:
            nameless = listing.undecodable.get("")  # it may be any of those that are missing
            for old in [obj for obj in self._indexer.list() if obj.key not in listing.store]:
                meta = nameless or listing.undecodable.get(old.key)
                if meta is not None and not _is_other(old.metadata, meta):
                    listing.store.put(old.key, old)

    def _changes(self, store: Indexer[T]) -> Iterator[tuple[T | None, T | None]]:
        """Makes `store` the content; returns (old, new) of every object, None for what was or is not there."""
        old = self._indexer.swap(store)
        stored = zip(store.list_keys(), store.list(), strict=True)
        # Meanwhile the kind's definition may go, and the objects with it.
        present = ((old.get(key), obj) for key, obj in stored if self._indexer.get_by_key(key) is obj)
        return itertools.chain(present, ((obj, None) for key, obj in old.items() if key not in store))

    def not_installed(self) -> None:
        self.synced.set()
        self.on_not_installed()

    def uninstalled(self) -> None:
        """The objects are gone with their definition."""
        self.undecodable.clear()
        self.untransformed.clear()
        for old in self._indexer.swap(self._indexer.prepare()).values():
            self._call(self._handlers, "on_delete", old, True)

    def newest_object(self) -> T | None:
        return max(self._indexer.list(), key=lambda obj: as_number(obj.metadata.resource_version), default=None)

    def add(self, handler: ResourceEventHandler[T]) -> HandlerRegistration[T]:
        """A late handler is notified of every object at once, as of an initial list."""
        registration = HandlerRegistration(handler)
        self._handlers = [*self._handlers, registration]
        for obj in self._indexer.list():
            self._call([registration], "on_add", obj, True)
        return registration

    def remove(self, registration: HandlerRegistration[T]) -> None:
        """Removes a handler: it is not called any more, not even for the rest of the current notification."""
        registration.removed = True
        self._handlers = [registered for registered in self._handlers if registered is not registration]

    async def resync(self, period: float) -> None:
        """Gives every handler every object again, each `period` seconds; 0: never."""
        while period > 0:
            await asyncio.sleep(period)
            for obj in self._indexer.list():
                self._call(self._handlers, "on_update", obj, obj)

    def _tell(self, handlers: list[HandlerRegistration[T]], old: T | None, new: T | None, initial: bool) -> None:
        if old is not None and new is not None and not _is_other(old.metadata, new.metadata):
            if old is not new:
                self._call(handlers, "on_update", old, new)
            return
        # Deleted and created anew under the same name between two events: no update, two lives.
        for registration in handlers:
            if old is not None:
                self._call([registration], "on_delete", old, True)
            if new is not None:
                self._call([registration], "on_add", new, initial and old is None)

    def _call(self, handlers: list[HandlerRegistration[T]], method: str, obj: T, argument: T | bool) -> None:
        """An exception costs that handler this event, and no other handler anything."""
        for registration in handlers:
            if not registration.removed:
                try:
                    getattr(registration.handler, method)(obj, argument)
                except Exception:
                    log.exception("%s %s: handler %r failed in %s", self._kind, obj.key, registration.handler, method)


def _is_other(old: ObjectMeta, new: ObjectMeta) -> bool:
    """Reports whether the second object replaced the first one of its name; False if a uid is missing."""
    return bool(old.uid and new.uid) and old.uid != new.uid
