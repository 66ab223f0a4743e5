"""A store for tests that notices when one of its objects was changed in place (client-go's cache mutation detector).

Objects are frozen, their lists and dicts are not: `obj.spec.words.append(…)` changes what every reader gets, and then
`update` finds no difference. To rule it out at every read would cost each reader copies; a test finds it for nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import msgspec

from kubeloop.cache.store import Indexer, T


class ChangedInPlace(Exception):
    """A cached object is not what came from the server. Make another with `kubeloop.api.objects.edit`."""


class CheckedIndexer(Indexer[T]):
    """An Indexer that keeps what every object was."""

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
        """Returns a line for every object that was changed."""
        return [*self._problems, *(line for key in self._items for line in self._find_changes(key))]

    def _find_changes(self, key: str) -> Iterator[str]:
        encoded, obj = self._encoded.get(key), self._items.get(key)
        if encoded is not None and (now := msgspec.json.encode(obj)) != encoded:
            path = _first_difference(msgspec.json.decode(encoded), msgspec.json.decode(now))
            yield f"{type(obj).__name__} {key} was changed in place: {path}"


def _first_difference(old: Any, new: Any) -> str:
    """The path to the first difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            if old.get(name) != new.get(name):
                return f"{name}.{_first_difference(old.get(name), new.get(name))}".rstrip(".")
    return ""
