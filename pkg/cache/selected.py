"""A kind seen through a label selector: what an informer of few among many objects lists and watches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.client.decode import ListPage, WatchEvent
from pkg.client.resource_client import ResourceClient

T = TypeVar("T", bound=Object)


class Selected(Generic[T]):
    """A ListerWatcher over the objects that match `label_selector` (client-go's tweakListOptions)."""

    def __init__(self, client: ResourceClient[T], label_selector: str) -> None:
        self._client = client
        self._label_selector = label_selector

    @property
    def resource(self) -> Resource[T]:
        return self._client.resource

    async def list_page(self, namespace: str = "", **options: Any) -> ListPage[T]:
        return await self._client.list_page(namespace, label_selector=self._label_selector, **options)

    def watch(
        self, namespace: str = "", **options: Any
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        return self._client.watch(namespace, label_selector=self._label_selector, **options)
