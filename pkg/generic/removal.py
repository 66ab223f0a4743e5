"""`on_remove`: a finalizer holds the object until the handler has dealt with its deletion (wrangler's OnRemove)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from pkg.api.meta import Object
from pkg.client.errors import NotFound
from pkg.client.resource_client import ResourceClient

T = TypeVar("T", bound=Object)

FINALIZER_PREFIX = "wrangler.cattle.io/"
"""Wire format: Harvester's controllers leave the same finalizers under the same names."""


class RemovalHandler(Generic[T]):
    """A handler that keeps `wrangler.cattle.io/<name>` on every object and calls `handler` when one is deleted."""

    def __init__(
        self, name: str, handler: Callable[[str, T], Awaitable[object]], client: ResourceClient[T]
    ) -> None:
        self.finalizer = FINALIZER_PREFIX + name
        self._handler = handler
        self._client = client

    async def __call__(self, key: str, obj: T | None) -> None:
        """Raises what the handler raises (the finalizer then stays) and ApiError of the patch, Conflict included."""
        if obj is None:
            return
        held = self.finalizer in (obj.metadata.finalizers or ())
        if obj.deleting and held:
            await self._handler(key, obj)
            await self._patch(obj, self._removal(obj))
        elif not obj.deleting and not held:
            await self._patch(obj, self._addition(obj))

    def _addition(self, obj: T) -> dict[str, Any]:
        if obj.metadata.finalizers:
            return {"op": "add", "path": "/metadata/finalizers/-", "value": self.finalizer}
        return {"op": "add", "path": "/metadata/finalizers", "value": [self.finalizer]}

    def _removal(self, obj: T) -> dict[str, Any]:
        place = (obj.metadata.finalizers or []).index(self.finalizer)
        return {"op": "remove", "path": f"/metadata/finalizers/{place}"}

    async def _patch(self, obj: T, operation: dict[str, Any]) -> None:
        # Both operations are only right for the list that was seen. A replaced resourceVersion is the server's
        # precondition: 409 where a JSON patch `test` would give 422, which looks like a bad request.
        version = {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": obj.metadata.resource_version,
        }
        try:
            await self._client.json_patch(obj.name, [version, operation], obj.namespace)
        except NotFound:
            pass  # gone meanwhile: nothing left to hold or to release
