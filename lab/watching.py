"""Watches of some namespaces: what the API server shows there goes into their records."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from kubeloop.api.registry import EVENTS, NAMESPACES, PODS, RESOURCE_QUOTAS, Resource
from kubeloop.cache.informer import SharedIndexInformer, wait_for_cache_sync
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.client import Client
from kubeloop.testing.cluster.reporting import ClusterError
from lab.record import Record
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES

See = Callable[[Record, Any], None]
_SYNC_TIMEOUT = 120.0


def _ignore(_record: Record, _obj: object) -> None:
    """Ignores a deletion."""


_METHODS: Mapping[str, tuple[See, See]] = {
    NAMESPACES.kind: (Record.see_namespace, _ignore),
    RESOURCE_QUOTAS.kind: (Record.see_quota, _ignore),
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.kind: (Record.see_migration, Record.lose_migration),
    VIRTUAL_MACHINES.kind: (lambda record, vm: record.vms.update({vm.name: vm}), _ignore),
    VIRTUAL_MACHINE_INSTANCES.kind: (lambda record, vmi: record.vmis.update({vmi.name: vmi}), _ignore),
    PODS.kind: (Record.see_pod, Record.lose_pod),
    EVENTS.kind: (Record.see_event, _ignore),
}


class Watching:
    """The namespaces of `records` are followed inside `async with`, as far as objects of `kinds` go. Entering raises
    ClusterError when they cannot be listed: what is not seen would be taken for what is not there. For the same reason
    leaving raises what a record's listener has raised."""

    def __init__(
        self, client: Client, records: Mapping[str, Record], *kinds: Resource[Any], sync_timeout: float = _SYNC_TIMEOUT
    ) -> None:
        """Prepares the watches. `sync_timeout`: seconds to the first lists of all kinds."""
        self.records = records
        self._sync_timeout = sync_timeout
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._informers = [self._informer(client, kind) for kind in kinds]

    def _informer(self, client: Client, resource: Resource[Any]) -> SharedIndexInformer[Any]:
        see, lose = _METHODS[resource.kind]

        def tell(method: See, obj: Any) -> None:
            record = self.records.get(obj.namespace or obj.name)
            if record is None:
                return
            try:
                method(record, obj)
            except Exception as error:
                self._error = self._error or error
                raise
            self._changed.set()

        # The API server sends no more than what is asked for.
        only_namespace = next(iter(self.records)) if len(self.records) == 1 else ""
        scope = {"namespace": only_namespace} if resource.namespaced else {}
        informer = SharedIndexInformer(client.resource(resource).select(**scope))
        informer.add_event_handler(
            ResourceEventHandlerFuncs(
                on_add=lambda obj, _: tell(see, obj),
                on_update=lambda _, new: tell(see, new),
                on_delete=lambda obj, _: tell(lose, obj),
            )
        )
        return informer

    async def changed(self, timeout: float) -> None:
        """Waits until a change was seen, `timeout` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()

    async def __aenter__(self) -> Self:
        for informer in self._informers:
            informer.start()
        if not await wait_for_cache_sync(*self._informers, timeout=self._sync_timeout):
            await self.__aexit__(None, None, None)
            raise ClusterError(f"the API server did not list all that is followed within {self._sync_timeout:g} s")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(informer.stop() for informer in self._informers))
        if error is None and self._error is not None:
            raise self._error
