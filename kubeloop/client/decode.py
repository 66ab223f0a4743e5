"""Decoders of the server's bytes into typed objects; an object that does not decode never costs the others."""

import asyncio
import contextlib
import functools
import logging
import operator
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubeloop.api.meta import ListMeta, Object, ObjectMeta, PartialObjectMetadata, Status, Struct
from kubeloop.client import lenient
from kubeloop.client.errors import ServerError, Unreachable, error_from_status
from kubeloop.logs import Once
from kubeloop.metrics import FRAMEWORK

logger = logging.getLogger(__name__)
_UNDECODABLE_OBJECTS = FRAMEWORK["rest_client_undecodable_objects_total"].counter()
T = TypeVar("T", bound=Object)
Item = TypeVar("Item")
Page = TypeVar("Page")
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after which a WatchList has sent everything that was there."""
MAX_LINE = 64 * 1024 * 1024
"""Bytes without a line's end after which the server is not taken for an API server."""


class ObjectList(list[T]):
    """A whole list of objects, and its resourceVersion: from where a watch would go on."""

    def __init__(self, items: Iterable[T] = (), resource_version: str = "") -> None:
        super().__init__(items)
        self.resource_version = resource_version


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """A page of a list. `undecodable`: metadata that the server wrote of objects that did not decode, if known."""

    items: list[T]
    metadata: ListMeta
    undecodable: list[ObjectMeta] = field(default_factory=list)
    kind: str = ""


@dataclass(slots=True)  # not frozen: one is made for every line, and that would cost more than its checks
class WatchEvent(Generic[T]):
    """An event of a watch: `type` is ADDED, MODIFIED or DELETED, with `object` or, of one that does not decode,
    `undecodable` as in a ListPage; or BOOKMARK, `initial_events_end`: the one that ends a WatchList's first part."""

    type: str
    object: T | None = None
    resource_version: str = ""
    initial_events_end: bool = False
    undecodable: ObjectMeta | None = None


class _Name(Struct):
    """The part of ObjectMeta that the server itself writes: what is known of an object that does not decode."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(Struct):
    metadata: _Name = _Name()


class _List(Struct, Generic[Item]):
    items: list[Item] | None  # without a default: the `{}` of something in between is not an empty list
    api_version: str = ""
    kind: str = ""
    metadata: ListMeta = ListMeta()


class _RawEvent(Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class _Event(Struct, Generic[T]):
    type: str
    object: T


_BOOKMARK = msgspec.json.Decoder(PartialObjectMetadata)
_NAMED = msgspec.json.Decoder(_Named)
_RAW_LIST = msgspec.json.Decoder(_List[msgspec.Raw])
_RAW_EVENT = msgspec.json.Decoder(_RawEvent)
_STATUS = msgspec.json.Decoder(Status)
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_NAME_OF, _KIND_OF = operator.attrgetter("metadata.name"), operator.attrgetter("kind")
_CHANGES = (b'{"type":"ADDED"', b'{"type":"MODIFIED"', b'{"type":"DELETED"')
_REPORTED = Once(600.0)
"""The reports by kind and key: a tenant who writes a bad one again and again does not fill the log."""


class Decoder(Generic[T]):
    """Decodes objects, lists and watch events of one type in one go; only what that fails on is taken apart. `of_kind`:
    apiVersion and kind of all objects, for answers with the metadata alone say PartialObjectMetadata."""

    def __init__(self, kind: type[T], of_kind: tuple[str, str] | None = None) -> None:
        self._type = kind
        self._of_kind = of_kind
        self._is_open = bool(lenient.open_fields(kind))
        self._object = msgspec.json.Decoder(kind)
        self._event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Event[kind])  # type: ignore[valid-type]
        self._list: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_List[kind])  # type: ignore[valid-type]

    def object(self, body: bytes) -> T:
        """Returns the object. Raises ServerError for an answer that is not one."""
        try:
            obj = self._with_nulls(body)
            if self._is_open and lenient.is_deep(obj):
                obj = self._with_nulls(lenient.shallow(bytes(body)))
            return self._known(obj)
        except lenient.UNDECODABLE as err:
            raise ServerError(f"the answer is not a {self._type.__name__}: {err}") from err

    async def read_list_page(
        self, chunks: AsyncIterable[bytes], transform: Callable[[T], T | None] | None = None
    ) -> ListPage[T]:
        """Returns the page whose bytes come in `chunks`, of what `transform` leaves of each object; one for which it
        returns None is among the undecodable ones. The event loop goes on after each slice."""
        slices = ListSlices(lambda document: _transformed(self.list_page(document), transform))
        async for chunk in chunks:
            for start in range(0, len(chunk), SLICE):
                if slices.add(chunk[start : start + SLICE]):
                    await asyncio.sleep(0)
        *pages, page = slices.pages()
        if not pages:
            return page
        items = [item for part in pages for item in part.items] + page.items
        undecodable = [meta for part in pages for meta in part.undecodable] + page.undecodable
        return ListPage(items, page.metadata, undecodable, page.kind)

    def list_page(self, body: bytes) -> ListPage[T]:
        """Returns the page; objects that don't decode are reported and left out. Raises ServerError for no list."""
        with contextlib.suppress(*lenient.UNDECODABLE, RecursionError):
            page = self._list.decode(body)
            items: list[T] = page.items or []
            if self._complete(page, items) and not (self._is_open and any(map(lenient.is_deep, items))):
                return ListPage(items, page.metadata, kind=page.kind)
        return self._list_one_by_one(body)

    def watch_event(self, line: bytes, transform: Callable[[T], T | None] | None = None) -> WatchEvent[T]:
        """Returns the event, of what `transform` leaves of the object. Raises what an ERROR event says, ServerError."""
        event = self._watch_event(line)
        if transform is not None and (obj := event.object) is not None:
            event.object = transform(obj)
            event.undecodable = obj.metadata if event.object is None else None
        return event

    def _watch_event(self, line: bytes) -> WatchEvent[T]:
        if line.startswith(_CHANGES):
            # Once over the bytes instead of twice; whatever does not fit is looked at closely below.
            with contextlib.suppress(*lenient.UNDECODABLE, RecursionError):
                event = self._event.decode(line)
                if event.object.metadata.name and not (self._is_open and lenient.is_deep(event.object)):
                    return WatchEvent(event.type, self._known(event.object), event.object.metadata.resource_version)
        try:
            raw = lenient.decode(_RAW_EVENT, line)
            if raw.type == "BOOKMARK":
                meta = _BOOKMARK.decode(raw.object).metadata
                is_end = (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true"
                return WatchEvent("BOOKMARK", None, meta.resource_version, initial_events_end=is_end)
            if raw.type == "ERROR":
                raise error_from_status(_STATUS.decode(raw.object))
        except lenient.UNDECODABLE as err:
            raise ServerError(f"a line of the watch is not an event: {err}") from err
        decoded = self._decode_or_identify(raw.object)
        if isinstance(decoded, ObjectMeta):
            return WatchEvent(raw.type, None, decoded.resource_version, undecodable=decoded)
        return WatchEvent(raw.type, decoded, decoded.metadata.resource_version)

    def _list_one_by_one(self, body: bytes) -> ListPage[T]:
        try:
            raw = lenient.decode(_RAW_LIST, body)
        except lenient.UNDECODABLE as err:
            raise ServerError(f"the answer is not a list of {self._type.__name__}: {err}") from err
        page: ListPage[T] = ListPage([], raw.metadata, kind=raw.kind)
        for item in map(self._decode_or_identify, raw.items or []):
            if isinstance(item, ObjectMeta):
                page.undecodable.append(item)
            else:
                page.items.append(item)
        self._complete(raw, page.items)
        return page

    def _complete(self, page: _List[Any], items: list[T]) -> bool:
        """Writes the kind into items, which kube-apiserver's own lists say once; False if an item has no name."""
        if not all(map(_NAME_OF, items)):
            return False
        if self._of_kind or not all(map(_KIND_OF, items)):
            api_version, kind = self._of_kind or (page.api_version, page.kind.removesuffix("List"))
            for item in items:
                if self._of_kind or not item.kind:
                    _set_kind(item, api_version, kind)
        return True

    def _decode_or_identify(self, raw: msgspec.Raw) -> T | ObjectMeta:
        try:
            obj = self._with_nulls(raw)
            if self._is_open and lenient.is_deep(obj):
                raw = msgspec.Raw(lenient.shallow(bytes(raw)))
                obj = self._with_nulls(raw)
        except lenient.UNDECODABLE as err:
            meta = ObjectMeta()
            with contextlib.suppress(*lenient.UNDECODABLE):
                meta = ObjectMeta(**msgspec.structs.asdict(_NAMED.decode(raw).metadata))
            self._report(meta, "invalid", f"cannot be decoded, what was decoded of it before is kept: {err}")
            return meta
        if not obj.metadata.name:
            self._report(obj.metadata, "invalid", "has no name")
            return ObjectMeta()
        if lenient.CUT in bytes(raw):
            problem = f"is nested deeper than {lenient.MAX_DEPTH} levels, the rest is cut off"
            self._report(obj.metadata, "too_deep", problem)
        return self._known(obj)

    def _known(self, obj: T) -> T:
        if self._of_kind is not None:
            _set_kind(obj, *self._of_kind)
        return obj

    def _with_nulls(self, body: bytes | msgspec.Raw) -> T:
        """Nulls cost a second look only where the struct does not take them. Raises lenient.UNDECODABLE."""
        try:
            return lenient.decode(self._object, body)
        except lenient.UNDECODABLE:
            plain = lenient.without_nulls(self._type, lenient.decode(_ANY, body))
            return self._object.decode(msgspec.json.encode(plain))

    def _report(self, meta: ObjectMeta, reason: str, problem: str) -> None:
        kind, key = self._type.__name__, Object(metadata=meta).key or "?"
        _UNDECODABLE_OBJECTS.labels(kind, reason).inc()
        logger.log(logging.WARNING if _REPORTED.is_due(kind, key) else logging.DEBUG, "%s %s %s", kind, key, problem)


_cached_decoder = functools.cache(Decoder)


def decoder_for(kind: type[T], of_kind: tuple[str, str] | None = None) -> Decoder[T]:
    """The decoder of a type, made once."""
    decoder: Decoder[T] = _cached_decoder(kind, of_kind)
    return decoder


def _set_kind(obj: Object, api_version: str, kind: str) -> None:
    """Writes into an object that no reader has yet."""
    msgspec.structs.force_setattr(obj, "api_version", api_version)
    msgspec.structs.force_setattr(obj, "kind", kind)


def _transformed(page: ListPage[T], transform: Callable[[T], T | None] | None) -> ListPage[T]:
    if transform is None:
        return page
    results = [(obj, transform(obj)) for obj in page.items]
    failed = [obj.metadata for obj, result in results if result is None]
    items = [result for _, result in results if result is not None]
    return ListPage(items, page.metadata, page.undecodable + failed, page.kind)


async def split_lines(chunks: AsyncIterable[bytes], *, source: str) -> AsyncGenerator[bytes, None]:
    """Yields whole lines without their end, but no empty ones; linear in the bytes, however a line is cut up. Raises
    Unreachable, which names the `source`, where the stream ends within a line or a line has no end."""
    pending: list[bytes] = []
    waiting = 0
    async for chunk in chunks:
        pieces = chunk.split(b"\n")
        if len(pieces) > 1:
            pending.append(pieces[0])
            pieces[0] = b"".join(pending)
            pending.clear()
            waiting = 0
            for line in pieces[:-1]:
                if line:
                    yield line
        if remainder := pieces[-1]:
            pending.append(remainder)
            waiting += len(remainder)
            if waiting > MAX_LINE:
                raise Unreachable(f"{source} sent a line longer than {MAX_LINE} bytes")
    if pending:
        raise Unreachable(f"{source} closed the connection in the middle of a line")


SLICE: Final = 256 * 1024
"""Bytes of a list that are decoded, and their objects transformed, in one step of the event loop, or one item that is
longer: 10 ms where they are labels, which take longest."""
_ITEMS: Final = b'"items":['
_ITEM_START: Final = 12
"""Bytes with which every item begins: the server writes the fields in a fixed order."""


class ListSlices(Generic[Page]):
    """The bytes of a list, decoded as lists of some of its items, each with the list's own head before them: what a
    tenant sizes (a page of 500 objects, each with 256 KiB of annotations) holds the event loop, and memory as it came,
    for a slice at a time. `decode` raises ServerError for bytes that are not a list."""

    def __init__(self, decode: Callable[[bytes], Page]) -> None:
        self._decode = decode
        self._pages: list[Page] = []
        self._head = b""
        self._separator = b""
        self._pending = bytearray()
        # Invariant: once the head is known it begins with an item.
        self._enough = SLICE

    def add(self, chunk: bytes) -> bool:
        """Takes at most SLICE more bytes; reports whether a slice was decoded."""
        self._pending += chunk
        if len(self._pending) < self._enough:
            return False
        if not self._head and (at := self._pending.find(_ITEMS)) >= 0:
            start = at + len(_ITEMS)
            self._separator = b"}," + self._pending[start : start + _ITEM_START]
            self._head = bytes(self._pending[:start])
            del self._pending[:start]
        self._enough = SLICE
        for end in self._ends():
            with contextlib.suppress(ServerError):
                self._pages.append(self._decode(b"%s%s]}" % (self._head, self._pending[:end])))
                del self._pending[: end + 1]
                return True
        self._enough = 2 * len(self._pending)  # so that a long item is not tried at every chunk
        return True

    def _ends(self) -> Iterator[int]:
        """Yields where the last item but one may end, the likely place first: a field may begin as the items do."""
        if self._head and (at := self._pending.rfind(self._separator)) >= 0:
            yield at + 1
            if end := lenient.last_item_end(self._pending):
                yield end

    def pages(self) -> list[Page]:
        """Returns all slices; the last one has what stands behind the items, too. Raises ServerError for no list."""
        return [*self._pages, self._decode(self._head + self._pending)]
