"""Generator of structs' source text from a schema."""

import json
import keyword
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubeloop.api.meta import Condition, LabelSelector, Object, ObjectMeta, OwnerReference, Struct, wire_name
from kubeloop.client.discovery import Definitions, Schema, reference, resolved

_TEXT = 76
"""Characters that a struct's docstring has."""
_WORD = re.compile(r"[A-Z]{2,}s?(?![a-z])|[A-Z]{2,}(?=[A-Z][a-z])|[A-Z]+[a-z0-9]*|[a-z0-9]+")
_TAKEN = {name for name in dir(Object) if not name.startswith("_")} | {"whole"}
_SCALARS = {"string": ("str", '""'), "integer": ("int", "0"), "number": ("float", "0.0"), "boolean": ("bool", "False")}
_META = {struct.__name__ for struct in (Condition, LabelSelector, Object, ObjectMeta, OwnerReference, Struct)}
_READY = {
    "LabelSelector": {"matchLabels", "matchExpressions"},
    "OwnerReference": {"apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"},
    "Condition": {field.encode_name for field in msgspec.structs.fields(Condition)},
}
"""Structs of `kubeloop.api.meta` by the fields that they stand for."""


@dataclass(frozen=True)
class Kind:
    """A kind with its schema, and the definitions that the schema's references name."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    status_subresource: bool
    schema: Schema
    definitions: Definitions = field(default_factory=dict)


def kind_of_crd(definition: Mapping[str, Any]) -> Kind:
    """Returns the kind of a CustomResourceDefinition, in its storage version. Raises KeyError or ValueError."""
    spec = definition["spec"]
    (version,) = (version for version in spec["versions"] if version["storage"])
    about = (spec["group"], version["name"], spec["names"]["plural"], spec["names"]["kind"])
    has_status = "status" in (version.get("subresources") or {})
    return Kind(*about, spec["scope"] == "Namespaced", has_status, version["schema"]["openAPIV3Schema"])


def structs(kinds: Sequence[Kind], fields: Iterable[str] = ()) -> str:
    """A module, to be formatted: a struct for each kind and each part of it, and their Resources.

    `fields` are paths of JSON names (`spec.publicKey`, `KeyPair.status`): of the kinds that they name, or of all, only
    these are written, with what is below them. Raises ValueError for a path that no kind has."""
    is_written, module = dict.fromkeys(fields, False), _Module()
    for kind in kinds:
        own_paths = [p for p in is_written if p.partition(".")[0] == kind.kind or not p[:1].isupper()]
        paths = {tuple(p.removeprefix(f"{kind.kind}.").split(".")): p for p in own_paths}
        written_paths = module.write(kind, frozenset(paths))
        is_written.update({p: True for path, p in paths.items() if path in written_paths})
    if missing := [path for path, written in is_written.items() if not written]:
        raise ValueError(f"not in the schema: {', '.join(missing)}")
    return module.text()


_HEAD = '''"""Written by `kubeloop structs`."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from kubeloop.api.meta import {}, RawQuantity, RawResourceList
from kubeloop.api.registry import Resource'''.replace("{}, Raw", f"{', '.join(sorted(_META))}, Raw")

Paths = frozenset[tuple[str, ...]]


class _Module:
    """The text that is written, kind by kind."""

    def __init__(self) -> None:
        self._classes: dict[str, list[str]] = {}
        self._names_by_schema: dict[object, str] = {}
        self._resources: list[str] = []

    def text(self) -> str:
        classes = ["\n".join(lines) for lines in self._classes.values()]
        return "\n\n\n".join([_HEAD, *classes, "\n".join(self._resources)]) + "\n"

    def write(self, kind: Kind, paths: Paths) -> set[tuple[str, ...]]:
        """Adds a kind, and returns the paths that were written."""
        self._kind, self._written_paths = kind, set[tuple[str, ...]]()
        name = self._struct((), kind.schema, paths, base="Object")
        arguments = [*map(json.dumps, (kind.group, kind.version, kind.plural, kind.kind)), name]
        arguments += [] if kind.namespaced else ["namespaced=False"]
        arguments.append(f"status_subresource={kind.status_subresource}")
        self._resources.append(f"{_constant(kind)} = Resource({', '.join(arguments)})")
        return self._written_paths

    def _struct(self, path: tuple[str, ...], schema: Schema, paths: Paths, base: str = "Struct") -> str:
        """The name of a schema's struct, written when it is first met."""
        schema_name = reference(schema).rpartition(".")[2]
        schema = resolved(schema, self._kind.definitions)
        key = (schema_name or _without_texts(schema), paths, base)
        if (name := self._names_by_schema.get(key)) is not None:
            self._written_paths |= {path + inner_path for inner_path in paths}
            return name
        name = self._names_by_schema[key] = self._name(path, schema_name)
        self._classes[name] = []  # taken
        lines = [f"class {name}({base}):"]
        if text := _sentence(schema):
            lines += [f'    """{text}"""', ""]
        skipped = ("apiVersion", "kind", "metadata") if base == "Object" else ()
        properties = {name: part for name, part in schema.get("properties", {}).items() if name not in skipped}
        property_names = [wire for wire in properties if not paths or any(p[0] == wire for p in paths)]
        if base == "Struct" and not paths:
            lines += ["    whole: ClassVar[bool] = True", ""]
        names = set(_TAKEN if base == "Object" else ("whole",))
        for wire in property_names:
            inner_paths = frozenset(p[1:] for p in paths if p[0] == wire)
            self._written_paths |= {(*path, wire)}
            top = base == "Object" and wire in ("spec", "status")
            names.add(python := _python_name(wire, names))
            kind, zero = self._type((*path, wire), properties[wire], frozenset() if () in inner_paths else inner_paths)
            if not top and wire not in schema.get("required", ()) and kind != "Any":
                kind, zero = f"{kind} | None", "None"
            lines.append(f"    {python}: {kind} = {_default(zero, '' if wire_name(python) == wire else wire)}")
        del self._classes[name]  # parts before the whole: they are defaults
        self._classes[name] = lines if len(lines) > 1 else [*lines, "    pass"]
        return name

    def _type(self, path: tuple[str, ...], schema: Schema, paths: Paths) -> tuple[str, str]:
        plain = resolved(schema, self._kind.definitions)
        is_int_or_string = plain.get("x-kubernetes-int-or-string") or plain.get("format") == "int-or-string"
        if reference(schema).endswith(".Quantity") or (is_int_or_string and "KMGTP" in plain.get("pattern", "")):
            return "RawQuantity", '""'
        if is_int_or_string:
            return "int | str", '""'
        if plain.get("type") in _SCALARS:
            return _SCALARS[plain["type"]]
        if "items" in plain:
            return f"list[{self._type(path, plain['items'], paths)[0]}]", "default_factory=list"
        if plain.get("properties"):
            name = self._ready(plain) or self._struct(path, schema, paths)
            return name, f"{name}()"
        if path[-1] == "metadata" and plain.get("type") == "object":
            return "ObjectMeta", "ObjectMeta()"
        if isinstance(plain.get("additionalProperties"), Mapping):
            inner = self._type(path, plain["additionalProperties"], paths)[0]
            kind = "RawResourceList" if inner == "RawQuantity" else f"dict[str, {inner}]"
            return kind, "default_factory=dict"
        if plain.get("type") == "object" or plain.get("x-kubernetes-preserve-unknown-fields"):
            return "dict[str, Any]", "default_factory=dict"
        return "Any", "None"

    def _ready(self, schema: Schema) -> str:
        names = set(schema["properties"])
        if "creationTimestamp" in names:
            return "ObjectMeta"
        if names == _READY["LabelSelector"] or {"uid", "blockOwnerDeletion"} <= names <= _READY["OwnerReference"]:
            return "LabelSelector" if "matchLabels" in names else "OwnerReference"
        return "Condition" if {"type", "status"} < names <= _READY["Condition"] else ""

    def _name(self, path: tuple[str, ...], schema_name: str) -> str:
        """The shortest that is free: the schema's own, the kind's with the field's, with more and more of the path."""
        parts = [part[:1].upper() + part[1:] for part in path]
        kind = self._kind.kind
        names = [schema_name, *(kind + "".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))]
        names = [name for name in names if name.isidentifier()] if path else [kind]
        free_names = (name for name in names if name not in (*self._classes, *_META))
        return next(free_names, names[-1])


def _python_name(wire: str, used_names: Collection[str]) -> str:
    name = "_".join(_WORD.findall(wire)).lower()
    name = name if name.isidentifier() else f"field_{name}"
    while keyword.iskeyword(name) or name in used_names:
        name += "_"
    return name


def _default(zero: str, wire: str) -> str:
    """Returns the source of a field's default; `wire` is its name in JSON where that is not derived."""
    factory = zero.startswith("default_factory")
    if not wire and not factory:
        return zero
    options = [zero if factory else f"default={zero}", *([f"name={json.dumps(wire)}"] if wire else [])]
    return f"msgspec.field({', '.join(options)})"


def _without_texts(schema: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items() if not (k == "description" and isinstance(v, str))}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return json.dumps(plain(schema), sort_keys=True)


def _sentence(schema: Schema) -> str:
    """The first sentence of the schema's text, on one line."""
    text = " ".join(schema.get("description", "").split()).replace("\\", "").replace('"', "'")
    text = re.split(r"(?<=[.])\s", text, maxsplit=1)[0]
    return text if len(text) <= _TEXT else text[: _TEXT - 1].rsplit(" ", 1)[0] + "…"


def _constant(kind: Kind) -> str:
    """Returns the constant's name: KEY_PAIRS of KeyPair and keypairs."""
    name, singular = "_".join(_WORD.findall(kind.kind)).upper(), kind.kind.lower()
    if kind.plural.startswith(singular):
        return name + kind.plural[len(singular) :].upper()
    return name[:-1] + "IES" if kind.plural == singular[:-1] + "ies" else name + "S"
