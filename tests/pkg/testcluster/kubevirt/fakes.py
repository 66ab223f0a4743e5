"""An API server in a dict, and the parts of the framework that the handlers are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from pkg.api.core import Pod, ResourceQuota
from pkg.api.meta import Object
from pkg.cache.store import Indexer
from pkg.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from pkg.client.fake.patches import json_patched
from pkg.generic.cache_reader import CacheReader
from pkg.testcluster.kubevirt.creation import Clock, Creator, Placement, Refusals
from pkg.testcluster.kubevirt.lookup import Migrations, Pods
from pkg.testcluster.kubevirt.objects import (
    Node,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.testcluster.kubevirt.quota_lag import QuotaLag
from tests.pkg.testcluster.kubevirt.samples import NAMESPACE, node

T = TypeVar("T", bound=Object)
Call = tuple[str, ...]


class FakeKind(Generic[T]):
    """One kind's client and cache. What is written shows in the cache at once, unless `lags`.

    `errors` are raised by the next creates, in order; None lets one through.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.indexer: Indexer[T] = Indexer()
        self.cache: CacheReader[T] = CacheReader(self.indexer)
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[Call] = []
        self.patches: list[dict[str, Any]] = []
        self.errors: list[ApiError | None] = []
        self.lags = False
        self._version = 7

    def seed(self, *objects: T) -> None:
        """Objects that are on the server and in the cache."""
        for obj in objects:
            self._store(obj.key, msgspec.to_builtins(obj))

    def catch_up(self) -> None:
        """The cache sees all that the server has."""
        self.indexer.replace([msgspec.convert(body, self.kind) for body in self.objects.values()])

    def get_cached(self, name: str) -> T:
        obj = self.indexer.get_by_key(f"{NAMESPACE}/{name}")
        assert obj is not None, name
        return obj

    async def get(self, *, name: str, namespace: str = "") -> T:
        self.calls.append(("get", name))
        return msgspec.convert(self._found(name, namespace), self.kind)

    async def create(self, body: Mapping[str, Any], *, namespace: str = "") -> T:
        name = body["metadata"]["name"]
        self.calls.append(("create", name))
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        if f"{namespace}/{name}" in self.objects:
            raise AlreadyExists(name, status=409)
        meta = {"uid": f"uid-{name}", **body["metadata"]}
        return self._store(f"{namespace}/{name}", {**body, "metadata": meta})

    async def merge_patch(
        self, patch: Mapping[str, Any], *, name: str, namespace: str = "", subresource: str = ""
    ) -> T:
        body = self._found(name, namespace)
        self.calls.append(("patch", name, subresource) if subresource else ("patch", name))
        meta = dict(patch.get("metadata", {}))
        version = meta.pop("resourceVersion", None)
        if version not in (None, body["metadata"].get("resourceVersion")):
            raise Conflict(name, status=409)
        content = {**patch, "metadata": meta} if meta else {k: v for k, v in patch.items() if k != "metadata"}
        self.patches.append(content)
        return self._store(f"{namespace}/{name}", merged(body, content))

    async def json_patch(self, ops: Sequence[Mapping[str, Any]], *, name: str, namespace: str = "") -> T:
        body = self._found(name, namespace)
        self.calls.append(("patch", name))
        content = json_patched(body, ops)
        self.patches.append({"ops": list(ops)})
        return self._store(f"{namespace}/{name}", content)

    async def delete(self, *, name: str, namespace: str = "", uid: str | None = None, **_: Any) -> None:
        body = self._found(name, namespace)
        if uid not in (None, body["metadata"]["uid"]):
            raise Conflict(name, status=409)
        self.calls.append(("delete", name))
        del self.objects[f"{namespace}/{name}"]
        if not self.lags:
            self.catch_up()

    def _found(self, name: str, namespace: str) -> dict[str, Any]:
        try:
            return self.objects[f"{namespace}/{name}"]
        except KeyError:
            raise NotFound(name, status=404) from None

    def _store(self, key: str, body: dict[str, Any]) -> T:
        self._version += 1
        meta = {**body["metadata"], "resourceVersion": str(self._version)}
        self.objects[key] = {**body, "metadata": meta}
        obj = msgspec.convert(self.objects[key], self.kind)
        if not self.lags:
            self.indexer.update(obj)
        return obj


class FakeRecorder:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def event(self, obj: Object, type: str, reason: str, message: str) -> None:
        self.events.append((obj.name, reason, message))


class FakeClock(Clock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(wall=lambda: self.now, loop=lambda: self.now)


class World:
    """Everything that a handler can be given, around one set of fake kinds."""

    def __init__(self) -> None:
        self.machines = FakeKind(VirtualMachine)
        self.instances = FakeKind(VirtualMachineInstance)
        self.migrations = FakeKind(VirtualMachineInstanceMigration)
        self.pods = FakeKind(Pod)
        self.nodes = FakeKind(Node)
        self.nodes.indexer.replace([node("node-1"), node("node-2"), node("node-3")])
        self.clock = FakeClock()
        self.recorder = FakeRecorder()
        self.found_pods = Pods(self.pods.cache)
        self.found_migrations = Migrations(self.migrations.cache)
        self.placement = Placement(self.nodes.cache, self.found_pods)
        self.quotas = FakeKind(ResourceQuota)
        self.lag = QuotaLag(0.0, self.quotas.cache, self.clock.loop)

    def creator(self) -> Creator:
        pods: Any = self.pods
        recorder: Any = self.recorder
        return Creator(pods, self.placement, Refusals(), recorder, self.clock, self.lag)


def merged(body: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7396."""
    result = dict(body)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result
