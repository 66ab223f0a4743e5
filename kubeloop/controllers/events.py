"""Events on objects, for people: client-go's EventRecorder with its correlator (`tools/record/events_cache.go`), in the
forms of core/v1 and of events.k8s.io/v1."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

from cachetools import LRUCache, TTLCache

from kubeloop.api import registry
from kubeloop.api.core import EventType
from kubeloop.api.meta import Object, now_rfc3339
from kubeloop.client import errors
from kubeloop.client.client import Client
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.errors import described
from kubeloop.metrics import FRAMEWORK
from kubeloop.workqueue.queue import loop_time
from kubeloop.workqueue.rate_limiters import BucketRateLimiter

log = logging.getLogger(__name__)

WARNING: Final = "Warning"

QUEUE_LIMIT = 1000
"""Different events of a namespace that may wait to be written; more are dropped and counted."""
AGGREGATION_SECONDS = 600.0
"""A repeat within this time raises `count` of the event that is there (client-go's interval)."""
SIMILAR_LIMIT = 10
"""So many messages of one reason on one object within that time share one event (client-go's aggregator)."""
SIMILAR_PREFIX = "(combined from similar events): "
SPAM_BURST = 25
SPAM_SECONDS = 300.0
"""An object gets so many writes at once, then one in so many seconds (client-go's spam filter)."""
_REMEMBERED = 4096
_NAME_LIMIT = 253

_PAUSES = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds between the tries of one event: a restart of the API server should cost none."""
_WRITES_AT_ONCE = 8
"""Namespaces have a writer each, so that one where a webhook on Events hangs does not hold up the others; together
they keep so many of the connections that all requests share."""

RECORDED = FRAMEWORK["event_recorder_events_total"].counter()
DROPPED = FRAMEWORK["event_recorder_dropped_total"].counter()


class EventRecorder:
    """Writes events in the background."""

    def __init__(self, client: Client, component: str) -> None:
        self._core: ResourceClient[Any] = client.resource(registry.EVENTS)
        self._v1: ResourceClient[Any] = client.resource(registry.EVENTS_V1)
        self._component = component
        self._instance = f"{component}-{os.environ.get('POD_NAME') or socket.gethostname()}"
        self._pending: dict[str, dict[Identity, Occurrence]] = {}
        # By the event's namespace. Invariant: at most QUEUE_LIMIT in each; a repeat of what waits is counted there and
        # takes no more room.
        # The events that exist on the server; `count` has what the spam filter kept back too.
        self._written: TTLCache[Identity, Occurrence] = TTLCache(_REMEMBERED, ttl=AGGREGATION_SECONDS, timer=loop_time)
        self._similar: TTLCache[Identity, set[str]] = TTLCache(_REMEMBERED, ttl=AGGREGATION_SECONDS, timer=loop_time)
        self._buckets: LRUCache[About, BucketRateLimiter[About]] = LRUCache(_REMEMBERED)
        # The writes that an object has left.
        self._writers: dict[str, asyncio.Task[None]] = {}
        # Invariant: a namespace in which something is pending has one, and no other has.
        self._turn = asyncio.Semaphore(_WRITES_AT_ONCE)
        self._last_stamp = 0
        self._stopped = False

    def event(
        self,
        obj: Object,
        type: EventType,
        reason: str,
        message: str,
        *,
        action: str = "",
        related: Object | None = None,
    ) -> None:
        """Records an event about `obj`: type "Normal" or "Warning", a CamelCase reason, a sentence.

        With an `action` (a CamelCase verb) or a `related` object it is one of events.k8s.io/v1 (other rights). Returns
        at once and never raises; what cannot be written is dropped, counted and logged."""
        try:
            if type not in get_args(EventType):
                raise ValueError(f"its type is Normal or Warning, not {type!r}")
            RECORDED.labels(type, reason).inc()
            self._record(obj, type, reason, message, action, related)
        except Exception:
            log.exception("event %s could not be recorded", reason)
            DROPPED.labels("invalid").inc()

    async def stop(self, timeout: float = 5.0) -> None:
        """Writes the waiting events, at most `timeout` seconds; later ones are dropped."""
        self._stopped = True
        if not self._writers:
            return
        _, unfinished = await asyncio.wait(self._writers.values(), timeout=timeout)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)

    def _record(self, obj: Object, type: str, reason: str, message: str, action: str, related: Object | None) -> None:
        if self._stopped:
            DROPPED.labels("stopped").inc()
            return
        now = now_rfc3339()
        occurrence = Occurrence(reference_to(obj), message, now, now)
        subject = About(occurrence.reference["kind"], obj.key, obj.uid)
        related_items = tuple(reference_to(related).items()) if related else ()
        identity = Identity(subject, type, reason, message, action or (reason if related else ""), related_items)
        if self._is_one_of_many(identity):
            identity, occurrence.message = identity._replace(message=None), SIMILAR_PREFIX + message
        namespace = occurrence.namespace
        pending = self._pending.get(namespace, {})
        if (waiting := pending.get(identity)) is not None:
            waiting.count += 1
            waiting.last_time, waiting.message = occurrence.last_time, occurrence.message
            return
        if len(pending) >= QUEUE_LIMIT:
            DROPPED.labels("queue full").inc()
            return
        if not self._buckets.setdefault(subject, BucketRateLimiter(1 / SPAM_SECONDS, SPAM_BURST)).allow(subject):
            DROPPED.labels("spam").inc()
            if (written := self._written.get(identity)) is not None:
                written.count += 1
            return
        if namespace not in self._writers:
            loop = asyncio.get_running_loop()
            self._writers[namespace] = loop.create_task(self._write_all(namespace, pending), name=f"events {namespace}")
            self._pending[namespace] = pending
        pending[identity] = occurrence

    def _is_one_of_many(self, identity: "Identity") -> bool:
        """Reports whether so many similar events were written lately that this one is combined with them."""
        kind_of_event = identity._replace(message=None)
        messages = self._similar.get(kind_of_event, set())
        if identity.message is not None and len(messages) < SIMILAR_LIMIT - 1:
            messages = messages | {identity.message}
        self._similar[kind_of_event] = messages  # stored anew: the time counts from the last one
        return identity.message not in messages

    async def _write_all(self, namespace: str, pending: "dict[Identity, Occurrence]") -> None:
        try:
            while pending:
                identity = next(iter(pending))
                await self._write_one(identity, pending.pop(identity))
        finally:
            for _ in pending:
                DROPPED.labels("stopped").inc()
            del self._pending[namespace], self._writers[namespace]

    async def _write_one(self, identity: "Identity", occurrence: "Occurrence") -> None:
        key = identity.subject.key
        try:
            for pause in (*_PAUSES, None):
                try:
                    return await self._write(identity, occurrence)
                except (errors.Unreachable, errors.ServerError, errors.TooManyRequests):
                    if pause is None:
                        raise
                await asyncio.sleep(pause)
        except errors.ReadOnly:
            log.info("dry run: %s %s on %s: %s", identity.type, identity.reason, key, occurrence.message)
        except errors.ApiError as error:
            log.warning("event %s on %s not written: %s", identity.reason, key, described(error))
            DROPPED.labels("refused").inc()
        except asyncio.CancelledError:
            DROPPED.labels("stopped").inc()
            raise
        except Exception:
            log.exception("event %s on %s not written", identity.reason, key)
            DROPPED.labels("failed").inc()

    async def _write(self, identity: "Identity", occurrence: "Occurrence") -> None:
        client = self._v1 if identity.action else self._core
        async with self._turn:
            if (written := self._written.get(identity)) is not None:
                count = written.count + occurrence.count
                with contextlib.suppress(errors.NotFound):
                    patch = repeated(identity, occurrence, count)
                    await client.merge_patch(patch, name=written.name, namespace=occurrence.namespace)
                    written.count += occurrence.count
                    self._written[identity] = written  # stored anew: the time counts from the last one
                    return
                # The API server keeps events for an hour, people may delete them. Not `del`: its time may have ended
                # meanwhile.
                self._written.pop(identity, None)
            if not occurrence.name:
                occurrence.name = self._name(occurrence.reference["name"])
            with contextlib.suppress(errors.AlreadyExists):  # the try before got through, only its answer was lost
                await client.create(body(identity, occurrence, self._component, self._instance))
            self._written[identity] = occurrence

    def _name(self, object_name: str) -> str:
        """Returns `<object>.<time in hex>`, as client-go names events; never the same twice from one recorder."""
        self._last_stamp = max(self._last_stamp + 1, int(time.time() * 1e9))
        suffix = f".{self._last_stamp:x}"
        return object_name[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


_NOTE_LIMIT, _INSTANCE_LIMIT = 1024, 128
"""Bytes that events.k8s.io/v1 takes."""


class About(NamedTuple):
    kind: str
    key: str
    uid: str


class Identity(NamedTuple):
    """Events with the same identity are repetitions. `message` is None for those combined from similar ones; with an
    `action` they are of events.k8s.io/v1."""

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

    @property
    def namespace(self) -> str:
        """The event's: those about cluster-scoped objects are in `default`."""
        return self.reference.get("namespace", "default")


def body(identity: Identity, occurrence: Occurrence, component: str, instance: str) -> dict[str, Any]:
    """The event as it is created."""
    metadata = {"name": occurrence.name, "namespace": occurrence.namespace}
    event: dict[str, Any] = {"metadata": metadata, "type": identity.type, "reason": identity.reason}
    if not identity.action:
        event |= {"involvedObject": occurrence.reference, "message": occurrence.message, "count": occurrence.count}
        event |= {"firstTimestamp": occurrence.first_time, "lastTimestamp": occurrence.last_time}
        return event | {"source": {"component": component}, "reportingComponent": component}
    note = occurrence.message.encode()[:_NOTE_LIMIT].decode(errors="ignore")
    event |= {"regarding": occurrence.reference, "action": identity.action, "note": note}
    event |= {"related": dict(identity.related)} if identity.related else {}
    event |= {"eventTime": _micro(occurrence.first_time), "reportingController": component}
    event |= {"reportingInstance": instance[:_INSTANCE_LIMIT]}
    return event | (repeated(identity, occurrence, occurrence.count) if occurrence.count > 1 else {})


def repeated(identity: Identity, occurrence: Occurrence, count: int) -> dict[str, Any]:
    """The patch of an event that is there, which has now happened `count` times."""
    if identity.action:
        return {"series": {"count": count, "lastObservedTime": _micro(occurrence.last_time)}}
    combined = {"message": occurrence.message} if identity.message is None else {}
    return {"count": count, "lastTimestamp": occurrence.last_time, **combined}


def reference_to(obj: Object) -> dict[str, str]:
    """The involvedObject of an event about `obj`. Raises ValueError for an object whose kind is not known."""
    api_version, kind = registry.kind_of(obj)
    reference = {"apiVersion": api_version, "kind": kind, "name": obj.name, "namespace": obj.namespace, "uid": obj.uid}
    reference["resourceVersion"] = obj.metadata.resource_version
    return {name: value for name, value in reference.items() if value}


def _micro(time: str) -> str:
    """Returns the metav1.MicroTime of a metav1.Time."""
    return time.replace("Z", ".000000Z")
