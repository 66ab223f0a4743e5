"""The indexed store behind an informer: client-go's `Indexer`, without its lock (one event loop)."""

import builtins
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubeloop.api.meta import Object, ObjectMeta

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Object)
IndexFunc = Callable[[T], Iterable[str]]
"""Names the index values of an object. Must depend on the object alone: called again when it is removed."""
STEP: Final = 500
"""Objects of a list that are stored, or of which handlers are told, in one step of the event loop."""
NAMESPACE_INDEX = "namespace"
"""The index every store has: client-go's NamespaceIndex. Cluster-scoped objects stand under ""."""
_NAMED = 5
"""The number of objects that a line names."""


class IndexIncomplete(LookupError):
    """An index has no values for some objects, because its function raised: they may belong to any value."""


def shorten_keys(keys: Iterable[str]) -> str:
    ordered = sorted(keys)
    remainder = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"{', '.join(ordered[:_NAMED])}{remainder}"


class Indexer(Generic[T]):
    """Objects by key, and by the values of named indexes. Everything is sync: between a read and the write that follows
    from it nothing else runs. Lists are copies in the order of arrival, their objects shared and frozen."""

    def __init__(self, indexers: Mapping[str, IndexFunc[T]] | None = None) -> None:
        self._items: dict[str, T] = {}
        self._index_funcs: dict[str, IndexFunc[T]] = {}
        # Index name -> value -> the objects by key. An emptied bucket is dropped at once (VMs come and go for months).
        self._indices: dict[str, defaultdict[str, dict[str, T]]] = {}
        self._holes: set[tuple[str, str]] = set()
        # Invariant: the indexes and the keys of the objects for which their functions raised.
        self.add_indexers({NAMESPACE_INDEX: lambda obj: (obj.metadata.namespace,), **(indexers or {})})

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def get_by_key(self, key: str) -> T | None:
        return self._items.get(key)

    def list(self) -> builtins.list[T]:
        return list(self._items.values())

    def list_keys(self) -> builtins.list[str]:
        """Returns every key (`namespace/name`, or `name`), in the same order."""
        return list(self._items)

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        """The objects for which index `name` gives `value`. Raises KeyError for no such index, IndexIncomplete."""
        return list(self._index(name).get(value, {}).values())

    def index_values(self, name: str) -> builtins.list[str]:
        """The values that index `name` has now: client-go's ListIndexFuncValues."""
        return list(self._index(name))

    def add_indexers(self, indexers: Mapping[str, IndexFunc[T]]) -> None:
        """Adds indexes, also to a store that is filled already. ValueError when a name is taken."""
        if duplicates := sorted(self._index_funcs.keys() & indexers.keys()):
            raise ValueError(
                f"indexer conflict: {', '.join(duplicates)} added before: add each once, or under another name"
            )
        for name, func in indexers.items():
            self._index_funcs[name] = func
            self._fill(name, func)

    def add(self, obj: T) -> T | None:
        """Stores an object; returns the one that stood under its key before."""
        return self.put(obj.key, obj)

    def put(self, key: str, obj: T) -> T | None:
        """Adds an object as `add` does, for a caller that has its key at hand."""
        old = self._items.get(key)
        self._items[key] = obj
        for name, func in self._index_funcs.items():
            index = self._indices[name]
            old_values = () if old is None else self._last_values(name, func, key, old)
            values = self._values(name, func, key, obj)
            if old_values:
                self._leave(index, [value for value in old_values if value not in values], key)
            for value in values:
                index[value][key] = obj
        return old

    update = add
    """client-go's name for the same."""

    def delete(self, obj: T) -> T | None:
        """Removes what stands under the object's key; returns it."""
        return self.delete_key(obj.key)

    def delete_key(self, key: str) -> T | None:
        """Removes a key; returns what stood there, None when nothing did."""
        old = self._items.pop(key, None)
        if old is not None:
            for name, func in self._index_funcs.items():
                self._leave(self._indices[name], self._last_values(name, func, key, old), key)
        return old

    def replace(self, items: Iterable[T], resource_version: str = "") -> None:
        """Makes `items` the whole content. The resourceVersion is the list's; a plain store does not need it."""
        prepared = self.prepare()
        for obj in items:
            prepared.add(obj)
        self.swap(prepared)

    def prepare(self) -> "Indexer[T]":
        """An empty store with the same indexes, to be filled for `swap`."""
        prepared = type(self)()
        funcs = self._index_funcs.items()
        prepared.add_indexers({name: func for name, func in funcs if name != NAMESPACE_INDEX})
        return prepared

    def swap(self, prepared: "Indexer[T]") -> dict[str, T]:
        """Makes what is in `prepared` the whole content, at once; returns what was there."""
        old, self._items = self._items, prepared._items
        self._indices, self._holes = prepared._indices, prepared._holes
        for name in self._index_funcs.keys() - self._indices.keys():  # added since
            self._fill(name, self._index_funcs[name])
        return old

    def _fill(self, name: str, func: IndexFunc[T]) -> None:
        index = self._indices[name] = defaultdict(dict)
        for key, obj in self._items.items():
            for value in self._values(name, func, key, obj):
                index[value][key] = obj

    def holes(self) -> builtins.list[str]:
        """The indexes whose functions raised, with the objects for which they did, a line each."""
        return [self._incomplete(name) for name in sorted({index for index, _ in self._holes})]

    def _index(self, name: str) -> dict[str, dict[str, T]]:
        if self._holes and any(index == name for index, _ in self._holes):
            raise IndexIncomplete(self._incomplete(name))
        try:
            return self._indices[name]
        except KeyError:
            raise KeyError(f"index {name!r} was never added: add_indexer does it, before the first read") from None

    def _last_values(self, name: str, func: IndexFunc[T], key: str, old: T) -> tuple[str, ...]:
        """The values under which an object that is about to leave stands; a hole that it made is closed."""
        values = () if self._holes and (name, key) in self._holes else self._values(name, func, key, old)
        if self._holes:
            self._holes.discard((name, key))
        return values

    def _values(self, name: str, func: IndexFunc[T], key: str, obj: T) -> tuple[str, ...]:
        """An index function that raises, or names what cannot be a value, leaves a hole in its index: the object must
        still reach the store. A str is one value, not its letters."""
        try:
            values = func(obj)
            values = (values,) if isinstance(values, str) else tuple(values)
            if wrong := [value for value in values if not isinstance(value, str)]:
                raise TypeError(f"an index value is a str, not {wrong[0]!r}")
            return values
        except Exception:
            log.exception("index %s: no value for %s; the index cannot be read until that is repaired", name, key)
            self._holes.add((name, key))
            return ()

    def _incomplete(self, name: str) -> str:
        keys = shorten_keys(key for index, key in self._holes if index == name)
        return f"index {name} is incomplete, its function raised for {keys}"

    @staticmethod
    def _leave(index: dict[str, dict[str, T]], values: Iterable[str], key: str) -> None:
        for value in values:
            bucket = index.get(value)
            if bucket is not None and bucket.pop(key, None) is not None and not bucket:
                del index[value]


def is_version(obj: Object, meta: ObjectMeta) -> bool:
    """Reports whether this is the object's version; one that is unknown is always another, as for client-go."""
    return (obj.metadata.resource_version, obj.uid) == (meta.resource_version or None, meta.uid)


class ChangedInPlace(Exception):
    """A cached object is not what came from the server. Make another with `kubeloop.api.objects.edit`."""


class CheckedIndexer(Indexer[T]):
    """A store for tests that notices when one of its objects was changed in place (client-go's mutation detector): they
    are frozen, their lists and dicts are not (`obj.spec.words.append(…)`)."""

    def __init__(self) -> None:
        self._encoded: dict[str, bytes] = {}
        self._problems: list[str] = []
        # The changes of objects that have been replaced since.
        super().__init__()

    def put(self, key: str, obj: T) -> T | None:
        self._problems += self._find_changes(key)
        self._encoded[key] = msgspec.json.encode(obj)
        return super().put(key, obj)

    def delete_key(self, key: str) -> T | None:
        self._problems += self._find_changes(key)
        self._encoded.pop(key, None)
        return super().delete_key(key)

    def swap(self, prepared: Indexer[T]) -> dict[str, T]:
        self._problems += [line for key in self._items for line in self._find_changes(key)]
        old = super().swap(prepared)
        self._encoded = {key: msgspec.json.encode(obj) for key, obj in self._items.items()}
        return old

    def check(self, key: str) -> None:
        """Raises ChangedInPlace if the object of that key was changed."""
        for problem in self._find_changes(key):
            raise ChangedInPlace(problem)

    def changed(self) -> builtins.list[str]:
        return [*self._problems, *(line for key in self._items for line in self._find_changes(key))]

    def _find_changes(self, key: str) -> Iterator[str]:
        encoded, obj = self._encoded.get(key), self._items.get(key)
        if encoded is not None and (now := msgspec.json.encode(obj)) != encoded:
            path = _first_difference(msgspec.json.decode(encoded), msgspec.json.decode(now))
            yield f"{type(obj).__name__} {key} was changed in place: {path}"


def _first_difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            if old.get(name) != new.get(name):
                return f"{name}.{_first_difference(old.get(name), new.get(name))}".rstrip(".")
    return ""
