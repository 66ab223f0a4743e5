"""Lists in slices: what a tenant sizes (a page of 500 objects, each with 256 KiB of annotations) holds the event loop,
and memory as it came, for a slice at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from kubeloop.client.errors import ServerError
from kubeloop.client.lenient import last_item_end

Page = TypeVar("Page")

SLICE: Final = 256 * 1024
"""Bytes of a list that are decoded, and their objects transformed, in one step of the event loop, or one item that is
longer: 10 ms where they are labels, which take longest."""
_ITEMS: Final = b'"items":['
_ITEM_START: Final = 12
"""Bytes with which every item begins: the server writes the fields in a fixed order."""


class ListSlices(Generic[Page]):
    """The bytes of a list, decoded as lists of some of its items: each has the list's own head before them.

    `decode` returns what it makes of a list; it raises ServerError for bytes that are not a list."""

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
            if end := last_item_end(self._pending):
                yield end

    def pages(self) -> list[Page]:
        """Returns all slices; the last one has what stands behind the items, too. Raises ServerError for no list."""
        return [*self._pages, self._decode(self._head + self._pending)]
