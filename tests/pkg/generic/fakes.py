"""An API server as small as the tests of controllers need it: objects as JSON, watches, patches, scripted errors."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from pkg.api.meta import ListMeta, Object
from pkg.api.registry import Resource
from pkg.client.decode import ListPage, WatchEvent
from pkg.client.errors import ApiError, Conflict, Invalid, NotFound

T = TypeVar("T", bound=Object)

Raw = dict[str, Any]


class FakeResource(Generic[T]):
    """One kind. `errors` holds what the next calls of a verb raise, `calls` what was asked."""

    def __init__(self, resource: Resource[T], version: Callable[[], str]) -> None:
        self.resource = resource
        self.objects: dict[str, Raw] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.errors: dict[str, list[ApiError]] = {}
        self.installed = True
        self.answering = asyncio.Event()
        self.answering.set()
        self._version = version
        self._watchers: list[asyncio.Queue[WatchEvent[T]]] = []

    # What a test does to the server.

    def put(self, name: str, namespace: str = "", **fields: Any) -> T:
        """Somebody creates or replaces an object."""
        key = f"{namespace}/{name}" if namespace else name
        known = key in self.objects
        metadata = {"uid": f"uid-{name}", **fields.pop("metadata", {})}
        metadata |= {"name": name, "namespace": namespace, "resourceVersion": self._version()}
        self.objects[key] = {**fields, "metadata": metadata}
        return self._tell("MODIFIED" if known else "ADDED", self.objects[key])

    def remove(self, key: str) -> None:
        """Somebody deletes an object, and it is gone at once."""
        self._tell("DELETED", self.objects.pop(key))

    def mark_deleted(self, key: str) -> None:
        """Somebody deletes an object that finalizers hold."""
        raw = copy.deepcopy(self.objects[key])
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._store(key, raw)

    # What a ResourceClient does.

    async def list_page(self, namespace: str = "", **_: Any) -> ListPage[T]:
        await self._admit("list", "", None)
        return ListPage(
            [self._typed(raw) for raw in self.objects.values()], ListMeta(resource_version=self._version())
        )

    @contextlib.asynccontextmanager
    async def watch(
        self, namespace: str = "", *, send_initial_events: bool = False, **_: Any
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        await self._admit("watch", "", None)
        events: asyncio.Queue[WatchEvent[T]] = asyncio.Queue()
        if send_initial_events:
            for raw in self.objects.values():
                events.put_nowait(WatchEvent("ADDED", self._typed(raw), raw["metadata"]["resourceVersion"]))
            events.put_nowait(WatchEvent("BOOKMARK", None, self._version(), True))
        self._watchers.append(events)
        try:
            yield self._stream(events)
        finally:
            self._watchers.remove(events)

    async def create(self, body: Mapping[str, Any], namespace: str = "") -> T:
        await self._admit("create", body["metadata"]["name"], body)
        fields = copy.deepcopy({key: value for key, value in body.items() if key != "metadata"})
        return self.put(body["metadata"]["name"], namespace, metadata=dict(body["metadata"]), **fields)

    async def merge_patch(self, name: str, patch: Mapping[str, Any], namespace: str = "") -> T:
        await self._admit("merge_patch", name, patch)
        key = self._existing(name, namespace)
        return self._store(key, _merged(self.objects[key], patch))

    async def json_patch(self, name: str, ops: Sequence[Mapping[str, Any]], namespace: str = "") -> T:
        await self._admit("json_patch", name, ops)
        key = self._existing(name, namespace)
        raw = copy.deepcopy(self.objects[key])
        for operation in ops:
            _apply(raw, operation)
        if raw["metadata"]["resourceVersion"] != self.objects[key]["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified", status=409, reason="Conflict")
        return self._store(key, raw)

    def asked(self, verb: str) -> list[Any]:
        """The bodies of all requests of a verb."""
        return [body for called, _, body in self.calls if called == verb]

    async def _admit(self, verb: str, name: str, body: Any) -> None:
        self.calls.append((verb, name, copy.deepcopy(body)))
        await asyncio.sleep(0)
        await self.answering.wait()
        if not self.installed:
            raise NotFound("the server could not find the requested resource", status=404)
        if self.errors.get(verb):
            raise self.errors[verb].pop(0)

    def _existing(self, name: str, namespace: str) -> str:
        key = f"{namespace}/{name}" if namespace else name
        if key not in self.objects:
            raise NotFound(f"{name} not found", status=404, reason="NotFound")
        return key

    def _store(self, key: str, raw: Raw) -> T:
        raw["metadata"]["resourceVersion"] = self._version()
        if raw["metadata"].get("deletionTimestamp") and not raw["metadata"].get("finalizers"):
            del self.objects[key]
            return self._tell("DELETED", raw)
        self.objects[key] = raw
        return self._tell("MODIFIED", raw)

    def _tell(self, event: str, raw: Raw) -> T:
        obj = self._typed(raw)
        for watcher in self._watchers:
            watcher.put_nowait(WatchEvent(event, obj, raw["metadata"]["resourceVersion"]))
        return obj

    def _typed(self, raw: Raw) -> T:
        return msgspec.convert(raw, self.resource.type)

    @staticmethod
    async def _stream(events: asyncio.Queue[WatchEvent[T]]) -> AsyncIterator[WatchEvent[T]]:
        while True:
            yield await events.get()


class FakeClient:
    """A Client over FakeResources; resourceVersions count up over all kinds."""

    def __init__(self) -> None:
        self._resources: dict[str, FakeResource[Any]] = {}
        self._last_version = 0

    def resource(self, resource: Resource[T]) -> FakeResource[T]:
        if resource.plural not in self._resources:
            self._resources[resource.plural] = FakeResource(resource, self._next_version)
        return self._resources[resource.plural]

    def _next_version(self) -> str:
        self._last_version += 1
        return str(self._last_version)


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _apply(raw: Raw, operation: Mapping[str, Any]) -> None:
    """RFC 6902's add, remove and replace, for maps and lists."""
    *parents, last = operation["path"].strip("/").split("/")
    place: Any = raw
    for parent in parents:
        if parent not in place:
            raise Invalid(f"no such path {operation['path']}", status=422)
        place = place[parent]
    if isinstance(place, list):
        if operation["op"] == "add":
            place.insert(len(place) if last == "-" else int(last), operation["value"])
        else:
            place.pop(int(last))
    elif operation["op"] == "remove":
        del place[last]
    else:
        place[last] = operation["value"]
