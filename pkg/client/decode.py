"""From the server's bytes to typed objects; one object that does not decode never costs the others."""

from __future__ import annotations

import contextlib
import functools
import logging
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from pkg.api.meta import ListMeta, Object, ObjectMeta, Status, Struct
from pkg.client.errors import ServerError

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after which a WatchList has sent everything that was there."""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list; `skipped` objects did not decode. `metadata.continue_` is "" on the last page."""

    items: list[T]
    metadata: ListMeta
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One watch event: `type` is ADDED, MODIFIED or DELETED (with `object`), BOOKMARK or ERROR (with `status`).

    `resource_version` is the object's or the bookmark's; `initial_events_end` marks the bookmark that ends
    the first part of a WatchList.
    """

    type: str
    object: T | None = None
    resource_version: str = ""
    initial_events_end: bool = False
    status: Status | None = None


class _Partial(Struct):
    """What is known of an object whatever its kind."""

    metadata: ObjectMeta = ObjectMeta()


class _List(Struct, Generic[T]):
    items: list[T] | None = None
    metadata: ListMeta = ListMeta()


class _RawList(Struct):
    items: list[msgspec.Raw] | None = None
    metadata: ListMeta = ListMeta()


class _RawEvent(Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class _Event(Struct, Generic[T]):
    type: str
    object: T


_PARTIAL = msgspec.json.Decoder(_Partial)
_RAW_LIST = msgspec.json.Decoder(_RawList)
_RAW_EVENT = msgspec.json.Decoder(_RawEvent)
_STATUS = msgspec.json.Decoder(Status)
_CHANGES = (b'{"type":"ADDED"', b'{"type":"MODIFIED"', b'{"type":"DELETED"')
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError)


class Decoder(Generic[T]):
    """Decodes objects, lists and watch events of one type. Make it through `decoder_for`, which keeps them."""

    def __init__(self, kind: type[T]) -> None:
        self._type = kind
        self._object = msgspec.json.Decoder(kind)
        self._event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Event[kind])  # type: ignore[valid-type]
        self._list: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_List[kind])  # type: ignore[valid-type]

    def object(self, body: bytes) -> T:
        """One object. Raises ServerError for an answer that is not one."""
        try:
            return self._object.decode(body)
        except _UNDECODABLE as err:
            raise ServerError(f"the answer is not a {self._type.__name__}: {err}", status=500) from err

    def list_page(self, body: bytes) -> ListPage[T]:
        """One page; objects that don't decode are logged and left out. Raises ServerError for no list at all."""
        try:
            page = self._list.decode(body)
            return ListPage(page.items or [], page.metadata)
        except _UNDECODABLE:
            return self._list_one_by_one(body)

    def watch_event(self, line: bytes) -> WatchEvent[T] | None:
        """One event; None where its object does not decode (logged). Raises ServerError for a line that is no event."""
        if line.startswith(_CHANGES):
            # Once over the bytes instead of twice; whatever does not fit is looked at closely below.
            with contextlib.suppress(*_UNDECODABLE):
                event = self._event.decode(line)
                return WatchEvent(event.type, event.object, event.object.metadata.resource_version)
        try:
            raw = _RAW_EVENT.decode(line)
            if raw.type == "BOOKMARK":
                return _bookmark(_PARTIAL.decode(raw.object).metadata)
            if raw.type == "ERROR":
                return WatchEvent("ERROR", status=_STATUS.decode(raw.object))
        except _UNDECODABLE as err:
            raise ServerError(f"a line of the watch is not an event: {err}", status=500) from err
        decoded = self._changed(raw)
        if decoded is None:
            return None
        return WatchEvent(raw.type, decoded, decoded.metadata.resource_version)

    def _list_one_by_one(self, body: bytes) -> ListPage[T]:
        try:
            page = _RAW_LIST.decode(body)
        except _UNDECODABLE as err:
            raise ServerError(
                f"the answer is not a list of {self._type.__name__}: {err}", status=500
            ) from err
        raws = page.items or []
        items = [item for item in map(self._decoded, raws) if item is not None]
        return ListPage(items, page.metadata, len(raws) - len(items))

    def _changed(self, raw: _RawEvent) -> T | None:
        decoded = self._decoded(raw.object)
        if decoded is None and raw.type == "DELETED":
            # That it is gone can be told without the rest of it.
            meta = _metadata(raw.object)
            return self._type(metadata=meta) if meta.name else None
        return decoded

    def _decoded(self, raw: msgspec.Raw) -> T | None:
        try:
            return self._object.decode(raw)
        except _UNDECODABLE as err:
            meta = _metadata(raw)
            key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            logger.warning("%s %s is left out, it does not decode: %s", self._type.__name__, key or "?", err)
            return None


@functools.cache
def decoder_for(kind: type[T]) -> Decoder[T]:
    """The decoder of a type, made once."""
    return Decoder(kind)


def _bookmark(meta: ObjectMeta) -> WatchEvent[Any]:
    ended = (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true"
    return WatchEvent("BOOKMARK", resource_version=meta.resource_version, initial_events_end=ended)


def _metadata(raw: msgspec.Raw) -> ObjectMeta:
    try:
        return _PARTIAL.decode(raw).metadata
    except _UNDECODABLE:
        return ObjectMeta()
