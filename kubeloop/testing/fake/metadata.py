"""The API server's validation of metadata (apimachinery's `pkg/api/validation/objectmeta.go`)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubeloop.api.registry import Resource
from kubeloop.client.errors import BadRequest, Conflict, Invalid

_PART = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LABEL_LENGTH, _NAME_LENGTH = 63, 253
_ANNOTATIONS_SIZE = 256 * 1024
_WITHOUT_SLASH = ("kubernetes", "orphan", "foregroundDeletion")
_GROUPS = frozenset({
    "admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization", "certificates",
    "coordination", "discovery", "events", "flowcontrol.apiserver", "networking", "node", "rbac.authorization",
    "resource", "scheduling", "storage",
})  # fmt: skip
"""Without `.k8s.io`, where others have their kinds too (snapshot.storage, cluster.x-)."""
_LABEL_NAMES = ("namespaces", "services")
"""Kinds of core/v1 whose names are labels: 63 characters, no dot."""


def check_name(resource: Resource[Any], name: str) -> None:
    """Raises Invalid for what cannot be the name of a new object."""
    if not name:
        _refuse(resource, name, "metadata.name: Required value: name or generateName is required")
    if resource.group == "rbac.authorization.k8s.io":
        is_right = name not in (".", "..") and "/" not in name and "%" not in name
    elif not resource.group and resource.plural in _LABEL_NAMES:
        is_right = bool(_LABEL.match(name)) and len(name) <= _LABEL_LENGTH
    else:
        is_right = bool(_SUBDOMAIN.match(name)) and len(name) <= _NAME_LENGTH
    if not is_right:
        _refuse(resource, name, f"metadata.name: Invalid value: {name!r}")


def check_identity(resource: Resource[Any], metadata: Mapping[str, Any], was: Mapping[str, Any]) -> None:
    """Raises what the API server does for a write that is about another object, or another version of it."""
    if metadata.get("name", was["name"]) != was["name"]:
        raise BadRequest("the name of the object does not match the name on the URL")
    check_namespace(metadata, was.get("namespace", ""))
    if metadata.get("resourceVersion") not in (None, "", was["resourceVersion"]):
        reason = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(resource, was["name"], reason)
    for field in ("uid", "deletionTimestamp"):
        if metadata.get(field) not in (None, "", was.get(field)):
            problem = f'metadata.{field}: Invalid value: "{metadata[field]}": field is immutable'
            _refuse(resource, was["name"], problem)


def check_namespace(metadata: Mapping[str, Any], namespace: str) -> None:
    """Raises BadRequest for an object that says another namespace than its request."""
    if metadata.get("namespace", namespace) != namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def conflict(resource: Resource[Any], name: str, reason: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {resource.group_resource} "{name}": {reason}')


def check_metadata(resource: Resource[Any], metadata: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Raises Invalid for what is new in metadata and not allowed there."""
    for problem in (
        *_labels(_new(metadata, old, "labels")),
        *_annotations(metadata.get("annotations") or {}, _new(metadata, old, "annotations")),
        *_finalizers(resource, set(metadata.get("finalizers") or ()) - set(old.get("finalizers") or ()), old),
        *_owners(metadata.get("ownerReferences") or ()),
    ):
        _refuse(resource, metadata.get("name") or "", f"metadata.{problem}")


def is_of_kubernetes(resource: Resource[Any]) -> bool:
    """Reports whether the kind is the API server's own, not a custom resource."""
    return "." not in resource.group or resource.group.removesuffix(".k8s.io") in _GROUPS


def _labels(labels: Mapping[str, Any]) -> Iterator[str]:
    for key, value in labels.items():
        if not _is_qualified(key):
            yield f"labels: Invalid value: {key!r}: name part must consist of alphanumeric characters, '-', '_' or '.'"
        if value and (len(value) > _LABEL_LENGTH or not _PART.match(value)):
            yield f"labels: Invalid value: {value!r}: must be no more than 63 characters, and start and end with one"


def _annotations(whole: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"annotations: Invalid value: {key!r}" for key in new if not _is_qualified(key.lower()))
    if sum(len(key.encode()) + len((value or "").encode()) for key, value in whole.items()) > _ANNOTATIONS_SIZE:
        yield f"annotations: Too long: may not be more than {_ANNOTATIONS_SIZE} bytes"


def _finalizers(resource: Resource[Any], finalizers: set[str], old: Mapping[str, Any]) -> Iterator[str]:
    if finalizers and old.get("deletionTimestamp"):
        problem = "no new finalizers can be added if the object is being deleted, found new finalizers"
        yield f"finalizers: Forbidden: {problem} {sorted(finalizers)}"
    for name in sorted(finalizers):
        if not _is_qualified(name):
            yield f"finalizers: Invalid value: {name!r}: name part must consist of alphanumeric characters"
        elif "/" not in name and name not in _WITHOUT_SLASH and is_of_kubernetes(resource):
            yield f"finalizers: Invalid value: {name!r}: neither a standard finalizer name nor fully qualified"


def _owners(references: Any) -> Iterator[str]:
    for reference in references:
        for name in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(name):
                yield f"ownerReferences.{name}: Invalid value: must not be empty"
    if sum(bool(reference.get("controller")) for reference in references) > 1:
        yield "ownerReferences: Invalid value: Only one reference can have Controller set to true"


def _new(metadata: Mapping[str, Any], old: Mapping[str, Any], field: str) -> dict[str, Any]:
    was = old.get(field) or {}
    return {key: value for key, value in (metadata.get(field) or {}).items() if was.get(key) != value}


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    has_prefix = not slash or (bool(_SUBDOMAIN.match(prefix)) and len(prefix) <= _NAME_LENGTH)
    return has_prefix and len(name) <= _LABEL_LENGTH and bool(_PART.match(name))


def _refuse(resource: Resource[Any], name: str, problem: str) -> None:
    raise Invalid(f'{resource.kind} "{name}" is invalid: {problem}')
