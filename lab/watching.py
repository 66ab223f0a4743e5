"""Watches of some namespaces, for a demo or a measurement that follows what the API server shows there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self, TypeVar

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.cache.informer import SharedIndexInformer, wait_for_cache_sync
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.client import Client

T = TypeVar("T", bound=Object)
_SYNC_TIMEOUT = 120.0


class Watching:
    """The kinds that were named by `watch` are followed inside `async with`."""

    def __init__(self, client: Client, namespaces: Collection[str]) -> None:
        self._client = client
        self._namespaces = frozenset(namespaces)
        self._changed = asyncio.Event()
        self._informers: list[SharedIndexInformer[Any]] = []

    def watch(
        self, resource: Resource[T], see: Callable[[T], None], lose: Callable[[T], None] = lambda _: None
    ) -> None:
        """`see` is called with every version of an object, `lose` with the last one of an object that is gone."""

        def tell(to: Callable[[T], None], obj: T) -> None:
            if obj.namespace in self._namespaces:
                to(obj)
                self._changed.set()

        informer = SharedIndexInformer(self._client.resource(resource))
        informer.add_event_handler(
            ResourceEventHandlerFuncs(
                on_add=lambda obj, _: tell(see, obj),
                on_update=lambda _, new: tell(see, new),
                on_delete=lambda obj, _: tell(lose, obj),
            )
        )
        self._informers.append(informer)

    async def changed(self, timeout: float) -> None:
        """Wait until something was seen, `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def __aenter__(self) -> Self:
        for informer in self._informers:
            informer.start()
        await wait_for_cache_sync(*self._informers, timeout=_SYNC_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(informer.stop() for informer in self._informers))
