"""Nulls where a struct has none, read as Go reads them: the field keeps its default, an item is its type's zero value.

The API server stores a null that a client wrote into a custom resource, and writes some itself (`limits: null` of a
LimitRange without limits). A decoder refuses them; only then an object goes through here.
"""

from __future__ import annotations

import functools
from typing import Any

from msgspec import inspect

_SCALARS: dict[type[inspect.Type], Any] = {
    inspect.IntType: 0,
    inspect.FloatType: 0.0,
    inspect.BoolType: False,
    inspect.StrType: "",
}


def without_nulls(kind: type, value: Any) -> Any:
    """The JSON value of an object, for a decoder of `kind`. What is wrong in another way stays as it is."""
    return _filled(_described(kind), value)


@functools.cache
def _described(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _filled(kind: inspect.Type, value: Any) -> Any:
    if value is None:
        return _zero(kind)
    match kind:
        case inspect.UnionType(types=options):
            for option in options:
                value = _filled(option, value)
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            types = {field.encode_name: field.type for field in fields}
            value = {
                name: _filled(types[name], held) if name in types else held
                for name, held in value.items()
                if held is not None or name not in types or _takes_null(types[name])
            }
        case inspect.CollectionType(item_type=item) if isinstance(value, list):
            value = [_filled(item, held) for held in value]
        case inspect.DictType(value_type=item) if isinstance(value, dict):
            value = {name: _filled(item, held) for name, held in value.items()}
    return value


def _takes_null(kind: inspect.Type) -> bool:
    return _zero(kind) is None


def _zero(kind: inspect.Type) -> Any:
    match kind:
        case inspect.UnionType(types=options):
            zeros = [_zero(option) for option in options]
            # Of a quantity, a text or a number, it is the number.
            return None if None in zeros else next((zero for zero in zeros if zero == 0), zeros[0])
        case inspect.StructType() | inspect.DictType():
            return {}
        case inspect.CollectionType():
            return []
    return _SCALARS.get(type(kind))
