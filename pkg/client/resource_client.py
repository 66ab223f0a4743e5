"""Typed access to one kind: get, list, watch, create, patch, delete. Objects are never sent back whole."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.client.decode import Decoder, ListPage, WatchEvent, decoder_for
from pkg.client.errors import BadRequest
from pkg.client.transport import JSON_PATCH, MERGE_PATCH, READ_TIMEOUT, Transport

T = TypeVar("T", bound=Object)

PAGE_SIZE = 500


class ResourceClient(Generic[T]):
    """The requests of one kind. Every method raises a subclass of ApiError; `namespace` "" is all, or a
    cluster-scoped kind. Names are checked before they become part of a path."""

    def __init__(self, transport: Transport, resource: Resource[T]) -> None:
        self.transport = transport
        self.resource = resource
        self._decoder: Decoder[T] = decoder_for(resource.type)

    async def get(self, name: str, namespace: str = "") -> T:
        """One object. Raises NotFound."""
        return self._decoder.object(await self.transport.request("GET", self._object_path(name, namespace)))

    async def list(
        self, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[T], str]:
        """Every object, and the list's resourceVersion. Raises Gone when the pages' snapshot expires midway."""
        items: list[T] = []
        continue_ = ""
        while True:
            page = await self.list_page(
                namespace,
                limit=PAGE_SIZE,
                continue_=continue_,
                label_selector=label_selector,
                field_selector=field_selector,
            )
            items += page.items
            continue_ = page.metadata.continue_
            if not continue_:
                return items, page.metadata.resource_version

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
        """One page of at most `limit` objects (0: all). An object that does not decode is logged and left out."""
        params = _params(
            limit=str(limit or ""),
            **{"continue": continue_},
            resourceVersion=resource_version,
            resourceVersionMatch=resource_version_match,
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        path = self._collection_path(namespace)
        return self._decoder.list_page(await self.transport.request("GET", path, params=params, retry=retry))

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
        async with self.transport.stream(self._collection_path(namespace), params, read_timeout) as lines:
            events = self._events(lines)
            try:
                yield events
            finally:
                await events.aclose()

    async def create(self, body: Mapping[str, Any] | bytes, namespace: str = "") -> T:
        """Creates the object and returns it. Raises AlreadyExists; Unreachable when the answer was lost:
        then whether it was created is unknown, and finding out is the caller's part (it is not sent again by
        itself)."""
        path = self._collection_path(namespace)
        return self._decoder.object(await self.transport.request("POST", path, body=_encoded(body)))

    async def merge_patch(
        self, name: str, patch: Mapping[str, Any] | bytes, namespace: str = "", *, subresource: str = ""
    ) -> T:
        """JSON merge patch (RFC 7396): null removes a key. With metadata.resourceVersion in it: raises Conflict."""
        return await self._patch(name, _encoded(patch), namespace, subresource, MERGE_PATCH)

    async def json_patch(
        self, name: str, ops: Sequence[Mapping[str, Any]], namespace: str = "", subresource: str = ""
    ) -> T:
        """JSON patch (RFC 6902). Raises Invalid when a `test` does not hold or a path does not exist."""
        return await self._patch(name, msgspec.json.encode(ops), namespace, subresource, JSON_PATCH)

    async def delete(
        self,
        name: str,
        namespace: str = "",
        *,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
        uid: str | None = None,
    ) -> None:
        """Deletes one object; with `uid` only that very one. Raises NotFound, Conflict (another uid)."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy is not None:
            options["propagationPolicy"] = propagation_policy
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        path = self._object_path(name, namespace)
        await self.transport.request("DELETE", path, body=msgspec.json.encode(options))

    async def _patch(self, name: str, body: bytes, namespace: str, subresource: str, content_type: str) -> T:
        path = self._object_path(name, namespace, subresource)
        answer = await self.transport.request("PATCH", path, body=body, content_type=content_type)
        return self._decoder.object(answer)

    async def _events(self, lines: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent[T], None]:
        decode = self._decoder.watch_event
        async for line in lines:
            event = decode(line)
            if event is not None:
                yield event

    def _collection_path(self, namespace: str) -> str:
        return self.resource.path(_segment(namespace) if namespace else "")

    def _object_path(self, name: str, namespace: str, subresource: str = "") -> str:
        return self.resource.path(_segment(namespace) if namespace else "", _segment(name), subresource)


def _segment(name: str) -> str:
    """A name as part of a path. Raises BadRequest for one that no object can have, as client-go's request
    does: a name that comes out of somebody's spec may not lead elsewhere, and a delete without a name would
    delete them all."""
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise BadRequest(f"{name!r} is no name of an object", status=400, reason="BadRequest")
    return quote(name, safe="")


def _params(**params: str) -> dict[str, str]:
    return {key: value for key, value in params.items() if value}


def _encoded(body: Mapping[str, Any] | bytes) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)
