"""Patches and selectors of the fake API server: RFC 7396, RFC 6902, server-side apply, label and field selectors.

Of an apply, lists are one field, as in custom resources that say nothing else; finalizers and owner references are
merged item by item. managedFields are not shown."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kubeloop.api.selectors import Selects, selector
from kubeloop.client.errors import BadRequest, Conflict, PatchConflict

Raw = dict[str, Any]

_FIELDS = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase", "status.podIP"),
    "events": ("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "reason", "type"),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
}
"""The fields beside metadata.name and metadata.namespace; custom kinds have no others."""

_UNPROCESSABLE = "the server rejected our request due to an error in our request"

Matches = Callable[[Raw], bool]


def merged(target: Any, patch: Any) -> Any:
    """Returns the document with a merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def json_patched(target: Raw, operations: Sequence[Mapping[str, Any]]) -> Raw:
    """Returns the document with a JSON patch (RFC 6902). Raises PatchConflict where a test does not hold, a path does
    not exist, or an operation is none."""
    document: Any = copy.deepcopy(target)
    for operation in operations:
        op, path, source = operation.get("op"), operation.get("path", ""), operation.get("from", "")
        value = copy.deepcopy(_resolve(document, source) if op in ("move", "copy") else operation.get("value"))
        if op == "move":
            document = _changed(document, source, "remove", None)
        match op:
            case "test":
                if not _test_succeeds(document, path, value):
                    raise PatchConflict(_UNPROCESSABLE)
            case "add" | "move" | "copy":
                document = _changed(document, path, "add", value)
            case "replace" | "remove":
                document = _changed(document, path, op, value)
            case _:
                raise PatchConflict(f"{_UNPROCESSABLE}: unknown operation {op!r}")
    result: Raw = document
    return result


def field_selector(text: str, plural: str) -> Matches:
    """Returns the selector of `metadata.name=a,status.phase!=Running`. BadRequest: the kind does not offer a field."""
    keys = []
    for part in filter(None, text.split(",")):
        key, equal, _ = part.replace("!=", "=", 1).partition("=")
        if not equal:
            raise BadRequest(f"invalid selector: {part!r}")
        if key.strip() not in ("metadata.name", "metadata.namespace", *_FIELDS.get(plural, ())):
            raise BadRequest(f"field label not supported: {key}")
        keys.append(key.strip())
    selects = _parsed(text)
    return lambda obj: selects({key: _field(obj, key) for key in keys})


def label_selector(text: str) -> Matches:
    """Raises BadRequest."""
    selects = _parsed(text)
    return lambda obj: selects(obj["metadata"].get("labels") or {})


def _parsed(text: str) -> Selects:
    try:
        return selector(text)
    except ValueError as err:
        raise BadRequest(f"unable to parse requirement: {err}") from err


def _field(obj: Raw, path: str) -> str:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _test_succeeds(document: Any, path: str, value: Any) -> bool:
    """Reports whether a test operation holds, as in the API server: null is the value of a missing key."""
    try:
        return bool(_resolve(document, path) == value)
    except PatchConflict:
        return value is None


def _resolve(document: Any, path: str) -> Any:
    for name in _names(path):
        try:
            document = document[int(name)] if isinstance(document, list) else document[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise PatchConflict(_UNPROCESSABLE) from None
    return document


def _changed(document: Any, path: str, op: str, value: Any) -> Any:
    if not path:
        return value
    place, key = _resolve(document, path.rpartition("/")[0]), _names(path)[-1]
    try:
        where: Any = key
        if isinstance(place, list):
            where = len(place) if key == "-" else int(key)
        if op == "remove":
            del place[where]
        elif op == "add" and isinstance(place, list):
            place.insert(range(len(place) + 1)[where], value)
        else:  # a `replace` of a key that is not there adds it
            place[where] = value
    except (KeyError, IndexError, ValueError, TypeError):
        raise PatchConflict(_UNPROCESSABLE) from None
    return document


def _names(path: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:]]


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
    own_fields = managers.get(manager, {})
    other_managers = {name: fields for name, fields in managers.items() if name != manager}
    if not force:
        _check_conflicts(current_fields, desired, own_fields, other_managers)
    new = copy.deepcopy(current)
    for path, value in own_fields.items():
        is_shared = any(fields.get(path, _ABSENT) == value for fields in other_managers.values())
        if path not in desired and current_fields.get(path, _ABSENT) == value and not is_shared:
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
