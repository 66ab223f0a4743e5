"""Reading a kind's cache: wrangler's `Cache()`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.api.meta import LabelSelector, Object, is_older
from kubeloop.api.selectors import selector
from kubeloop.cache.store import NAMESPACE_INDEX, Indexer, IndexIncomplete
from kubeloop.client.errors import NotFound, check_namespace, not_found
from kubeloop.controllers.errors import CacheForbidden, CacheIncomplete

if TYPE_CHECKING:
    from kubeloop.cache.informer import SharedIndexInformer

T = TypeVar("T", bound=Object)


class CacheReader(Generic[T]):
    """The server's objects as of the last event that arrived; read only, frozen and shared.

    While the rights to list the kind are missing every read raises CacheForbidden: an empty answer would be wrong."""

    def __init__(self, indexer: Indexer[T], informer: SharedIndexInformer[T] | None = None) -> None:
        self._indexer = indexer
        self._informer = informer
        self._closed = False

    def close(self) -> None:
        """Makes every later read raise RuntimeError: nothing follows the server any more."""
        self._closed = True

    @property
    def installed(self) -> bool:
        """False while the server does not know the kind (its CRD is missing); the cache is empty then."""
        return self._informer is None or self._informer.installed

    def get(self, *, name: str, namespace: str = "") -> T | None:
        """The object, or None; no namespace for cluster-scoped kinds. Raises BadRequest where it is missing."""
        if not namespace and self._informer is not None:
            check_namespace(self._informer.resource, namespace, name)
        return self.get_by_key(f"{namespace}/{name}" if namespace else name)

    def require(self, *, name: str, namespace: str = "") -> T:
        """Returns the object as `get` does. Raises NotFound in the API server's words."""
        obj = self.get(name=name, namespace=namespace)
        if obj is None:
            raise NotFound(name) if self._informer is None else not_found(self._informer.resource, name)
        return obj

    def get_by_key(self, key: str) -> T | None:
        """The object of a `namespace/name` or `name`."""
        return self._readable().get_by_key(key)

    def list(
        self, namespace: str = "", *, labels: str | Mapping[str, str] | LabelSelector | None = None
    ) -> builtins.list[T]:
        """Returns all objects, or those of one namespace, or with labels that a selector selects (`{"app": "web"}`,
        `"app in (web,db)"`); every one of them is looked at, where there are many an index is faster. Raises ValueError
        for what is not a selector."""
        indexer = self._readable()
        objects = indexer.by_index(NAMESPACE_INDEX, namespace) if namespace else indexer.list()
        if labels is None:
            return objects
        selects = selector(labels)
        return [obj for obj in objects if selects(obj.metadata.labels or {})]

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        """The objects that index `name` puts under `value`. Raises KeyError for an index that was never added,
        CacheIncomplete while its function raises for an object: that may belong to any value."""
        try:
            return self._readable().by_index(name, value)
        except IndexIncomplete as error:
            raise CacheIncomplete(str(error)) from error

    def add_indexer(self, name: str, func: Callable[[T], Iterable[str]]) -> None:
        """Adds an index; ValueError when the name is taken."""
        self._indexer.add_indexers({name: func})

    def _readable(self) -> Indexer[T]:
        if self._closed:
            raise RuntimeError("the controller of this cache was stopped: ask the factory for the kind again")
        if self._informer is not None and (reason := self._informer.forbidden):
            raise CacheForbidden(self._informer.kind, reason)
        return self._indexer


def newer(cached: T, written: T | None) -> T:
    """The later version of an object that this process wrote: as the server answered, until the cache has caught up.
    Versions of one object are numbers in etcd's order (KEP-5504)."""
    if written is None or written.uid != cached.uid:
        return cached
    return written if is_older(cached.metadata.resource_version, written.metadata.resource_version) else cached
