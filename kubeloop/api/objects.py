"""Helpers for objects that need no request: keys, conditions, owner references, and changes.

Objects are frozen and shared, so a change is a new object (`edit`), where Go has DeepCopy and assignments. Two differ
in fields that their structs declare: what a struct does not declare is never written, nor lost."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from kubeloop.api.meta import Condition, Object, OwnerReference, Struct, now_rfc3339, wire_name
from kubeloop.api.registry import kind_of

S = TypeVar("S", bound=Struct)
Patch = dict[str, Any]
_WRITABLE_METADATA = ("labels", "annotations", "finalizers", "owner_references")
type_info: Callable[[Any], inspect.Type] = functools.cache(inspect.type_info)


def inner_types(kind: inspect.Type) -> Iterable[inspect.Type]:
    """Returns the types of a struct's fields, of a collection's items, of a dict's values, or of a union."""
    match kind:
        case inspect.StructType(fields=fields):
            return [field.type for field in fields]
        case inspect.UnionType(types=options):
            return options
        case inspect.CollectionType(item_type=item) | inspect.DictType(value_type=item):
            return (item,)
    return ()


def split_key(key: str) -> tuple[str, str]:
    """Splits a key as client-go's SplitMetaNamespaceKey: `ns/name` to (ns, name), `name` to ("", name)."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def set_condition(
    conditions: Sequence[Condition] | None,
    type: str,
    status: str,
    *,
    reason: str | None = None,
    message: str | None = None,
    now: str | None = None,
    last_update: bool = False,
) -> list[Condition]:
    """The conditions with this one in the place of its type (wrangler's condition.Cond, meta.SetStatusCondition).
    lastTransitionTime is `now` (RFC 3339; default: this moment) when the status changes; lastUpdateTime when anything
    does, in a condition that has one or with `last_update`: wrangler's kinds have it, metav1.Condition not."""
    moment, conditions = now or now_rfc3339(), list(conditions or ())
    current = find_condition(conditions, type) or Condition(type=type)
    changes: dict[str, Any] = {"status": status, "reason": reason, "message": message}
    if current in conditions and all(getattr(current, name) == value for name, value in changes.items()):
        return conditions
    if current.status != status:
        changes["last_transition_time"] = moment
    if last_update or current.last_update_time:
        changes["last_update_time"] = moment
    condition = msgspec.structs.replace(current, **changes)
    if current not in conditions:
        return [*conditions, condition]
    return [condition if item is current else item for item in conditions]


def find_condition(conditions: Sequence[Condition] | None, condition_type: str) -> Condition | None:
    """The condition of that type, with its status, reason, message and times (meta.FindStatusCondition)."""
    return next((c for c in conditions or () if c.type == condition_type), None)


def condition_is_true(conditions: Sequence[Condition] | None, condition_type: str) -> bool:
    condition = find_condition(conditions, condition_type)
    return condition is not None and condition.status == "True"


def by_creation(obj: Object) -> tuple[str, str]:
    """A sort key, oldest first; among those of one second the name decides, so that the order is always the same."""
    return obj.metadata.creation_timestamp or "", obj.name


def owner_reference(obj: Object, *, controller: bool = False) -> OwnerReference:
    """A reference to the owner `obj`; `controller`: to the one that manages the object (metav1.NewControllerRef)."""
    api_version, kind = kind_of(obj)
    reference = OwnerReference(api_version=api_version, kind=kind, name=obj.name, uid=obj.uid)
    return msgspec.structs.replace(reference, controller=True, block_owner_deletion=True) if controller else reference


class PartlyDeclared(TypeError):
    """A list differs whose items have fields that their struct does not declare: to write it would delete those. A
    struct that declares all says so: `whole: ClassVar[bool] = True`; otherwise write a JSON patch."""


def edit(obj: S, **changes: Any) -> S:
    """The object with other values: a mapping for a field that holds a struct edits that struct, also where there was
    none (`edit(vm, spec={"run_strategy": "Halted"})`); one for a dict (labels) replaces it; None takes a field away.
    Raises TypeError for a name that is not a field's (Python) name, and for a value that is not of its type."""
    kinds = _struct_fields(type(obj))
    edited = {}
    for name, value in changes.items():
        if isinstance(value, Mapping) and (kind := kinds.get(name)) is not None:
            current = getattr(obj, name)
            edited[name] = edit(kind() if current is None else current, **value)
        else:
            edited[name] = _convert(type(obj), name, value)
    return msgspec.structs.replace(obj, **edited)


def difference(old: Struct, new: Struct) -> Patch:
    """The merge patch (RFC 7396) that turns `old` into `new`; what is None in `new` is null. Raises PartlyDeclared."""
    if type(old) is not type(new):
        raise TypeError(f"{type(old).__name__} and {type(new).__name__} are not versions of one object")
    patch: Patch = {}
    for field in msgspec.structs.fields(old):
        old_value, new_value = getattr(old, field.name), getattr(new, field.name)
        if old_value != new_value:
            patch[field.encode_name] = _change(f"{type(old).__name__}.{field.name}", old_value, new_value)
    return patch


def metadata_difference(old: Object, new: Object) -> Patch:
    """Returns the patch of metadata that may be written, without empty maps. Raises ValueError for two objects."""
    for name in ("name", "namespace", "uid"):
        if getattr(old.metadata, name) != getattr(new.metadata, name):
            raise ValueError(f"{old.key} and {new.key} differ in {name}: they are not versions of one object")
    writable = {name: getattr(new.metadata, name) for name in _WRITABLE_METADATA}
    patch = difference(old.metadata, msgspec.structs.replace(old.metadata, **writable))
    return {name: change for name, change in patch.items() if change != {}}


def guarded(obj: Object, patch: Mapping[str, Any]) -> Patch:
    """The merge patch, refused with Conflict if the object has changed since `obj` was read."""
    metadata = {**(patch.get("metadata") or {}), "resourceVersion": obj.metadata.resource_version}
    return {**patch, "metadata": metadata}


def plain_mapping(value: Any) -> dict[str, Any]:
    """Encodes for msgspec what it does not know: a read-only mapping, as the labels of an object. Raises TypeError."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no part of a body: write a list or a dict")


def applied(obj: Object | Mapping[str, Any]) -> Patch:
    """The body that creates or applies `obj`: of its metadata the name and what may be written. A mapping is one."""
    body: Patch = msgspec.to_builtins(dict(obj) if isinstance(obj, Mapping) else obj, enc_hook=plain_mapping)
    if isinstance(obj, Mapping):
        return body
    names = {wire_name(name) for name in ("name", "generate_name", "namespace", *_WRITABLE_METADATA)}
    return body | {"metadata": {name: value for name, value in body["metadata"].items() if name in names}}


def _convert(kind: type[Struct], name: str, value: Any) -> Any:
    expected = _field_types(kind).get(name)
    if expected is None:
        raise TypeError(f"{kind.__name__} has no field {name}, but {', '.join(_field_types(kind))}: names are Python's")
    plain = msgspec.json.decode(msgspec.json.encode(value, enc_hook=plain_mapping))
    try:
        converted = msgspec.convert(plain, expected)
    except msgspec.ValidationError as err:
        raise TypeError(f"{kind.__name__}.{name}: {err}") from err
    if converted not in (value, plain):
        # A mapping became a struct, inside a list: a misspelt name in it would be lost.
        raise TypeError(f"{kind.__name__}.{name}: within a list or dict write the struct itself, not a mapping")
    return converted


def _change(label: str, old: Any, new: Any) -> Any:
    if isinstance(old, Struct) and isinstance(new, Struct):
        return difference(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        removals: Patch = dict.fromkeys(old.keys() - new.keys())
        changes = {
            key: _change(f"{label}[{key!r}]", old.get(key), value)
            for key, value in new.items()
            if key not in old or old[key] != value
        }
        return removals | changes
    for value in (old, new):
        refuse_partly_declared(label, value)
    return msgspec.to_builtins(new)


def refuse_partly_declared(label: str, value: Any) -> None:
    """Raises PartlyDeclared for a list that is to be written whole and must not be."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return
    for item in value:
        if isinstance(item, Struct) and not _is_whole(type(item)):
            raise PartlyDeclared(
                f"{label} cannot be written as a list: {type(item).__name__} declares only a part of its fields, "
                "the others would be deleted: say `whole` of a struct that has all, or write a JSON patch"
            )


@functools.cache
def _is_whole(kind: type[Struct]) -> bool:
    """Reports whether a type and all that its fields contain, in lists and dicts too, are declared as whole."""
    structs, pending = set(), [type_info(kind)]
    while pending:
        part = pending.pop()
        if isinstance(part, inspect.StructType):
            if part.cls in structs:
                continue
            structs.add(part.cls)
        pending += inner_types(part)
    return all(struct.whole for struct in structs)  # type: ignore[attr-defined]


@functools.cache
def _field_types(kind: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


@functools.cache
def _struct_fields(kind: type[Struct]) -> dict[str, type[Struct]]:
    structs = {}
    for field in type_info(kind).fields:  # type: ignore[attr-defined]
        for option in field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,):
            if isinstance(option, inspect.StructType):
                structs[field.name] = option.cls
    return structs  # type: ignore[return-value]
