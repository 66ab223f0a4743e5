"""Event handlers of a shared informer, kept apart from each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kubeloop.api.meta import Object

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


class HandlerRegistration(Generic[T]):
    """One handler's place in an informer: what `add_event_handler` returns and `remove_event_handler` takes."""

    def __init__(
        self, handler: ResourceEventHandler[T], resync_period: float, kind: str, synced: asyncio.Event
    ) -> None:
        self._handler = handler
        self._kind = kind
        self._synced = synced
        self.removed = False
        self.resync_period = resync_period
        self.resync_timer: asyncio.TimerHandle | None = None

    def has_synced(self) -> bool:
        """Whether this handler was notified of the whole first list: the same as its informer's has_synced."""
        return self._synced.is_set()

    def add(self, obj: T, is_in_initial_list: bool) -> None:
        self._call("on_add", obj, obj, is_in_initial_list)

    def update(self, old: T, new: T) -> None:
        self._call("on_update", new, old, new)

    def delete(self, obj: T, final_state_unknown: bool) -> None:
        self._call("on_delete", obj, obj, final_state_unknown)

    def remove(self) -> None:
        """The handler is called no more."""
        self.removed = True
        self.stop_resync()

    def stop_resync(self) -> None:
        """Ends the timer, if one runs."""
        if self.resync_timer is not None:
            self.resync_timer.cancel()
            self.resync_timer = None

    def _call(self, method: str, about: T, *args: Any) -> None:
        """An exception costs this handler this event, and no other handler anything."""
        if self.removed:
            return
        try:
            getattr(self._handler, method)(*args)
        except Exception:
            log.exception("%s %s: handler %r failed in %s", self._kind, about.key, self._handler, method)
