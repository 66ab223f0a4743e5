"""Events on objects, for people: client-go's EventRecorder with its correlator, in small."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import TTLCache
from prometheus_client import Counter
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from pkg.api import registry
from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.client.client import Client
from pkg.client.errors import AlreadyExists, ApiError, NotFound, ServerError, TooManyRequests, Unreachable
from pkg.generic.errors import one_line
from pkg.workqueue.queue import loop_time

log = logging.getLogger(__name__)

NORMAL = "Normal"
WARNING = "Warning"

QUEUE_LIMIT = 1000
"""Different events that may wait to be written; more are dropped and counted."""
AGGREGATION_SECONDS = 600.0
"""A repeat within this time raises `count` of the event that is there (client-go's interval)."""
_REMEMBERED = 4096
_DEFAULT_NAMESPACE = "default"
"""Where events about cluster-scoped objects live."""
_NAME_LIMIT = 253

_TRIES = 6
"""How often one event is tried, 1, 2, 4, 8 and 10 s apart: a restart of the API server should cost none."""

DROPPED = Counter("headroom_events_dropped_total", "Events that were not written", ["reason"])


class _Identity(NamedTuple):
    """What makes two events the same."""

    uid: str
    key: str
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Occurrence:
    """What happened since it was last written."""

    reference: dict[str, str]
    first: str
    last: str
    count: int = 1
    name: str = ""
    """The event's name, once it was tried to be created."""


@dataclass(frozen=True, slots=True)
class _Written:
    """An event that exists on the server."""

    name: str
    count: int


class EventRecorder:
    """Writes events in the background. `wall_clock` gives seconds since 1970 for timestamps."""

    def __init__(
        self, client: Client, component: str, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._events = client.resource(registry.EVENTS)
        self._component = component
        self._wall_clock = wall_clock
        self._pending: dict[_Identity, _Occurrence] = {}
        # Invariant: at most QUEUE_LIMIT; a repeat of what waits is counted there and takes no more room.
        self._written: TTLCache[_Identity, _Written] = TTLCache(
            _REMEMBERED, ttl=AGGREGATION_SECONDS, timer=loop_time
        )
        self._writer: asyncio.Task[None] | None = None
        self._last_stamp = 0
        self._stopped = False
        self.dropped = 0

    def event(self, obj: Object, type: str, reason: str, message: str) -> None:
        """Tell people about `obj`: type "Normal" or "Warning", a CamelCase reason, a sentence.

        Returns at once and never raises; what cannot be written is dropped, counted and logged.
        """
        try:
            self._record(obj, type, reason, message)
        except Exception:
            log.exception("event %s could not be recorded", reason)
            self._drop("invalid")

    async def stop(self, timeout: float = 5.0) -> None:
        """Write what waits, at most `timeout` seconds; later events are dropped."""
        self._stopped = True
        if self._writer is None:
            return
        _, late = await asyncio.wait([self._writer], timeout=timeout)
        for task in late:
            task.cancel()
            await asyncio.wait([task])
        for _ in self._pending:
            self._drop("stopped")
        self._pending.clear()

    def _record(self, obj: Object, type: str, reason: str, message: str) -> None:
        if self._stopped:
            self._drop("stopped")
            return
        identity = _Identity(obj.uid, obj.key, type, reason, message)
        now = _rfc3339(self._wall_clock())
        waiting = self._pending.get(identity)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
        elif len(self._pending) >= QUEUE_LIMIT:
            self._drop("queue full")
        else:
            self._pending[identity] = _Occurrence(reference_to(obj), now, now)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name="event recorder")

    @staticmethod
    def _retrying() -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception_type((Unreachable, ServerError, TooManyRequests)),
            wait=wait_exponential(multiplier=1, max=10),
            stop=stop_after_attempt(_TRIES),
            reraise=True,
        )

    def _drop(self, why: str) -> None:
        self.dropped += 1
        DROPPED.labels(why).inc()

    async def _write_all(self) -> None:
        while self._pending:
            identity = next(iter(self._pending))
            occurrence = self._pending.pop(identity)
            try:
                await self._retrying()(self._write, identity, occurrence)
            except ApiError as error:
                log.warning("event %s on %s not written: %s", identity.reason, identity.key, one_line(error))
                self._drop("refused")
            except asyncio.CancelledError:
                self._drop("stopped")
                raise
            except Exception:
                log.exception("event %s on %s not written", identity.reason, identity.key)
                self._drop("failed")

    async def _write(self, identity: _Identity, occurrence: _Occurrence) -> None:
        known = self._written.get(identity)
        if known is not None:
            try:
                await self._repeat(identity, occurrence, known)
            except NotFound:
                del self._written[identity]  # the API server keeps events for an hour, people may delete them
            else:
                return
        if not occurrence.name:
            occurrence.name = self._name(occurrence.reference["name"])
        with contextlib.suppress(AlreadyExists):  # the try before got through, only its answer was lost
            await self._events.create(self._body(identity, occurrence), _namespace(occurrence.reference))
        self._written[identity] = _Written(occurrence.name, occurrence.count)

    async def _repeat(self, identity: _Identity, occurrence: _Occurrence, known: _Written) -> None:
        count = known.count + occurrence.count
        patch = {"count": count, "lastTimestamp": occurrence.last}
        await self._events.merge_patch(known.name, patch, _namespace(occurrence.reference))
        self._written[identity] = _Written(known.name, count)

    def _body(self, identity: _Identity, occurrence: _Occurrence) -> dict[str, Any]:
        return {
            "apiVersion": registry.EVENTS.api_version,
            "kind": registry.EVENTS.kind,
            "metadata": {
                "name": occurrence.name,
                "namespace": _namespace(occurrence.reference),
            },
            "involvedObject": {key: value for key, value in occurrence.reference.items() if value},
            "type": identity.type,
            "reason": identity.reason,
            "message": identity.message,
            "count": occurrence.count,
            "firstTimestamp": occurrence.first,
            "lastTimestamp": occurrence.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }

    def _name(self, about: str) -> str:
        """`<object>.<time in hex>`, as client-go names them; never the same twice from one recorder."""
        self._last_stamp = max(self._last_stamp + 1, int(self._wall_clock() * 1e9))
        suffix = f".{self._last_stamp:x}"
        return about[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def reference_to(obj: Object) -> dict[str, str]:
    """The involvedObject of an event about `obj`.

    Items of a typed list carry no kind on the wire: it is taken from the registry by the object's type. Raises
    ValueError for a type that stands in no table and brings no kind itself.
    """
    api_version, kind = obj.api_version, obj.kind
    if not (api_version and kind):
        resource = _RESOURCE_BY_TYPE.get(type(obj))
        if resource is None:
            raise ValueError(f"{type(obj).__name__} {obj.key} has no kind and is not in the registry")
        api_version, kind = resource.api_version, resource.kind
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": obj.name,
        "namespace": obj.namespace,
        "uid": obj.uid,
        "resourceVersion": obj.metadata.resource_version,
    }


_RESOURCE_BY_TYPE: dict[type, Resource[Any]] = {
    resource.type: resource for resource in vars(registry).values() if isinstance(resource, Resource)
}


def _namespace(reference: dict[str, str]) -> str:
    return reference["namespace"] or _DEFAULT_NAMESPACE


def _rfc3339(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
