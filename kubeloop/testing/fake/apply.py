"""Server-side apply on the fake: which manager wants which fields, and what that makes of an object.

Lists are one field, as in custom resources that say nothing else; finalizers and owner references are merged item by
item. managedFields are not shown."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from kubeloop.client.errors import Conflict
from kubeloop.testing.fake.patches import Raw

Path = tuple[str, ...]
Fields = dict[Path, Any]
"""The values of an object by their paths."""
Managers = dict[str, Fields]
"""The fields that each manager applied last; BEFORE has what was there when the first one came."""

BEFORE = "before-first-apply"
_FINALIZERS, _OWNERS = ("metadata", "finalizers"), ("metadata", "ownerReferences")
_NOT_APPLIED = {("apiVersion",), ("kind",)}
_MERGED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_ABSENT = object()


def applied(current: Raw, body: Raw, manager: str, managers: Managers, *, force: bool) -> tuple[Raw, Managers]:
    """Returns `current` with the fields that `manager` applies now, without those that it applied before, and the
    fields of each manager then. Raises Conflict where another has set a field otherwise, unless `force` is given."""
    current_fields, desired = dict(_fields(current)), dict(_fields(body))
    if current and not managers:
        managers = {BEFORE: current_fields}
    own_fields, other_managers = (
        managers.get(manager, {}),
        {name: fields for name, fields in managers.items() if name != manager},
    )
    if not force:
        _check_conflicts(current_fields, desired, own_fields, other_managers)
    dropped = [
        path
        for path, value in own_fields.items()
        if path not in desired and current_fields.get(path, _ABSENT) == value
        if not any(fields.get(path, _ABSENT) == value for fields in other_managers.values())
    ]
    new = copy.deepcopy(current)
    for path in dropped:
        _remove(new, path)
    for path, value in desired.items():
        _set(new, path, value)
    remaining = {
        name: {path: value for path, value in fields.items() if desired.get(path, value) == value}
        for name, fields in other_managers.items()
    }
    return new, {**remaining, manager: desired}


def _check_conflicts(have: Fields, desired: Fields, own_fields: Fields, other_managers: Managers) -> None:
    conflicts: dict[str, list[str]] = {}
    for path, value in desired.items():
        now = have.get(path, _ABSENT)
        if now is _ABSENT or now == value or value == {}:
            continue
        holders = [name for name, fields in other_managers.items() if fields.get(path, _ABSENT) == now]
        if not holders and own_fields.get(path, _ABSENT) != now:
            holders = ["unknown"]  # written meanwhile by an update or patch
        for name in holders:
            conflicts.setdefault(name, []).append("." + ".".join(path))
    if conflicts:
        number = sum(map(len, conflicts.values()))
        details = "; ".join(f'conflict with "{name}": {", ".join(paths)}' for name, paths in conflicts.items())
        raise Conflict(f"Apply failed with {number} conflict{'s' * (number > 1)}: {details}")


def _fields(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if path in _NOT_APPLIED or (path[:1] == ("metadata",) and len(path) == 2 and path[1] not in _MERGED_METADATA):
        return
    if path in (_FINALIZERS, _OWNERS):
        for item in value or ():
            yield (*path, _item_key(item)), item
    elif isinstance(value, Mapping) and (value or not path):
        for name, child in value.items():
            yield from _fields(child, (*path, name))
    elif value is not None:
        yield path, value


def _item_key(item: Any) -> str:
    return str(item["uid"]) if isinstance(item, Mapping) else item


def _set(document: Raw, path: Path, value: Any) -> None:
    if path[:2] in (_FINALIZERS, _OWNERS):
        items = document.setdefault("metadata", {}).setdefault(path[1], [])
        items[:] = [item for item in items if _item_key(item) != path[2]] + [copy.deepcopy(value)]
        return
    for name in path[:-1]:
        if not isinstance(document.get(name), dict):
            document[name] = {}
        document = document[name]
    if value == {} and isinstance(document.get(path[-1]), dict):
        return
    document[path[-1]] = copy.deepcopy(value)


def _remove(document: Raw, path: Path) -> None:
    """Removes a field, with the maps that are empty then."""
    if path[:2] in (_FINALIZERS, _OWNERS):
        items = document["metadata"][path[1]]
        items[:] = [item for item in items if _item_key(item) != path[2]]
        if not items:
            del document["metadata"][path[1]]
        return
    parents = [document]
    for name in path[:-1]:
        parents.append(parents[-1][name])
    for parent, name in zip(reversed(parents), reversed(path), strict=True):
        del parent[name]
        if parent:
            return
