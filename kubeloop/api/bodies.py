"""Bodies of requests are mappings in JSON's names.

A field in Python's name (`backoff_limit`) would be dropped by the server, with a warning in the log, and what it says
would never be done: it is refused where the struct knows the name in JSON."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import inspect

from kubeloop.api.meta import Struct

type_info = functools.cache(inspect.type_info)


class UnknownName(NamedTuple):
    """A name in a body that the struct does not declare; `meant` is its field's name in JSON, if it is Python's."""

    path: str
    meant: str


def check_body(kind: type[Struct], body: Any) -> None:
    """Raises TypeError for a Python name in a body of `kind`, at any depth."""
    _refuse(unknown_names(kind, body))


def check_patch(kind: type[Struct], operations: Sequence[Mapping[str, Any]]) -> None:
    """Raises TypeError for a Python name in the paths or values of a JSON patch."""
    for operation in operations:
        for pointer in (operation.get("path"), operation.get("from")):
            body = operation.get("value") if pointer == operation.get("path") else None
            for part in reversed(str(pointer or "").split("/")[1:]):
                body = {part.replace("~1", "/").replace("~0", "~"): body}
            _refuse(unknown_names(kind, body))


def unknown_names(kind: type[Struct], body: Any) -> Iterator[UnknownName]:
    """The names in a body that the struct does not declare, where it declares any."""
    return _unknown_names(type_info(kind), body, "")


def _refuse(names: Iterator[UnknownName]) -> None:
    for name in names:
        if name.meant:
            raise TypeError(f"{name.path} is Python's name: in a body the field is {name.meant}")


def _unknown_names(kind: inspect.Type, value: Any, path: str) -> Iterator[UnknownName]:
    match kind:
        case inspect.UnionType(types=options):
            for option in options:
                yield from _unknown_names(option, value, path)
        case inspect.StructType(cls=cls) if isinstance(value, Mapping):
            wire, python = _names(cls)
            for name, item_value in value.items():
                name_path = f"{path}.{name}" if path else str(name)
                if name in wire:
                    yield from _unknown_names(wire[name], item_value, name_path)
                else:
                    yield UnknownName(name_path, python.get(name, ""))
        case inspect.CollectionType(item_type=item) if isinstance(value, list | tuple):
            for number, item_value in enumerate(value):
                yield from _unknown_names(item, item_value, f"{path}[{number}]")
        case inspect.CollectionType(item_type=item) if isinstance(value, Mapping):
            for place, item_value in value.items():  # of a JSON pointer
                yield from _unknown_names(item, item_value, f"{path}.{place}")
        case inspect.DictType(value_type=item) if isinstance(value, Mapping):
            for name, item_value in value.items():
                yield from _unknown_names(item, item_value, f"{path}[{name!r}]")


@functools.cache
def _names(kind: type) -> tuple[dict[str, inspect.Type], dict[str, str]]:
    """Returns a struct's fields by their names in JSON, and these names by Python's."""
    fields = type_info(kind).fields  # type: ignore[attr-defined]
    wire = {field.encode_name: field.type for field in fields}
    return wire, {field.name: field.encode_name for field in fields if field.name not in wire}
