"""What a decision about a ResourceQuota comes to: one patch, bound to what was decided from. Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawResourceList
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.timers import Timers


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write (nothing, if both maps are empty), what to report, and when to re-check (seconds)."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    hard: Mapping[str, str | None] = field(default_factory=dict)
    """Resource name to quantity; None removes it."""
    problems: Sequence[ResourceQuotaError] = ()
    timers: Timers = field(default_factory=Timers)
    recheck_after: float | None = None

    def __bool__(self) -> bool:
        return bool(self.annotations or self.hard)

    def patch(self, quota: ResourceQuota, used: RawResourceList | None = None) -> list[dict[str, Any]]:
        """The JSON patch (RFC 6902), bound to what was decided from and to that alone: this very quota, its labels,
        annotations and spec.hard, and where it is given `used`, status.used of what it changes. status.hard and
        status.used move the resourceVersion with every pod that comes or goes; bound to that, one patch in five met a
        conflict without a cause."""
        meta = quota.metadata
        counted = {name: value for name, value in (used or {}).items() if name in self.hard}
        return [
            _test("/metadata/uid", meta.uid),
            _test("/metadata/labels", meta.labels),
            _test("/metadata/annotations", meta.annotations),
            _test("/spec/hard", quota.spec.hard),
            *(_test(pointer("/status/used", name), value) for name, value in counted.items()),
            *_changes("/metadata/annotations", meta.annotations, self.annotations),
            *_changes("/spec/hard", quota.spec.hard, self.hard),
        ]


def _test(path: str, value: object) -> dict[str, Any]:
    """None: nothing is there (the API server's JSON patch has it so)."""
    return {"op": "test", "path": path, "value": dict(value) if isinstance(value, Mapping) else value}


def pointer(path: str, key: str) -> str:
    """JSON pointer (RFC 6901) of a key of the map at `path`."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _changes(
    path: str, before: Mapping[str, Any] | None, changes: Mapping[str, str | None]
) -> Iterator[dict[str, Any]]:
    if changes and before is None:
        yield {"op": "add", "path": path, "value": {}}
    for key, value in changes.items():
        if value is not None:
            yield {"op": "add", "path": pointer(path, key), "value": value}
        elif key in (before or {}):
            yield {"op": "remove", "path": pointer(path, key)}
