"""Kinds of a fake API server (kubeloop.testing.fake), each with a cache that lags for as long as a test wants."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

import msgspec

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.cache.store import Indexer
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.events import EventRecorder
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.patches import Raw, merged
from kubeloop.testing.fake.server import FakeCluster

T = TypeVar("T", bound=Object)
WRITES = ("create", "update", "patch", "delete")


def edited(obj: T, **patch: Any) -> T:
    """A copy with other fields (RFC 7396) of metadata, spec, status."""
    return msgspec.convert(merged(msgspec.to_builtins(obj), patch), type(obj))


class Server(FakeCluster):
    """Its kinds' caches see every write at once."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, Kind[Any]] = {}

    def kind(self, resource: Resource[T]) -> "Kind[T]":
        """The same one for the same resource."""
        served_kind: Kind[T] = self.kinds.get(resource.path()) or Kind(resource, self)
        return served_kind

    def store(self, resource: Resource[Any], key: str, old: Raw | None, new: Raw | None) -> Raw:
        written = super().store(resource, key, old, new)
        if (kind := self.kinds.get(resource.path())) is not None:
            kind.stored(written, deleted=new is None)
        return written


class Kind(Generic[T]):
    """A kind of a server. `errors` are what the next requests of a verb raise, None lets one through; `before` is
    called ahead of every write, once: the place for a foreign writer. While `answering` is cleared requests wait."""

    def __init__(self, resource: Resource[T], server: Server | None = None) -> None:
        self.resource = resource
        self.server = server or Server()
        self.client: ResourceClient[T] = self.server.client().resource(resource)
        self.indexers: list[Indexer[T]] = [Indexer()]
        self.cache: CacheReader[T] = CacheReader(self.indexer)
        self.lagging = False
        self.errors: dict[str, list[ApiError | None]] = {}
        self.before: list[Callable[[], object]] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.server.reactors.append(self._react)
        self.server.kinds[resource.path()] = self

    @property
    def indexer(self) -> Indexer[T]:
        """Returns the indexer of the cache that was made last."""
        return self.indexers[-1]

    def shown_by(self, indexer: Indexer[T]) -> None:
        """A further cache: it begins with what is there."""
        if indexer not in self.indexers:
            self.indexers.append(indexer)
            indexer.replace(self.server.all(self.resource))

    @property
    def objects(self) -> Mapping[str, Raw]:
        """Returns the objects as the server has them, by key."""
        return self.server.raw(self.resource)

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """(verb, key, body) of every request."""
        return [(request.verb, request.key, request.body) for request in self._requests]

    def asked(self, verb: str) -> list[Any]:
        """The bodies of all requests of a verb."""
        return self.server.asked(verb, self.resource.plural)

    def given(self, obj: T | Raw) -> T:
        """Another client writes an object, whole."""
        return self.server.put(self.resource, obj)

    def put(self, name: str, namespace: str = "", **fields: Any) -> T:
        """Another client writes an object of these fields, whole; its uid is made from its name."""
        metadata = {"uid": f"uid-{name}", "name": name, "namespace": namespace, **fields.pop("metadata", {})}
        return self.given({"metadata": metadata, **fields})

    def edited(self, key: str, patch: Mapping[str, Any]) -> T:
        """Another client patches an object."""
        return self.given(merged(self.objects[key], patch))

    def gone(self, key: str) -> None:
        """Another client deletes an object."""
        self.server.remove(self.resource, key)

    def now(self, key: str) -> T:
        """The object as the server has it."""
        return msgspec.convert(self.objects[key], self.resource.type)

    def catch_up(self) -> None:
        """The watch brings everything."""
        self.lagging = False
        for indexer in self.indexers:
            indexer.replace(self.server.all(self.resource))

    def stored(self, raw: Raw, *, deleted: bool) -> None:
        """The server has written an object."""
        if self.lagging:
            return
        obj = msgspec.convert(raw, self.resource.type)
        for indexer in self.indexers:
            if deleted:
                indexer.delete_key(obj.key)
            else:
                indexer.add(obj)

    @property
    def _requests(self) -> list[Request]:
        return [request for request in self.server.requests if request.plural == self.resource.plural]

    async def _react(self, request: Request) -> None:
        if request.plural != self.resource.plural:
            return
        await self.answering.wait()
        if request.verb in WRITES and self.before and isawaitable(waiting := self.before.pop(0)()):
            await waiting
        if (errors := self.errors.get(request.verb)) and (error := errors.pop(0)) is not None:
            raise error


@dataclass
class Events:
    """The Events that would have been made: (key, type, reason, message)."""

    recorded: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def recorder(self) -> EventRecorder:
        return cast("EventRecorder", self)

    def event(self, obj: Object, type: str, reason: str, message: str) -> None:
        self.recorded.append((obj.key, type, reason, message))

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """(key, reason, message)"""
        return [(key, reason, message) for key, _type, reason, message in self.recorded]

    @property
    def warnings(self) -> list[tuple[str, str, str]]:
        """The same, without what only says what was done."""
        return [(key, reason, message) for key, kind, reason, message in self.recorded if kind == "Warning"]

    @property
    def reasons(self) -> list[str]:
        return [reason for _key, _type, reason, _message in self.recorded]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
