"""Reading a kind's cache: wrangler's `Cache()`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from pkg.api.meta import Object
from pkg.cache import NAMESPACE_INDEX, Indexer

T = TypeVar("T", bound=Object)


class CacheReader(Generic[T]):
    """What the server had when its last event arrived; read only. Objects are frozen and shared."""

    def __init__(self, indexer: Indexer[T]) -> None:
        self._indexer = indexer

    def get(self, namespace: str, name: str) -> T | None:
        """The object, None when the cache has none; namespace "" for cluster-scoped kinds."""
        return self._indexer.get_by_key(f"{namespace}/{name}" if namespace else name)

    def get_by_key(self, key: str) -> T | None:
        """The object of a `namespace/name` or `name`."""
        return self._indexer.get_by_key(key)

    def list(self, namespace: str = "") -> builtins.list[T]:
        """All objects, or those of one namespace."""
        return self._indexer.by_index(NAMESPACE_INDEX, namespace) if namespace else self._indexer.list()

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        """The objects that index `name` puts under `value`; KeyError for an index that was never added."""
        return self._indexer.by_index(name, value)

    def add_indexer(self, name: str, func: Callable[[T], Iterable[str]]) -> None:
        """Add an index; ValueError when the name is taken."""
        self._indexer.add_indexers({name: func})
