"""JSON that Go reads and msgspec alone does not: nested deeper than it follows, or null where a struct has none.

msgspec goes by Python's recursion limit, 1,000 levels in 3.11 and some 10,000 later. Kubernetes takes 10,000, so a
tenant can write an object that no decoder here, or no recursive function, would get through. No field of an object is
anywhere near MAX_DEPTH: what is deeper is cut off and decoded without.

A null is read as Go reads it: the field keeps its default, an item is its type's zero value. The API server stores a
null that a client wrote into a custom resource, and writes some itself (`limits: null` of a LimitRange). A decoder
refuses them; only then an object goes through `without_nulls`."""

import functools
import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from kubeloop.api.objects import inner_types, type_info

T = TypeVar("T")
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors that a decoder raises for bytes of another type."""
MAX_DEPTH: Final = 100
"""Levels that are kept."""
_COUNTED: Final = 500
"""Levels without a schema above which they are cut. Fewer are what every recursive function gets through."""
_CONTAINERS: Final = (dict, list, msgspec.Struct)
CUT: Final = b"null\r\n\t\r\n"
"""The value in place of something that was cut off: null, and whitespace that tells it from a null that was there."""
_BRACKETS: Final = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[{]++|[\]}]++)', re.DOTALL)
"""A run of brackets and whatever stands before it; those within strings are skipped."""
_SCALARS: Final = {inspect.IntType: 0, inspect.FloatType: 0.0, inspect.BoolType: False, inspect.StrType: ""}


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decodes `body`, however deep it is nested. Raises UNDECODABLE."""
    try:
        return decoder.decode(body)
    except RecursionError:
        return decoder.decode(shallow(bytes(body)))


def is_deep(obj: object) -> bool:
    """Reports whether an object keeps more than _COUNTED levels below its fields without a schema."""
    level: list[Any] = [obj]
    for _ in range(_COUNTED):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return False
    return True


def _parts(value: Any) -> list[Any]:
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in open_fields(type(value))]
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, _CONTAINERS)]


@functools.cache
def open_fields(kind: type) -> tuple[str, ...]:
    """Returns the fields that keep content without a fixed schema, nested as deep as a tenant likes."""
    return tuple(field.name for field in type_info(kind).fields if _holds_any(field.type, frozenset({kind})))  # type: ignore[attr-defined]


def _holds_any(kind: inspect.Type, above: frozenset[type]) -> bool:
    if isinstance(kind, inspect.StructType):
        if kind.cls in above:
            return True
        above |= {kind.cls}
    return isinstance(kind, inspect.AnyType) or any(_holds_any(inner, above) for inner in inner_types(kind))


def shallow(body: bytes) -> bytes:
    """The same JSON with CUT in place of every value that is nested deeper than MAX_DEPTH. One pass without recursion:
    about 10 ns a byte, 0.2 s for the worst object that fits into etcd."""
    chunks: list[bytes] = []
    depth = start = 0
    for match in _BRACKETS.finditer(body):
        begin, end = match.span(1)
        run = end - begin
        if body[begin] in b"[{":
            if depth <= MAX_DEPTH < depth + run:
                chunks.append(body[start : begin + MAX_DEPTH - depth])
            depth += run
        else:
            if depth - run <= MAX_DEPTH < depth:
                chunks.append(CUT)
                start = begin + depth - MAX_DEPTH
            depth -= run
    if depth <= MAX_DEPTH:
        chunks.append(body[start:])
    return b"".join(chunks)


def last_item_end(items: bytes | bytearray) -> int:
    """Returns where the last object with a comma behind it ends in a list's items, which may be cut off, or 0."""
    depth = last = end = 0
    while match := _BRACKETS.match(items, end):
        begin, end = match.span(1)
        depth += end - begin if items[begin] in b"[{" else begin - end
        if depth == 0 and items[end : end + 1] == b",":
            last = end
    return last


def without_nulls(kind: type, value: Any) -> Any:
    """The JSON value of an object, for a decoder of `kind`. What is wrong in another way stays as it is."""
    return _fill(type_info(kind), value)


def _fill(kind: inspect.Type, value: Any) -> Any:
    if value is None:
        return _zero(kind)
    match kind:
        case inspect.UnionType(types=options):
            for option in options:
                value = _fill(option, value)
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            types = {field.encode_name: field.type for field in fields}
            value = {
                name: _fill(types[name], element) if name in types else element
                for name, element in value.items()
                if element is not None or name not in types or _zero(types[name]) is None
            }
        case inspect.CollectionType(item_type=item) if isinstance(value, list):
            value = [_fill(item, element) for element in value]
        case inspect.DictType(value_type=item) if isinstance(value, dict):
            value = {name: _fill(item, element) for name, element in value.items()}
    return value


def _zero(kind: inspect.Type) -> Any:
    """Returns the value that a null stands for, or None if the type takes a null."""
    match kind:
        case inspect.UnionType(types=options):
            zeros = [_zero(option) for option in options]
            # A quantity, a text or a number: a null is the number.
            return None if None in zeros else next((zero for zero in zeros if zero == 0), zeros[0])
        case inspect.StructType() | inspect.DictType():
            return {}
        case inspect.CollectionType():
            return []
    return _SCALARS.get(type(kind))
