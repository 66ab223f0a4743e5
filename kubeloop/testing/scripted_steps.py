"""Steps of a scripted watch, and the objects in them. Import them from scripted_server.py."""

import enum
import functools
import json
from collections.abc import Mapping
from typing import Any


class End(enum.Enum):
    """The way in which a stream stops if it does not end properly."""

    DROP = "the connection is reset, whatever was sent so far"
    HANG = "nothing more comes, and the connection stays open until the client leaves or the server stops"


Step = bytes | float | End


def _event(kind: str, obj: Mapping[str, Any]) -> bytes:
    return line({"type": kind, "object": obj})


added, modified, deleted = (functools.partial(_event, kind) for kind in ("ADDED", "MODIFIED", "DELETED"))
"""Events of objects; of a DELETED the object's resourceVersion is that of the deletion."""


def bookmark(resource_version: str, *, initial_events_end: bool = False) -> bytes:
    """A BOOKMARK; `initial_events_end`: the one after which a WatchList has sent what was there."""
    meta: dict[str, Any] = {"resourceVersion": resource_version}
    if initial_events_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return _event("BOOKMARK", {"kind": "Object", "apiVersion": "v1", "metadata": meta})


def error(code: int, reason: str, message: str = "") -> bytes:
    """An ERROR event, e.g. error(410, "Expired")."""
    return _event("ERROR", status_object(code, reason, message))


def line(content: Any) -> bytes:
    """Returns a line: JSON of `content`, or bytes as they are, and a line's end."""
    return (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n"


def piece(content: bytes) -> bytes:
    """Bytes without a line's end: half a line, when `drop` or the end follows."""
    return content


def drop() -> End:
    """The connection is reset."""
    return End.DROP


def hang() -> End:
    """Nothing more comes, and the connection stays open."""
    return End.HANG


# Objects


def status_object(code: int, reason: str, message: str = "") -> dict[str, Any]:
    """A metav1.Status as the API server writes it."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return status | {"message": message or f"scripted: {reason}", "reason": reason, "code": code}


def obj(name: str, resource_version: str = "1", namespace: str = "", **fields: Any) -> dict[str, Any]:
    """The least an object has; `fields` stand beside its metadata. Its uid follows from its name."""
    meta: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "resourceVersion": resource_version}
    if namespace:
        meta["namespace"] = namespace
    return {"metadata": meta | fields.pop("metadata", {}), **fields}
