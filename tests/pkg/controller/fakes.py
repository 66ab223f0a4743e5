"""One kind on an API server of the test's own, and the cache of it, which lags behind for as long as a test wants.

A write is checked as the API server checks it: a resourceVersion or uid in a patch is a precondition (409).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import msgspec

from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.cache.store import Indexer
from pkg.client.decode import ObjectList
from pkg.client.errors import ApiError, Conflict, Invalid, NotFound, NotServed
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.generic.events import EventRecorder

T = TypeVar("T", bound=Object)
Raw = dict[str, Any]


class Kind(Generic[T]):
    """Objects by key. `calls` are the requests, `errors` what the next ones of a verb raise; `before` is called
    ahead of every write, once: the place for a foreign writer."""

    def __init__(self, resource: Resource[T]) -> None:
        self.resource = resource
        self.objects: dict[str, Raw] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.errors: dict[str, list[ApiError]] = {}
        self.before: list[Callable[[], object]] = []
        self.lagging = False
        self.installed = True
        self.indexer: Indexer[T] = Indexer()
        self._version = 1000

    # What a test sees and does.

    @property
    def cache(self) -> CacheReader[T]:
        return CacheReader(self.indexer)

    @property
    def client(self) -> ResourceClient[T]:
        return cast("ResourceClient[T]", self)

    def given(self, obj: T | Raw) -> T:
        """Another client writes an object, whole."""
        raw = copy.deepcopy(obj) if isinstance(obj, dict) else msgspec.to_builtins(obj)
        return self._store(raw)

    def edited(self, key: str, patch: Mapping[str, Any]) -> T:
        """Another client patches an object."""
        return self._store(merged(self.objects[key], patch))

    def gone(self, key: str) -> None:
        """Another client deletes an object."""
        self.indexer.delete(self.typed(self.objects.pop(key)))

    def catch_up(self) -> None:
        """The watch brings everything."""
        self.lagging = False
        self.indexer.replace([self.typed(raw) for raw in self.objects.values()])

    def now(self, key: str) -> T:
        """The object as the server has it."""
        return self.typed(self.objects[key])

    def cached(self, key: str) -> T | None:
        return self.indexer.get_by_key(key)

    def asked(self, verb: str) -> list[Any]:
        """The bodies of all requests of a verb."""
        return [body for called, _key, body in self.calls if called == verb]

    # What a ResourceClient does.

    async def is_served(self) -> bool:
        return self.installed

    async def get(self, *, name: str, namespace: str = "") -> T:
        return self.typed(self.objects[self._admit("get", name, namespace, None)])

    async def list(
        self, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList[T]:
        self._admit("list", "", namespace, label_selector)
        if not self.installed:
            raise NotServed("404 page not found", status=404)
        label, _, value = label_selector.partition("=")
        found = [self.typed(raw) for raw in self.objects.values()]
        in_namespace = [obj for obj in found if namespace in ("", obj.namespace)]
        matching = [obj for obj in in_namespace if not label or obj.labels.get(label) == value]
        return ObjectList(matching, str(self._version))

    async def create(self, body: Mapping[str, Any], *, namespace: str = "") -> T:
        raw = copy.deepcopy(dict(body))
        metadata = raw["metadata"]
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{len(self.calls)}")
        metadata |= {"namespace": namespace, "uid": f"uid-{metadata['name']}"}
        self._admit("create", "", namespace, body)
        return self._store(raw)

    async def merge_patch(self, patch: Mapping[str, Any], *, name: str, namespace: str = "") -> T:
        key = self._admit("merge_patch", name, namespace, patch)
        there = self.objects[key]
        for precondition in ("resourceVersion", "uid"):
            wanted = patch.get("metadata", {}).get(precondition)
            if wanted is not None and wanted != there["metadata"][precondition]:
                raise Conflict("the object has been modified", status=409, reason="Conflict")
        return self._store(merged(there, patch))

    async def json_patch(self, ops: Sequence[Mapping[str, Any]], *, name: str, namespace: str = "") -> T:
        raw = copy.deepcopy(self.objects[self._admit("json_patch", name, namespace, ops)])
        for op in ops:
            *way, last = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
            parent = raw
            for part in way:
                parent = parent[part]
            if op["op"] == "test" and parent.get(last) != op["value"]:
                raise Invalid("the server rejected our request", status=422, reason="Invalid")
            if op["op"] == "add":
                parent[last] = op["value"]
            elif op["op"] == "remove":
                del parent[last]
        return self._store(raw)

    async def delete(self, *, name: str, namespace: str = "", uid: str | None = None) -> None:
        key = self._admit("delete", name, namespace, uid)
        if uid is not None and self.objects[key]["metadata"]["uid"] != uid:
            raise Conflict("the UID in the precondition does not match", status=409, reason="Conflict")
        self.gone(key)

    def _admit(self, verb: str, name: str, namespace: str, body: Any) -> str:
        key = f"{namespace}/{name}" if namespace else name
        self.calls.append((verb, key, copy.deepcopy(body)))
        if verb in ("merge_patch", "json_patch", "create", "delete") and self.before:
            self.before.pop(0)()
        if self.errors.get(verb):
            raise self.errors[verb].pop(0)
        if name and key not in self.objects:
            raise NotFound(f"{name} not found", status=404, reason="NotFound")
        return key

    def _store(self, raw: Raw) -> T:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        obj = self.typed(raw)
        self.objects[obj.key] = raw
        if not self.lagging:
            self.indexer.update(obj)
        return obj

    def typed(self, raw: Raw) -> T:
        return msgspec.convert(raw, self.resource.type)


@dataclass
class Events:
    """What would have become Events: (key, type, reason, message)."""

    recorded: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def recorder(self) -> EventRecorder:
        return cast("EventRecorder", self)

    def event(self, obj: Object, type: str, reason: str, message: str) -> None:
        self.recorded.append((obj.key, type, reason, message))

    @property
    def reasons(self) -> list[str]:
        return [reason for _key, _type, reason, _message in self.recorded]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
