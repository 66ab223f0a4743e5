"""Compares structs with the schemas of a CRD or a server: a name that is misspelt is always empty, and nothing says so.

assert check_struct(Thing, crd_schema(yaml.safe_load(crd_file), "v1")) == []
assert await check_served(client, SERVICES) == []"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import inspect

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.discovery import Definitions, Schema, resolved, served_schema

_TYPES: dict[type[inspect.Type], str] = {
    inspect.StrType: "string", inspect.IntType: "integer", inspect.FloatType: "number", inspect.BoolType: "boolean",
    inspect.ListType: "array", inspect.VarTupleType: "array",
    inspect.DictType: "object", inspect.StructType: "object",
}  # fmt: skip


def crd_schema(definition: Schema, version: str) -> Schema:
    """The schema of a version of a CustomResourceDefinition. Raises KeyError or ValueError where it has none."""
    (served,) = (served for served in definition["spec"]["versions"] if served["name"] == version)
    schema: Schema = served["schema"]["openAPIV3Schema"]
    return schema


def check_struct(kind: type[Object], schema: Schema, definitions: Definitions | None = None) -> list[str]:
    """Returns the errors of the struct, a line each: fields that the schema does not have or has with another type, and
    fields of the schema that a struct lacks which says that it declares all (`whole`; it may declare more: Condition
    has what the conditions of many kinds have).

    `definitions`: what the schema's references name. The metadata of a CRD's schema has no fields and is not compared.
    """
    return list(_Comparison(definitions or {}).compared("", inspect.type_info(kind), schema))


async def check_served(client: Client, resource: Resource[Any]) -> list[str]:
    """Checks as check_struct does, with the server's schema. Raises ApiError, KeyError where the server has none."""
    schema, definitions = await served_schema(client.transport, resource.api_version, resource.kind)
    return check_struct(resource.type, schema, definitions)


@dataclass
class _Comparison:
    """The comparison of a kind with its schema; a struct in several places of it is compared at the first."""

    definitions: Definitions
    seen: set[tuple[type, int]] = field(default_factory=set)

    def compared(self, path: str, kind: inspect.Type, schema: Schema) -> Iterator[str]:
        schema = resolved(schema, self.definitions)
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        expected, declared_types = _expected(schema), {_TYPES[type(o)] for o in kinds if type(o) in _TYPES}
        if expected and declared_types and not expected & declared_types:
            schema_types, struct_types = "|".join(sorted(expected)), "|".join(sorted(declared_types))
            yield f"{path} is declared as {struct_types}, the schema says {schema_types}"
            return
        for option in kinds:
            if isinstance(option, inspect.StructType) and schema.get("properties"):
                yield from self._fields(path, option, schema["properties"])
            elif isinstance(option, inspect.CollectionType) and "items" in schema:
                yield from self.compared(f"{path}[]", option.item_type, schema["items"])
            elif isinstance(option, inspect.DictType) and isinstance(schema.get("additionalProperties"), Mapping):
                yield from self.compared(f"{path}.*", option.value_type, schema["additionalProperties"])

    def _fields(self, path: str, kind: inspect.StructType, properties: Mapping[str, Schema]) -> Iterator[str]:
        if (kind.cls, id(properties)) in self.seen:
            return
        self.seen.add((kind.cls, id(properties)))
        prefix = f"{path}." if path else ""
        whole = issubclass(kind.cls, Struct) and kind.cls.whole
        alike = {name.lower(): name for name in properties}
        for part in kind.fields:
            name = part.encode_name
            if name in properties:
                yield from self.compared(prefix + name, part.type, properties[name])
            elif not whole:
                suggestion = alike.get(name.lower())
                yield f"{prefix}{name} is not in the schema" + (f", which has {suggestion}" if suggestion else "")
        if whole:
            for name in sorted(properties.keys() - {part.encode_name for part in kind.fields}):
                yield f"{kind.cls.__name__} says that it declares all, and lacks {prefix}{name}"


def _expected(schema: Schema) -> set[str]:
    """The JSON types that the schema takes, none where it does not say it."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"integer", "string"}
    options = [schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())]
    names = {option["type"] for option in options if isinstance(option.get("type"), str)}
    return names | ({"integer"} if "number" in names else set())
