"""Typed access to one kind: get, list, watch, create, patch, delete. Objects are never sent back whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from kubeloop.api.meta import Object, Struct
from kubeloop.api.objects import difference, guarded, metadata_difference
from kubeloop.api.registry import Resource
from kubeloop.client import discovery
from kubeloop.client.decode import Decoder, ListPage, ObjectList, WatchEvent, decoder_for
from kubeloop.client.errors import STATUS_404, AlreadyExists, BadRequest, NotFound, ServerError
from kubeloop.client.transport import JSON, JSON_PATCH, MERGE_PATCH, READ_TIMEOUT, REQUEST_TIMEOUT, Transport

T = TypeVar("T", bound=Object)

PAGE_SIZE = 500
PARTIAL_METADATA = (
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)


class _GuardMeta(Struct):
    resource_version: Any = None


class _Guard(Struct):
    """The part of a merge patch that binds it to what it was based on."""

    metadata: _GuardMeta | None = None


_GUARD = msgspec.json.Decoder(_Guard)


class ResourceClient(Generic[T]):
    """The requests of one kind. Every method raises a subclass of ApiError; `namespace` "" is all, or a
    cluster-scoped kind. Which object is meant is said by keywords, here and in the cache: two strings in a row are
    swapped too easily. Names are checked before they become part of a path."""

    def __init__(self, transport: Transport, resource: Resource[T], *, accept: str = JSON) -> None:
        """`accept`: the media type that gets, lists and watches ask for."""
        self.transport = transport
        self.resource = resource
        self._accept = accept
        self._decoder: Decoder[T] = decoder_for(resource.type)

    async def get(self, *, name: str, namespace: str = "") -> T:
        """One object. Raises NotFound; NotServed for a kind that is not installed."""
        path = self._object_path(name, namespace)
        return self._answer(name, await self.transport.request("GET", path, accept=self._accept))

    async def list(
        self, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList[T]:
        """Every object. Raises Gone when the pages' snapshot expires midway."""
        found: ObjectList[T] = ObjectList()
        continue_ = ""
        while True:
            page = await self.list_page(
                namespace,
                limit=PAGE_SIZE,
                continue_=continue_,
                label_selector=label_selector,
                field_selector=field_selector,
            )
            found += page.items
            found.resource_version = page.metadata.resource_version
            continue_ = page.metadata.continue_
            if not continue_:
                return found

    async def list_page(
        self,
        namespace: str = "",
        *,
        limit: int = 0,
        continue_: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
        label_selector: str = "",
        field_selector: str = "",
        retry: bool = True,
    ) -> ListPage[T]:
        """One page of at most `limit` objects (0: all). Objects that don't decode are reported."""
        params = _params(
            limit=str(limit or ""),
            **{"continue": continue_},
            resourceVersion=resource_version,
            resourceVersionMatch=resource_version_match,
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        path = self._collection_path(namespace)
        # However long a large list takes on a thin wire, it goes on while something comes.
        body = await self.transport.request(
            "GET",
            path,
            params=params,
            accept=self._accept,
            timeout=None,
            read_timeout=REQUEST_TIMEOUT,
            retry=retry,
        )
        return self._decoder.list_page(body)

    async def is_served(self) -> bool:
        """Whether the server knows the kind, by its discovery. Raises ApiError where that cannot be told."""
        return await discovery.is_served(self.transport, self.resource)

    def select(
        self, *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Selection[T]:
        """The part of the kind that an informer lists and watches (client-go's tweakListOptions)."""
        return Selection(
            self, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )

    @contextlib.asynccontextmanager
    async def watch(
        self,
        namespace: str = "",
        *,
        resource_version: str = "",
        timeout_seconds: float | None = None,
        send_initial_events: bool = False,
        label_selector: str = "",
        field_selector: str = "",
        read_timeout: float = READ_TIMEOUT,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """`async with client.watch(...) as events`, then `async for event in events`; bookmarks are asked for.

        `timeout_seconds`: when the server ends the watch by itself; `read_timeout`: seconds of silence after
        which it counts as dead. An ERROR event is handed out like the others (`error_from_status` makes an
        exception of it). Raises ApiError on entry, Unreachable or ServerError while reading.
        """
        params = _params(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(int(timeout_seconds)) if timeout_seconds else "",
            sendInitialEvents="true" if send_initial_events else "",
            resourceVersionMatch="NotOlderThan" if send_initial_events else "",
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        path = self._collection_path(namespace)
        async with self.transport.stream(path, params, read_timeout, accept=self._accept) as lines:
            events = self._events(lines)
            try:
                yield events
            finally:
                await events.aclose()

    async def create(self, body: Mapping[str, Any] | bytes, *, namespace: str = "") -> T:
        """Creates the object and returns it; a mapping need not say apiVersion and kind.

        Raises AlreadyExists; Unreachable when the answer was lost: then whether it was created is unknown, and finding
        out is the caller's part (it is not sent again by itself)."""
        if isinstance(body, Mapping):
            body = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **body}
        path = self._collection_path(namespace)
        return self._answer("", await self.transport.request("POST", path, body=_encoded(body)))

    async def create_or_update(
        self, body: Mapping[str, Any], change: Callable[[T], T], *, namespace: str = ""
    ) -> T:
        """The object of `body` (with metadata.name): created if it is not there, else `change(what is there)` written
        (controllerutil.CreateOrUpdate). Raises Conflict, and what `update` raises."""
        name = body["metadata"]["name"]
        try:
            found = await self.get(name=name, namespace=namespace)
        except NotFound:
            try:
                return await self.create(body, namespace=namespace)
            except AlreadyExists:
                found = await self.get(name=name, namespace=namespace)
        return await self.update(found, change(found))

    async def update(self, old: T, new: T) -> T:
        """Go's Update: write what differs between `old`, as it was read, and `new` (`kubeloop.api.objects.edit`).

        One merge patch of the declared fields that differ, bound to the resourceVersion of `old`; no request when
        nothing does. Returns the object as it is then. Raises Conflict, PartlyDeclared for a list that cannot be
        written whole, BadRequest if status differs and is written by `update_status`.
        """
        patch = difference(old, msgspec.structs.replace(new, metadata=old.metadata))
        if metadata := metadata_difference(old, new):
            patch["metadata"] = metadata
        return await self.patch(old, patch) if patch else old

    async def update_status(self, old: T, new: T) -> T:
        """Go's UpdateStatus: as `update`, through the subresource, of status alone, whatever else differs."""
        current: Any = new
        status = difference(old, msgspec.structs.replace(old, status=current.status)).get("status")
        return await self.patch(old, {"status": status}, subresource="status") if status else old

    async def patch(self, obj: T, patch: Mapping[str, Any], *, subresource: str = "") -> T:
        """A merge patch of `obj`, bound to its resourceVersion. Raises Conflict."""
        return await self.merge_patch(
            guarded(obj, patch), name=obj.name, namespace=obj.namespace, subresource=subresource
        )

    async def merge_patch(
        self, patch: Mapping[str, Any] | bytes, *, name: str, namespace: str = "", subresource: str = ""
    ) -> T:
        """JSON merge patch (RFC 7396): null removes a key. With metadata.resourceVersion in it: raises Conflict, and is
        sent again when a connection breaks."""
        if isinstance(patch, Mapping):
            self._check_status("status" in patch, subresource)
        body = _encoded(patch)
        meta = _GUARD.decode(body).metadata
        bound = meta is not None and bool(meta.resource_version)
        return await self._patch(name, body, namespace, subresource, MERGE_PATCH, bound)

    async def json_patch(
        self, ops: Sequence[Mapping[str, Any]], *, name: str, namespace: str = "", subresource: str = ""
    ) -> T:
        """JSON patch (RFC 6902). Raises Invalid when a `test` does not hold or a path does not exist. One that tests
        something, or replaces the resourceVersion, is sent again when a connection breaks."""
        paths = [op.get("path", "") for op in ops if op.get("op") != "test"]
        self._check_status(any(path.startswith("/status") for path in paths), subresource)
        bound = any(op["op"] == "test" or op.get("path") == "/metadata/resourceVersion" for op in ops)
        return await self._patch(name, msgspec.json.encode(ops), namespace, subresource, JSON_PATCH, bound)

    async def delete(
        self,
        *,
        name: str,
        namespace: str = "",
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
        uid: str | None = None,
    ) -> None:
        """Deletes one object; with `uid` only that very one, and again when a connection breaks. Raises NotFound,
        Conflict (another uid)."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy is not None:
            options["propagationPolicy"] = propagation_policy
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        path = self._object_path(name, namespace)
        body = msgspec.json.encode(options)
        await self.transport.request("DELETE", path, body=body, repeatable=uid is not None)

    async def _patch(
        self, name: str, body: bytes, namespace: str, subresource: str, content_type: str, bound: bool
    ) -> T:
        path = self._object_path(name, namespace, subresource)
        answer = await self.transport.request(
            "PATCH", path, body=body, content_type=content_type, repeatable=bound
        )
        return self._answer(name, answer)

    def _answer(self, name: str, body: bytes) -> T:
        """The object of an answer; what has no name, or another one, is not it. Raises ServerError."""
        obj = self._decoder.object(body)
        if not obj.name or (name and obj.name != name):
            kind, said = self.resource.kind, f"names {obj.name!r}" if obj.name else "has no name"
            raise ServerError(f"the answer is not {kind} {name}: it {said}", status=500)
        return obj

    def _check_status(self, writes_status: bool, subresource: str) -> None:
        """The API server ignores a status outside the subresource, and knows no object under one that is not there."""
        has = self.resource.status_subresource
        if has and writes_status and not subresource:
            wrong = 'through its subresource alone: update_status, or subresource="status"'
        elif has is False and subresource == "status":
            wrong = "like any other field: it has no status subresource"
        else:
            return
        raise BadRequest(
            f"status of {self.resource.kind} is written {wrong}", status=400, reason="BadRequest"
        )

    async def _events(self, lines: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent[T], None]:
        decode = self._decoder.watch_event
        async for line in lines:
            yield decode(line)

    def _collection_path(self, namespace: str) -> str:
        return self.resource.path(_segment(namespace) if namespace else "")

    def _object_path(self, name: str, namespace: str, subresource: str = "") -> str:
        if self.resource.namespaced and not namespace:
            raise BadRequest(
                f"{self.resource.kind} {name} has a namespace, and none is given",
                status=400,
                reason="BadRequest",
            )
        return self.resource.path(_segment(namespace) if namespace else "", _segment(name), subresource)


class Selection(Generic[T]):
    """A ListerWatcher over some of a kind's objects; `ResourceClient.select` makes it."""

    def __init__(self, client: ResourceClient[T], **options: Any) -> None:
        self.resource = client.resource
        self._client = client
        self._options = options

    async def is_served(self) -> bool:
        return await self._client.is_served()

    async def list_page(self, **options: Any) -> ListPage[T]:
        return await self._client.list_page(**self._options, **options)

    def watch(self, **options: Any) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        return self._client.watch(**self._options, **options)


def _segment(name: str) -> str:
    """A name as part of a path. Raises BadRequest for one that no object can have, as client-go's request
    does: a name that comes out of a tenant's spec may not lead elsewhere, and a delete without a name would
    delete them all."""
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise BadRequest(f"{name!r} is not a name of an object", status=400, reason="BadRequest")
    return quote(name, safe="")


def _params(**params: str) -> dict[str, str]:
    return {key: value for key, value in params.items() if value}


def _encoded(body: Mapping[str, Any] | bytes) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


async def list_installed(
    client: ResourceClient[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
) -> list[T]:
    """Every object; empty where discovery confirms that the kind is not installed. Raises ApiError."""
    try:
        return await client.list(namespace, label_selector=label_selector, field_selector=field_selector)
    except STATUS_404:
        if await client.is_served():
            raise
        return []
