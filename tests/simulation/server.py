"""An API server, one of several, and a client's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import msgspec

from kubeloop.api.meta import now_rfc3339, rfc3339
from kubeloop.api.registry import LIMIT_RANGES, PODS, Resource
from kubeloop.client import errors
from kubeloop.client.client import Client
from kubeloop.client.connections import BeforeWrite
from kubeloop.client.transport import JSON_PATCH, REQUEST_TIMEOUT
from kubeloop.testing.fake.objects import key_of
from kubeloop.testing.fake.patches import Raw, json_patched, merged
from kubeloop.testing.fake.server import FakeTransport
from tests.simulation.cluster import StoryCluster
from tests.simulation.process import SimulatedProcess, outside
from tests.simulation.repeatable import START, monotonic, wall

if TYPE_CHECKING:
    from tests.simulation.admission import Admission

GRACE = 30
_READS = ("GET", "HEAD")


@dataclass(frozen=True)
class ApiWrite:
    """A write before it is stored; `old` None: it creates, `new` None: it deletes."""

    user: str
    resource: Resource[Any]
    subresource: str
    namespace: str
    name: str
    old: Raw | None
    new: Raw | None

    @property
    def operation(self) -> str:
        return "CREATE" if self.old is None else "DELETE" if self.new is None else "UPDATE"

    @property
    def plural(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


class ApiServer(FakeTransport):
    """Answers requests; `user` is who sends them."""

    def __init__(self, cluster: StoryCluster, admission: Admission) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self.admission = admission

    async def serve(
        self, user: str, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str
    ) -> bytes:
        if path.endswith("/selfsubjectreviews"):
            return msgspec.json.encode({"status": {"userInfo": {"username": user}}})
        if path == "/version":
            return b'{"gitVersion": "v1.34.0"}'
        if method == "POST" and path.endswith("/events"):
            return await self._event(user, path, body)
        if self.cluster.random.random() < self.cluster.failing:
            kind = self.cluster.random.choice([errors.TooManyRequests, errors.ServiceUnavailable])
            raise kind("try again later", status=429 if kind is errors.TooManyRequests else 503)
        if method in _READS:
            await self.cluster.storage()
            return await super().request(method, path, params=params)
        return await self._write_object(user, method, path, body, content_type)

    async def _event(self, user: str, path: str, body: bytes | None) -> bytes:
        """Events are not kept; the probe's passes admission."""
        event = msgspec.json.decode(body or b"{}")
        resource, namespace, _, _ = self._parsed(path)
        event["metadata"] |= {"name": "event", "namespace": namespace, "uid": str(uuid.uuid4())}
        new = await self.admission.review(ApiWrite(user, resource, "", namespace, "event", None, event))
        return msgspec.json.encode(new)

    async def _write_object(self, user: str, method: str, path: str, body: bytes | None, content_type: str) -> bytes:
        path, subresource = _own_subresource(path)
        resource, namespace, name, parsed = self._parsed(path)
        subresource = subresource or parsed
        sent: Any = msgspec.json.decode(body) if body else {}
        if method == "POST" and not subresource:
            return await self._create_object(user, resource, namespace, sent)
        old = copy.deepcopy(self.cluster.existing(resource, namespace, name))
        if subresource == "binding":
            sent, content_type = {"spec": {"nodeName": sent["target"]["name"]}}, "merge"
        new = None if method == "DELETE" else _changed(old, sent, method, content_type)
        write = ApiWrite(user, resource, subresource, namespace, name, old, new)
        admitted = await self.admission.review(write)
        await self.cluster.storage()
        current = self.cluster.existing(resource, namespace, name)
        if resource is PODS and method == "DELETE":
            return msgspec.json.encode(self._delete_pod(current, sent))
        if subresource in ("resize", "binding"):
            new = _changed(current, sent, method, content_type)
            self.admission.charge(ApiWrite(user, resource, subresource, namespace, name, current, new))
            return msgspec.json.encode(self.cluster.store(resource, key_of(namespace, name), current, new))
        if admitted != new:
            body = msgspec.json.encode(admitted)
            return await super().request("PUT", path, body=body)
        return await super().request(method, path, body=body, content_type=content_type)

    async def _create_object(self, user: str, resource: Resource[Any], namespace: str, sent: Raw) -> bytes:
        """The name and the uid are there before admission looks at it."""
        sent["metadata"].setdefault("name", f"{sent['metadata'].get('generateName', '')}{uuid.uuid4().hex[:5]}")
        name = sent["metadata"]["name"]
        sent["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now_rfc3339()}
        if namespace:
            sent["metadata"]["namespace"] = namespace
        if resource is PODS:
            self._complete(sent)
        write = ApiWrite(user, resource, "", namespace, name, None, sent)
        await self.admission.review(write)
        await self.cluster.storage()
        key = key_of(namespace, name)
        if key in self.cluster.raw(resource):
            message = f'{resource.group_resource} "{name}" already exists'
            raise errors.AlreadyExists(message, status=409, reason="AlreadyExists")
        self.admission.charge(write)
        if resource.status_subresource:
            sent.pop("status", None)
        if resource is PODS:
            sent["status"] = {"phase": "Pending"}
        keys: dict[str, Any] = {f"f:{key}": {} for key in sent["metadata"].get("annotations") or {}}
        manager = {"manager": user.rpartition(":")[2], "fieldsV1": {"f:metadata": {"f:annotations": keys}}}
        sent["metadata"]["managedFields"] = [manager]
        return msgspec.json.encode(self.cluster.store(resource, key, None, sent))

    def _complete(self, pod: Raw) -> None:
        """With the default limits of the namespace's LimitRange, and requests that are not given."""
        limit_range = self.cluster.raw(LIMIT_RANGES).get(f"{pod['metadata']['namespace']}/defaults")
        default = limit_range["spec"]["limits"][0]["default"] if limit_range else {}
        for container in (*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())):
            resources = container.setdefault("resources", {})
            resources["limits"] = {**default, **(resources.get("limits") or {})}
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}

    def _delete_pod(self, current: Raw, options: Raw) -> Raw:
        """Gracefully; the kubelet, where it has one, says when it is gone."""
        uid = (options.get("preconditions") or {}).get("uid")
        if uid not in (None, current["metadata"]["uid"]):
            raise errors.Conflict("the UID in the precondition is another", status=409, reason="Conflict")
        key = key_of(current["metadata"]["namespace"], current["metadata"]["name"])
        if not current["spec"].get("nodeName"):
            return self.cluster.store(PODS, key, current, None)
        if current["metadata"].get("deletionTimestamp"):
            return current
        marked = copy.deepcopy(current)
        until = {"deletionTimestamp": rfc3339(wall() + GRACE), "deletionGracePeriodSeconds": GRACE}
        marked["metadata"] |= until
        return self.cluster.store(PODS, key, current, marked)


class ServerConnection(FakeTransport):
    """A program's requests: each goes to one of the servers, takes its time, and may be given up half-way."""

    def __init__(
        self,
        servers: Sequence[ApiServer],
        user: str,
        process: SimulatedProcess | None = None,
        before_write: BeforeWrite | None = None,
    ) -> None:
        super().__init__(servers[0].cluster)
        self._servers = servers
        self._shared = servers[0].cluster
        self.user = user
        self._process = process
        self._life = process.life() if process else 0
        self._before = before_write

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float | None = REQUEST_TIMEOUT,
        retry: bool = True,
        repeatable: bool | None = None,
        **_: Any,
    ) -> bytes:
        """See Transport; it repeats what the real one does."""

        async def attempt() -> bytes:
            try:
                async with asyncio.timeout(timeout or REQUEST_TIMEOUT):
                    return await self._answered(method, path, params or {}, body, content_type)
            except TimeoutError as error:
                raise errors.Unreachable("timed out") from error

        if (answer := self._discovery(path)) is not None:
            return msgspec.json.encode(answer)
        if not retry:
            return await attempt()
        repeatable = method in _READS if repeatable is None else repeatable
        return await self._retry.run(attempt, repeatable=repeatable)

    async def _answered(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str
    ) -> bytes:
        if self._process:
            await self._process.alive(self._life)
        if method not in _READS and self._before and not path.endswith("/selfsubjectreviews"):
            self._before()
        await self._latency()
        server = self._shared.random.choice(self._servers)
        # The server goes on with what it has begun, whether it is waited for or not.
        serving = outside(server.serve(self.user, method, path, params, body, content_type))
        serving.add_done_callback(_looked_at)
        answer = await asyncio.shield(serving)
        self._hear_the_time()
        await self._latency()
        if self._process:
            await self._process.alive(self._life)
        return answer

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, read_timeout: float = 0.0, accept: str = ""
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        if self._process:
            await self._process.alive(self._life)
        await self._latency()
        server = self._shared.random.choice(self._servers)
        self._hear_the_time()
        async with server.stream(path, params, read_timeout, accept) as lines:
            yield lines

    def _hear_the_time(self) -> None:
        """Every answer says it."""
        now = datetime.fromtimestamp(START + monotonic(), UTC)
        self.server_clock.heard(format_datetime(now, usegmt=True))

    async def _latency(self) -> None:
        await asyncio.sleep(self._shared.random.uniform(*self._shared.traits.latency))


def client(
    servers: Sequence[ApiServer],
    user: str,
    process: SimulatedProcess | None = None,
    before_write: BeforeWrite | None = None,
) -> Client:
    return Client(ServerConnection(servers, user, process, before_write))


def _looked_at(task: asyncio.Task[bytes]) -> None:
    """Its error is no news, whoever waits for it."""
    if not task.cancelled():
        task.exception()


def _own_subresource(path: str) -> tuple[str, str]:
    """Serves the subresources of pods that the fake does not know."""
    for name in ("resize", "binding"):
        if path.endswith(f"/{name}"):
            return path.removesuffix(f"/{name}"), name
    return path, ""


def _changed(current: Raw, sent: Any, method: str, content_type: str) -> Raw:
    if method == "PUT":
        return dict(sent)
    if content_type == JSON_PATCH:
        return json_patched(current, sent)
    changed: Raw = merged(current, sent)
    return changed
