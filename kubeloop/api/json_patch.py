"""The JSON patch (RFC 6902) that makes of an object what `edit` made of it: for mutating webhooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kubeloop.api.meta import Struct
from kubeloop.api.objects import refuse_partly_declared

Operation = dict[str, Any]

_ABSENT: Any = object()


def json_patch(old: Struct, new: Struct, sent: Mapping[str, Any]) -> list[Operation]:
    """Returns the operations that turn `old`, decoded from `sent`, into `new`. What the structs do not declare stays as
    it is, in items of lists too. Raises PartlyDeclared where items that are declared in part are put in another
    order."""
    if type(old) is not type(new):
        raise TypeError(f"{type(old).__name__} and {type(new).__name__} are not versions of one object")
    return list(_struct(type(old).__name__, old, new, sent, ""))


def _struct(label: str, old: Struct, new: Struct, sent: Mapping[str, Any], path: str) -> Iterator[Operation]:
    for field in msgspec.structs.fields(old):
        was, now = getattr(old, field.name), getattr(new, field.name)
        if was != now:
            name = field.encode_name
            yield from _value(f"{label}.{field.name}", was, now, sent.get(name, _ABSENT), _below(path, name))


def _value(label: str, was: Any, now: Any, sent: Any, path: str) -> Iterator[Operation]:
    """Returns the operations at `path`; `sent` is the value that the server has there, or _ABSENT."""
    if now is None:
        if sent is not _ABSENT:
            yield {"op": "remove", "path": path}
    elif isinstance(was, Struct) and isinstance(now, Struct) and isinstance(sent, Mapping):
        yield from _struct(label, was, now, sent, path)
    elif isinstance(was, Mapping) and isinstance(now, Mapping) and isinstance(sent, Mapping):
        for key in [key for key in was if key not in now]:
            yield {"op": "remove", "path": _below(path, key)}
        for key, value in now.items():
            if key not in was or was[key] != value:
                yield from _value(f"{label}[{key!r}]", was.get(key), value, sent.get(key, _ABSENT), _below(path, key))
    elif _is_list(was) and _is_list(now) and _is_list(sent) and len(was) == len(sent):
        yield from _list(label, was, now, sent, path)
    else:
        yield {"op": "add" if sent is _ABSENT else "replace", "path": path, "value": msgspec.to_builtins(now)}


def _list(label: str, was: Sequence[Any], now: Sequence[Any], sent: Sequence[Any], path: str) -> Iterator[Operation]:
    """Items that are equal stay; others are removed, added, or changed where they stand."""
    if (unchanged := _places(now, was)) is not None:
        for index in sorted(set(range(len(was))) - unchanged, reverse=True):
            yield {"op": "remove", "path": _below(path, str(index))}
        return
    stayed = _places(was, now)
    if stayed is None:
        # An item that moved takes what its struct does not declare along: that is not known here.
        if len(now) < len(was) or any(item in was and was[index] != item for index, item in enumerate(now[: len(was)])):
            refuse_partly_declared(label, was)
        for index, (old_item, new_item) in enumerate(zip(was, now, strict=False)):
            if old_item != new_item:
                yield from _value(f"{label}[{index}]", old_item, new_item, sent[index], _below(path, str(index)))
        for index in range(len(was) - 1, len(now) - 1, -1):
            yield {"op": "remove", "path": _below(path, str(index))}
        stayed = set(range(len(was)))
    for index, item in enumerate(now):
        if index not in stayed:
            yield {"op": "add", "path": _below(path, str(index)), "value": msgspec.to_builtins(item)}


def _places(items: Sequence[Any], among: Sequence[Any]) -> set[int] | None:
    """Returns the items' indexes in the other list, or None if it lacks one or has another order."""
    places: set[int] = set()
    ahead = iter(enumerate(among))
    for item in items:
        place = next((index for index, candidate in ahead if candidate == item), None)
        if place is None:
            return None
        places.add(place)
    return places


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _below(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
