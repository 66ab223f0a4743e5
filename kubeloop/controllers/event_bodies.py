"""An event in the forms of core/v1 and of events.k8s.io/v1, as client-go's two recorders write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kubeloop.api import registry
from kubeloop.api.meta import Object

_DEFAULT_NAMESPACE = "default"
"""The namespace of events about cluster-scoped objects."""
_NOTE_LIMIT, _INSTANCE_LIMIT = 1024, 128
"""Bytes that events.k8s.io/v1 takes."""


class About(NamedTuple):
    kind: str
    key: str
    uid: str


class Identity(NamedTuple):
    """The identity of an event: events with the same one are repetitions. `message` is None for those that are combined
    from similar ones. With an `action` they are of events.k8s.io/v1."""

    subject: About
    type: str
    reason: str
    message: str | None
    action: str = ""
    related: tuple[tuple[str, str], ...] = ()
    """The reference to another object that took part, as items."""


@dataclass(slots=True)
class Occurrence:
    reference: dict[str, str]
    message: str
    first_time: str
    last_time: str
    count: int = 1
    name: str = ""
    """The event's name, once it was tried to be created."""


def body(identity: Identity, occurrence: Occurrence, component: str, instance: str) -> dict[str, Any]:
    """The event as it is created."""
    metadata = {"name": occurrence.name, "namespace": namespace_of(occurrence.reference)}
    involved = {key: value for key, value in occurrence.reference.items() if value}
    if not identity.action:
        return {
            "metadata": metadata,
            "involvedObject": involved,
            "type": identity.type,
            "reason": identity.reason,
            "message": occurrence.message,
            "count": occurrence.count,
            "firstTimestamp": occurrence.first_time,
            "lastTimestamp": occurrence.last_time,
            "source": {"component": component},
            "reportingComponent": component,
        }
    event = {
        "metadata": metadata,
        "regarding": involved,
        "type": identity.type,
        "reason": identity.reason,
        "action": identity.action,
        "note": occurrence.message.encode()[:_NOTE_LIMIT].decode(errors="ignore"),
        "eventTime": _micro(occurrence.first_time),
        "reportingController": component,
        "reportingInstance": instance[:_INSTANCE_LIMIT],
    }
    related = {"related": dict(identity.related)} if identity.related else {}
    return event | related | (repeated(identity, occurrence, occurrence.count) if occurrence.count > 1 else {})


def repeated(identity: Identity, occurrence: Occurrence, count: int) -> dict[str, Any]:
    """The patch of an event that is there, which has now happened `count` times."""
    if identity.action:
        return {"series": {"count": count, "lastObservedTime": _micro(occurrence.last_time)}}
    combined = {"message": occurrence.message} if identity.message is None else {}
    return {"count": count, "lastTimestamp": occurrence.last_time, **combined}


def reference_to(obj: Object) -> dict[str, str]:
    """The involvedObject of an event about `obj`. Raises ValueError for an object that says no kind and whose type
    stands in no registry."""
    api_version, kind = registry.kind_of(obj)
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": obj.name,
        "namespace": obj.namespace,
        "uid": obj.uid,
        "resourceVersion": obj.metadata.resource_version,
    }


def namespace_of(reference: dict[str, str]) -> str:
    """Returns the namespace of the event."""
    return reference["namespace"] or _DEFAULT_NAMESPACE


def _micro(time: str) -> str:
    """Returns the metav1.MicroTime of a metav1.Time."""
    return time.replace("Z", ".000000Z")
