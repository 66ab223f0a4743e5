"""`on_remove`: a finalizer holds the object until the handler has dealt with its deletion (wrangler's OnRemove)."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kubeloop.api.meta import Object
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.reconcile import same_object

T = TypeVar("T", bound=Object)

FINALIZER_PREFIX = "wrangler.cattle.io/"
"""Wire format: wrangler's controllers leave the same finalizers under the same names."""


def read_for_removal(obj: Object) -> object:
    """The part of an object that matters to a RemovalHandler: once it is being deleted, each change."""
    meta = obj.metadata
    return meta.uid, meta.finalizers, meta.deletion_timestamp and meta.resource_version


class RemovalHandler(Generic[T]):
    """A handler that keeps `finalizer` on every object and calls `handler` when one is deleted."""

    def __init__(
        self, finalizer: str, handler: Callable[[str, T], Awaitable[T | None]], client: ResourceClient[T]
    ) -> None:
        self.finalizer = finalizer
        self._handler = handler
        self._client = client

    async def __call__(self, key: str, obj: T | None) -> T | None:
        """Returns the object as it was written. Raises what the handler raises (the finalizer then stays) and ApiError
        of the patch."""
        if obj is None:
            return None
        finalizers = obj.metadata.finalizers or []
        has_finalizer = self.finalizer in finalizers
        if obj.deleting and has_finalizer:
            returned = await self._handler(key, obj)
            return await self._release(same_object(obj, returned) or obj)
        if not obj.deleting and not has_finalizer:
            with contextlib.suppress(NotFound):  # gone meanwhile: nothing left to hold
                return await self._client.patch(obj, {"metadata": {"finalizers": [*finalizers, self.finalizer]}})
        return None

    async def _release(self, obj: T) -> T | None:
        """Takes the finalizer from the object as it is now: the handler may have changed it, and others all the time.

        The handler succeeded; to call it again because of a conflict would have it change the object again, for ever.
        """

        async def attempt(again: bool) -> T | None:
            now = await self._client.get(name=obj.name, namespace=obj.namespace) if again else obj
            finalizers = [name for name in now.metadata.finalizers or () if name != self.finalizer]
            if now.uid != obj.uid or finalizers == (now.metadata.finalizers or []):
                return None
            return await self._client.patch(now, {"metadata": {"finalizers": finalizers}})

        try:
            return await retry_on_conflict(attempt)
        except NotFound:
            return None
