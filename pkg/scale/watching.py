"""The API server's watches, told to the measurements as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pkg.api import registry
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.cache import SharedIndexInformer, wait_for_cache_sync
from pkg.client.client import Client
from pkg.scale.measurements import Measurements

T = TypeVar("T", bound=Object)
_SYNC_TIMEOUT = 120.0


class Watching:
    """`async with Watching(client, namespaces, measurements)`: the measurements follow these namespaces."""

    def __init__(self, client: Client, namespaces: Collection[str], told: Measurements) -> None:
        self._namespaces = frozenset(namespaces)
        self._informers: list[SharedIndexInformer[Any]] = []
        self._watch(client, registry.RESOURCE_QUOTAS, told.see_quota)
        self._watch(client, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, told.see_migration)
        self._watch(client, VIRTUAL_MACHINE_INSTANCES, told.see_instance)
        self._watch(client, registry.PODS, told.see_pod, told.lose_pod)
        self._watch(client, registry.EVENTS, told.see_event)

    async def __aenter__(self) -> Self:
        for informer in self._informers:
            informer.start()
        await wait_for_cache_sync(*self._informers, timeout=_SYNC_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(informer.stop() for informer in self._informers))

    def _watch(
        self,
        client: Client,
        resource: Resource[T],
        see: Callable[[float, T], None],
        lose: Callable[[float, T], None] = lambda at, obj: None,
    ) -> None:
        informer = SharedIndexInformer(client.resource(resource))
        informer.add_event_handler(_Handler(self._namespaces, see, lose))
        self._informers.append(informer)


class _Handler(Generic[T]):
    """One kind's events."""

    def __init__(
        self,
        namespaces: frozenset[str],
        see: Callable[[float, T], None],
        lose: Callable[[float, T], None],
    ) -> None:
        self._namespaces = namespaces
        self._see = see
        self._lose = lose

    def on_add(self, obj: T, is_in_initial_list: bool) -> None:
        if obj.namespace in self._namespaces:
            self._see(time.monotonic(), obj)

    def on_update(self, old: T, new: T) -> None:
        if new.namespace in self._namespaces:
            self._see(time.monotonic(), new)

    def on_delete(self, obj: T, final_state_unknown: bool) -> None:
        if obj.namespace in self._namespaces:
            self._lose(time.monotonic(), obj)
