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
from kubeloop.testing.cluster.errors import ClusterError

T = TypeVar("T", bound=Object)
_SYNC_TIMEOUT = 120.0


class Watching:
    """The kinds that were named by `watch` are followed inside `async with`, which raises ClusterError when they cannot
    be listed: what is not seen would be taken for what is not there."""

    def __init__(
        self, client: Client, namespaces: Collection[str], *, sync_timeout: float = _SYNC_TIMEOUT
    ) -> None:
        """`sync_timeout`: seconds to the first lists of all kinds."""
        self._sync_timeout = sync_timeout
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
        if not await wait_for_cache_sync(*self._informers, timeout=self._sync_timeout):
            await self.__aexit__(None, None, None)
            raise ClusterError(
                f"the API server did not list all that is followed within {self._sync_timeout:g} s"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(informer.stop() for informer in self._informers))
