"""Reading one kind: get, list, watch."""

import contextlib
import copy
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from kubeloop.api.meta import Object, ObjectMeta, PartialObjectMetadata
from kubeloop.api.registry import Resource
from kubeloop.client.decode import Decoder, ListPage, ObjectList, WatchEvent, decoder_for
from kubeloop.client.discovery import served_names
from kubeloop.client.errors import STATUS_404, BadRequest, ServerError, check_namespace
from kubeloop.client.transport import JSON, READ_TIMEOUT, REQUEST_TIMEOUT, Transport

T = TypeVar("T", bound=Object)
PAGE_SIZE = 500
SLIM_PAGE_SIZE = 100
"""Objects of a page of which a part is dropped: a whole page is held until then."""
_PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


class ResourceReader(Generic[T]):
    """Requests that read one kind. Every method raises a subclass of ApiError; `namespace` "" is all, or a
    cluster-scoped kind. Names are checked before they become part of a path."""

    _namespace = _label_selector = _field_selector = ""
    """The part of the kind that lists and watches are of, where they do not say another."""
    _transform: Callable[[T], T] | None = None
    """Sees every object of a `list` before the next page comes (to drop fields)."""

    def __init__(self, transport: Transport, resource: Resource[T]) -> None:
        self.transport = transport
        self.resource = resource
        is_partial = resource.type is PartialObjectMetadata
        self._accept, self._accept_list = (_PARTIAL.format(""), _PARTIAL.format("List")) if is_partial else (JSON, JSON)
        of_kind = (resource.api_version, resource.kind) if is_partial else None
        self._decoder: Decoder[T] = decoder_for(resource.type, of_kind)

    async def get(self, *, name: str, namespace: str = "") -> T:
        """Returns the object. Raises NotFound; NotServed for a kind that is not installed."""
        path = self._object_path(name, namespace)
        return self._answer(name, await self.transport.request("GET", path, accept=self._accept))

    async def list(self, namespace: str = "", *, label_selector: str = "", field_selector: str = "") -> ObjectList[T]:
        """Returns every object. Raises Gone when the pages' snapshot expires midway."""
        options: dict[str, Any] = {"label_selector": label_selector, "field_selector": field_selector}
        options["limit"] = PAGE_SIZE if self._transform is None else SLIM_PAGE_SIZE
        objects: ObjectList[T] = ObjectList()
        continue_ = ""
        while True:
            page = await self.list_page(namespace, continue_=continue_, transform=self._transform, **options)
            objects += page.items
            objects.resource_version = page.metadata.resource_version
            continue_ = page.metadata.continue_
            if not continue_:
                return objects

    async def list_page(
        self,
        namespace: str = "",
        *,
        limit: int = 0,
        continue_: str = "",
        label_selector: str = "",
        field_selector: str = "",
        retry: bool = True,
        transform: Callable[[T], T | None] | None = None,
    ) -> ListPage[T]:
        """Returns at most `limit` objects (0: all), or what `transform` leaves of each (None: it did not decode)."""
        params = _params(
            limit=str(limit or ""),
            **{"continue": continue_},
            labelSelector=label_selector or self._label_selector,
            fieldSelector=field_selector or self._field_selector,
        )
        read = functools.partial(self._decoder.read_list_page, transform=transform)
        # However long a large list takes on a thin wire, it goes on while something comes.
        options: dict[str, Any] = {"timeout": None, "read_timeout": REQUEST_TIMEOUT, "retry": retry}
        path = self._collection_path(namespace or self._namespace)
        return await self.transport.read_answer(read, "GET", path, params=params, accept=self._accept_list, **options)

    async def is_served(self) -> bool:
        """Reports whether the server knows the kind, by its discovery. Raises ApiError where that cannot be told."""
        names = await served_names(self.transport, self.resource.api_version)
        return names is None or self.resource.plural in names

    def select(self, *, namespace: str = "", label_selector: str = "", field_selector: str = "") -> Self:
        """Returns this client, whose lists and watches are of a part of the kind, as an informer's (tweakListOptions).
        What names one object, a get or a write, says its namespace itself."""
        return self._with(_namespace=namespace, _label_selector=label_selector, _field_selector=field_selector)

    def _with(self, **changes: Any) -> Self:
        client = copy.copy(self)
        vars(client).update(changes)
        return client

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
        only: ObjectMeta | None = None,
        transform: Callable[[T], T | None] | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """`async with client.watch(...) as events`, then `async for event in events`; bookmarks are asked for. The
        server ends it after `timeout_seconds`; after `read_timeout` seconds of silence it counts as dead. `only`: of
        this one object. `transform` as of `list_page`. Raises ApiError, while reading too (an ERROR event: Gone)."""
        namespace, field_selector = namespace or self._namespace, field_selector or self._field_selector
        if only is not None:
            namespace = only.namespace
            field_selector = ",".join(filter(None, (field_selector, f"metadata.name={only.name}")))
        params = _params(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(int(timeout_seconds)) if timeout_seconds else "",
            sendInitialEvents="true" if send_initial_events else "",
            resourceVersionMatch="NotOlderThan" if send_initial_events else "",
            labelSelector=label_selector or self._label_selector,
            fieldSelector=field_selector,
        )
        path = self._collection_path(namespace)
        async with self.transport.stream(path, params, read_timeout, accept=self._accept) as lines:
            decode = self._decoder.watch_event
            events = (decode(line, transform) async for line in lines)
            try:
                yield events
            finally:
                await events.aclose()

    def _answer(self, name: str, body: bytes, *, may_be_nameless: bool = False) -> T:
        """The object of an answer; what has no name, or another one, is not it. Raises ServerError."""
        obj = self._decoder.object(body)
        if may_be_nameless and not obj.name and obj.kind == self.resource.kind:
            return obj
        if not obj.name or (name and obj.name != name):
            kind, name_problem = self.resource.kind, f"names {obj.name!r}" if obj.name else "has no name"
            raise ServerError(f"the answer is not {kind} {name}: it {name_problem}", status=500)
        return obj

    def _collection_path(self, namespace: str) -> str:
        return self.resource.path(_segment(namespace) if namespace else "")

    def _object_path(self, name: str, namespace: str, subresource: str = "") -> str:
        check_namespace(self.resource, namespace, name)
        return self.resource.path(_segment(namespace) if namespace else "", _segment(name), subresource)


def _segment(name: str) -> str:
    """A name as part of a path. Raises BadRequest for one that no object can have, as client-go's request does: a name
    that comes out of a tenant's spec may not lead elsewhere, and a delete without a name would delete them all."""
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise BadRequest(f"{name!r} is not a name of an object")
    return quote(name, safe="")


def _params(**params: str) -> dict[str, str]:
    return {key: value for key, value in params.items() if value}


async def list_installed(
    client: ResourceReader[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
) -> list[T]:
    """Returns every object; none where discovery confirms that the kind is not installed. Raises ApiError."""
    try:
        return await client.list(namespace, label_selector=label_selector, field_selector=field_selector)
    except STATUS_404:
        if await client.is_served():
            raise
        return []
