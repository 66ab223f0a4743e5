"""Bodies of requests, where a Python name (`backoff_limit`) is refused; the JSON patch of what `edit` made."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from kubeloop.api.meta import Struct
from kubeloop.api.objects import refuse_partly_declared, type_info


class UnknownName(NamedTuple):
    """A name in a body that the struct does not declare; `meant` is its field's name in JSON, if it is Python's."""

    path: str
    meant: str


def check_body(kind: type[Struct], body: Any) -> None:
    """Raises TypeError for a Python name in a body of `kind`, at any depth."""
    _refuse(kind, body)


def check_patch(kind: type[Struct], operations: Sequence[Mapping[str, Any]]) -> None:
    """Raises TypeError for a Python name in the paths or values of a JSON patch."""
    for operation in operations:
        for pointer in (operation.get("path"), operation.get("from")):
            body = operation.get("value") if pointer == operation.get("path") else None
            for part in reversed(str(pointer or "").split("/")[1:]):
                body = {part.replace("~1", "/").replace("~0", "~"): body}
            _refuse(kind, body)


def _refuse(kind: type[Struct], body: Any) -> None:
    for name in unknown_names(type_info(kind), body):
        if name.meant:
            raise TypeError(f"{name.path} is Python's name: in a body the field is {name.meant}")


def unknown_names(kind: inspect.Type, value: Any, path: str = "") -> Iterator[UnknownName]:
    """The names in a value that the structs of its type do not declare."""
    match kind:
        case inspect.UnionType(types=options):
            for option in options:
                yield from unknown_names(option, value, path)
        case inspect.StructType(cls=cls) if isinstance(value, Mapping):
            wire, python = _names(cls)
            for name, item_value in value.items():
                name_path = f"{path}.{name}" if path else str(name)
                if name in wire:
                    yield from unknown_names(wire[name], item_value, name_path)
                else:
                    yield UnknownName(name_path, python.get(name, ""))
        case inspect.CollectionType(item_type=item) | inspect.DictType(value_type=item):
            is_list = isinstance(value, list | tuple)
            items = enumerate(value) if is_list else value.items() if isinstance(value, Mapping) else ()
            for place, item_value in items:
                yield from unknown_names(item, item_value, f"{path}[{place!r}]")


@functools.cache
def _names(kind: type) -> tuple[dict[str, inspect.Type], dict[str, str]]:
    """Returns a struct's fields by their names in JSON, and these names by Python's."""
    fields = type_info(kind).fields  # type: ignore[attr-defined]
    wire = {field.encode_name: field.type for field in fields}
    return wire, {field.name: field.encode_name for field in fields if field.name not in wire}


Operation = dict[str, Any]
_ABSENT: Any = object()


def json_patch(old: Struct, new: Struct, sent: Mapping[str, Any]) -> list[Operation]:
    """Returns the operations that turn `old`, decoded from `sent`, into `new`. What the structs do not declare stays,
    in items of lists too. Raises PartlyDeclared where items that are declared in part are put in another order."""
    if type(old) is not type(new):
        raise TypeError(f"{type(old).__name__} and {type(new).__name__} are not versions of one object")
    return list(_struct(type(old).__name__, old, new, sent, ""))


def _struct(label: str, old: Struct, new: Struct, sent: Mapping[str, Any], path: str) -> Iterator[Operation]:
    for field in msgspec.structs.fields(old):
        old_value, new_value = getattr(old, field.name), getattr(new, field.name)
        if old_value != new_value:
            name, field_path = f"{label}.{field.name}", _join_path(path, field.encode_name)
            yield from _value(name, old_value, new_value, sent.get(field.encode_name, _ABSENT), field_path)


def _value(label: str, old: Any, new: Any, sent: Any, path: str) -> Iterator[Operation]:
    """Returns the operations at `path`; `sent` is the value that the server has there, or _ABSENT."""
    if new is None:
        if sent is not _ABSENT:
            yield {"op": "remove", "path": path}
    elif isinstance(old, Struct) and isinstance(new, Struct) and isinstance(sent, Mapping):
        yield from _struct(label, old, new, sent, path)
    elif isinstance(old, Mapping) and isinstance(new, Mapping) and isinstance(sent, Mapping):
        for key in [key for key in old if key not in new]:
            yield {"op": "remove", "path": _join_path(path, key)}
        for key, value in new.items():
            if key not in old or old[key] != value:
                name, key_path = f"{label}[{key!r}]", _join_path(path, key)
                yield from _value(name, old.get(key), value, sent.get(key, _ABSENT), key_path)
    elif _is_list(old) and _is_list(new) and _is_list(sent) and len(old) == len(sent):
        yield from _list(label, old, new, sent, path)
    else:
        yield {"op": "add" if sent is _ABSENT else "replace", "path": path, "value": msgspec.to_builtins(new)}


def _list(label: str, old: Sequence[Any], new: Sequence[Any], sent: Sequence[Any], path: str) -> Iterator[Operation]:
    """Returns the operations on a list: equal items stay, others are removed, added, or changed at their index."""
    if (unchanged := _places(new, old)) is not None:
        for index in sorted(set(range(len(old))) - unchanged, reverse=True):
            yield {"op": "remove", "path": _join_path(path, str(index))}
        return
    stable = _places(old, new)
    if stable is None:
        # An item that moved takes what its struct does not declare along: that is not known here.
        if len(new) < len(old) or any(item in old and old[index] != item for index, item in enumerate(new[: len(old)])):
            refuse_partly_declared(label, old)
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=False)):
            if old_item != new_item:
                yield from _value(f"{label}[{index}]", old_item, new_item, sent[index], _join_path(path, str(index)))
        for index in range(len(old) - 1, len(new) - 1, -1):
            yield {"op": "remove", "path": _join_path(path, str(index))}
        stable = set(range(len(old)))
    for index, item in enumerate(new):
        if index not in stable:
            yield {"op": "add", "path": _join_path(path, str(index)), "value": msgspec.to_builtins(item)}


def _places(items: Sequence[Any], sequence: Sequence[Any]) -> set[int] | None:
    """Returns the items' indexes in the other list, or None if it lacks one or has another order."""
    places: set[int] = set()
    candidates = iter(enumerate(sequence))
    for item in items:
        place = next((index for index, candidate in candidates if candidate == item), None)
        if place is None:
            return None
        places.add(place)
    return places


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _join_path(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
