"""Patches and selectors of the fake API server: RFC 7396, RFC 6902, label and field selectors."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubeloop.api.selectors import selector
from kubeloop.client.errors import ApiError, BadRequest, PatchConflict

Raw = dict[str, Any]

_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<how>==|=|!=)\s*(?P<value>[^\s!=,()]*)\s*$")

_FIELDS = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase", "status.podIP"),
    "events": ("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "reason", "type"),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
}
"""The fields beside metadata.name and metadata.namespace; custom kinds have no others."""

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
    """Returns the document with a JSON patch (RFC 6902). Raises PatchConflict where an operation does not apply,
    BadRequest for one that is none."""
    document: Any = copy.deepcopy(target)
    for operation in operations:
        op, path = operation.get("op"), operation.get("path", "")
        value = copy.deepcopy(operation.get("value"))
        if op in ("move", "copy"):
            value = copy.deepcopy(_resolve(document, operation.get("from", "")))
            if op == "move":
                document = _changed(document, operation.get("from", ""), "remove", None)
            op = "add"
        if op == "test":
            if not _test_succeeds(document, path, value):
                raise _unprocessable()
        elif op in ("add", "replace", "remove"):
            document = _changed(document, path, op, value)
        else:
            raise BadRequest(f"unknown operation {op!r}")
    result: Raw = document
    return result


def label_selector(text: str) -> Matches:
    """Raises BadRequest."""
    try:
        selects = selector(text)
    except ValueError as err:
        raise BadRequest(f"unable to parse requirement: {err}") from err
    return lambda obj: selects(obj["metadata"].get("labels") or {})


def field_selector(text: str, plural: str) -> Matches:
    """Returns the selector of a text, as `metadata.name=a,status.phase!=Running`. Raises BadRequest for a field that
    the kind does not offer."""
    terms: list[tuple[list[str], bool, str]] = []
    for part in filter(None, text.split(",")):
        match = _EQUAL.match(part)
        if match is None:
            raise BadRequest(f"invalid selector: {part!r}")
        if match["key"] not in ("metadata.name", "metadata.namespace", *_FIELDS.get(plural, ())):
            raise BadRequest(f"field label not supported: {match['key']}")
        terms.append((match["key"].split("."), match["how"] != "!=", match["value"]))

    def matches(obj: Raw) -> bool:
        return all((_field(obj, path) == value) is equal for path, equal, value in terms)

    return matches


def _field(obj: Raw, path: list[str]) -> str:
    value: Any = obj
    for name in path:
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
            raise _unprocessable() from None
    return document


def _changed(document: Any, path: str, op: str, value: Any) -> Any:
    if not path:
        return value
    *parents, key = _names(path)
    place = _resolve(document, "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in parents))
    try:
        if isinstance(place, list):
            _change_list(place, key, op, value)
        elif op == "remove":
            del place[key]
        else:  # a `replace` of a key that is not there adds it
            place[key] = value
    except (KeyError, IndexError, ValueError, TypeError):
        raise _unprocessable() from None
    return document


def _change_list(place: list[Any], key: str, op: str, value: Any) -> None:
    index = len(place) if key == "-" else int(key)
    if op == "add":
        if index > len(place):
            raise IndexError
        place.insert(index, value)
    elif op == "remove":
        del place[index]
    else:
        place[index] = value


def _names(path: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:]]


def _unprocessable() -> ApiError:
    return PatchConflict("the server rejected our request due to an error in our request")
