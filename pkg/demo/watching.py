"""The API server's watches, written down in the history as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pkg.api import registry
from pkg.api.core import Event, Pod
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINES
from pkg.api.meta import Object
from pkg.api.registry import Resource
from pkg.cache import SharedIndexInformer, wait_for_cache_sync
from pkg.client.client import Client
from pkg.demo.history import History
from pkg.util import constants

T = TypeVar("T", bound=Object)


class Watching:
    """`async with Watching(client, namespace, history) as watching`: the history follows the namespace."""

    def __init__(self, client: Client, namespace: str, history: History) -> None:
        self._namespace = namespace
        self._chronicle = history
        self._changed = asyncio.Event()
        self._informers: list[SharedIndexInformer[Any]] = []
        self._watch(client, registry.RESOURCE_QUOTAS, history.see_quota)
        self._watch(client, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, history.see_migration)
        self._watch(client, VIRTUAL_MACHINES, history.see_machine)
        self._watch(client, registry.PODS, _launchers(history.see_pod), _launchers(history.lose_pod))
        self._watch(client, registry.EVENTS, self._see_event)

    async def __aenter__(self) -> Self:
        for informer in self._informers:
            informer.start()
        await wait_for_cache_sync(*self._informers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(informer.stop() for informer in self._informers))

    async def changed(self, timeout: float) -> None:
        """Wait until something was seen, `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _see_event(self, event: Event) -> None:
        if event.involved_object.kind == VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.kind:
            self._chronicle.see_event(event)

    def _watch(
        self,
        client: Client,
        resource: Resource[T],
        see: Callable[[T], None],
        lose: Callable[[T], None] = lambda _: None,
    ) -> None:
        informer = SharedIndexInformer(client.resource(resource))
        informer.add_event_handler(_Handler(self._mine(see), self._mine(lose)))
        self._informers.append(informer)

    def _mine(self, tell: Callable[[T], None]) -> Callable[[T], None]:
        def told(obj: T) -> None:
            if obj.namespace == self._namespace:
                tell(obj)
                self._changed.set()

        return told


class _Handler(Generic[T]):
    """One kind's events."""

    def __init__(self, see: Callable[[T], None], lose: Callable[[T], None]) -> None:
        self._see = see
        self._lose = lose

    def on_add(self, obj: T, is_in_initial_list: bool) -> None:
        self._see(obj)

    def on_update(self, old: T, new: T) -> None:
        self._see(new)

    def on_delete(self, obj: T, final_state_unknown: bool) -> None:
        self._lose(obj)


def _launchers(tell: Callable[[Pod], None]) -> Callable[[Pod], None]:
    def told(pod: Pod) -> None:
        if pod.labels.get(constants.LABEL_APP) == constants.APP_VIRT_LAUNCHER:
            tell(pod)

    return told
