"""What a scripted watch sends: its steps, and the objects in them. Import them from scripted_server.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Drop:
    """The connection is reset, whatever was sent so far."""


class Hang:
    """Nothing more comes, and the connection stays open until the client leaves or the server stops."""


Step = bytes | float | Drop | Hang


def added(obj: Mapping[str, Any]) -> bytes:
    """An ADDED event."""
    return line({"type": "ADDED", "object": obj})


def modified(obj: Mapping[str, Any]) -> bytes:
    """A MODIFIED event."""
    return line({"type": "MODIFIED", "object": obj})


def deleted(obj: Mapping[str, Any]) -> bytes:
    """A DELETED event; the object's resourceVersion is that of the deletion."""
    return line({"type": "DELETED", "object": obj})


def bookmark(resource_version: str, *, initial_events_end: bool = False) -> bytes:
    """A BOOKMARK; `initial_events_end`: the one after which a WatchList has sent what was there."""
    meta: dict[str, Any] = {"resourceVersion": resource_version}
    if initial_events_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return line({"type": "BOOKMARK", "object": {"kind": "Object", "apiVersion": "v1", "metadata": meta}})


def error(code: int, reason: str, message: str = "") -> bytes:
    """An ERROR event, e.g. error(410, "Expired")."""
    return line({"type": "ERROR", "object": status_object(code, reason, message)})


def line(content: Any) -> bytes:
    """Any line: JSON of `content`, or bytes as they are, and a line's end."""
    return (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n"


def piece(content: bytes) -> bytes:
    """Bytes without a line's end: half a line, when `drop` or the end follows."""
    return content


def drop() -> Drop:
    """The connection is reset here."""
    return Drop()


def hang() -> Hang:
    """Silence from here on."""
    return Hang()


# Objects


def status_object(code: int, reason: str, message: str = "") -> dict[str, Any]:
    """A metav1.Status as the API server writes it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or f"scripted: {reason}",
        "reason": reason,
        "code": code,
    }


def obj(name: str, resource_version: str = "1", namespace: str = "", **fields: Any) -> dict[str, Any]:
    """The least an object has; `fields` stand beside its metadata. Its uid follows from its name."""
    meta: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "resourceVersion": resource_version}
    if namespace:
        meta["namespace"] = namespace
    return {"metadata": meta | fields.pop("metadata", {}), **fields}
