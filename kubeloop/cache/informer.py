"""client-go's SharedIndexInformer: one list and one watch of a kind for all handlers, also of one installed later."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from kubeloop.api.meta import Object, ObjectMeta, PartialObjectMetadata
from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS
from kubeloop.cache import processor
from kubeloop.cache.lister_watcher import ListerWatcher
from kubeloop.cache.processor import HandlerRegistration, ResourceEventHandlerFuncs, SharedProcessor
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.cache.reflector import Reflector
from kubeloop.cache.store import CheckedIndexer, Indexer, shorten_keys
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, Forbidden

T = TypeVar("T", bound=Object)


class SharedIndexInformer(Generic[T]):
    """Keeps `indexer` equal to the server and notifies the handlers of every change. Every `resync_period` (seconds, 0:
    never) they get `on_update(obj, obj)` for every object. `transform` sees every object before it is stored (to drop
    fields). `checked`, for tests: the store notices objects that are changed in place."""

    def __init__(
        self,
        client: ListerWatcher[T],
        *,
        resync_period: float = 0.0,
        transform: Callable[[T], T] | None = None,
        options: ReflectorOptions | None = None,
        checked: bool = False,
    ) -> None:
        self.resource = client.resource
        self.kind = client.resource.plural
        self.indexer: Indexer[T] = CheckedIndexer() if checked else Indexer()
        self._resync_period = resync_period
        self.processor: SharedProcessor[T] = SharedProcessor(self.kind, self.indexer, transform)
        self._reflector: Reflector[T] = Reflector(client, self.processor, options=options)
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def installed(self) -> bool:
        """False while the server does not know this kind (its CRD is missing)."""
        return self._reflector.installed

    @property
    def forbidden(self) -> str:
        """The server's reason to refuse the first list (missing RBAC rights); "" if it does not."""
        trouble = None if self.has_synced() else self.trouble
        return str(trouble) if isinstance(trouble, Forbidden) else ""

    @property
    def trouble(self) -> ApiError | None:
        """The error of the last list or watch (Forbidden: the rights are missing); None while it works."""
        return self._reflector.health.trouble

    def has_synced(self) -> bool:
        """Reports whether every handler was notified of the whole first list, or the kind is not installed."""
        return self.processor.synced.is_set()

    async def wait_for_sync(self, timeout: float | None = None) -> bool:
        """Waits for `has_synced`; False when that took longer than `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.processor.synced.wait()
        return self.has_synced()

    def healthy(self) -> list[str]:
        """Errors that only a restart repairs: the task ended."""
        dead = self._task is not None and self._task.done()
        return [f"{self.kind}: the informer's task ended"] if dead else []

    def problems(self, now: float) -> list[str]:
        """Returns the reasons for which the cache may be stale at `now`, of the loop's time()."""
        hidden = 0 if self.installed else len(self.indexer)
        lines = [f"{self.kind}: no longer served, {hidden} objects are kept as they were last seen"] if hidden else []
        return lines + self._reflector.health.problems(now)

    def undecodable(self) -> list[str]:
        """Lines about objects that do not decode or transform (the cache has them as they were) and broken indexes."""
        troubles = {"decoded": self.processor.undecodable, "transformed": self.processor.untransformed}
        lines = [
            f"{self.kind}: cannot be {problem}: {shorten_keys(key or '?' for key in keys)}"
            for problem, keys in troubles.items()
            if keys
        ]
        return lines + [f"{self.kind}: {line}" for line in self.indexer.holes()]

    def retry_now(self) -> None:
        """Ends the wait for the next attempt: called when a CRD or the server is back."""
        self._reflector.retry_now()

    async def _run(self) -> None:
        resyncs = asyncio.create_task(self.processor.resync(self._resync_period), name=f"resyncs of {self.kind}")
        try:
            await self._reflector.run()
        finally:
            resyncs.cancel()

    def start(self) -> None:
        """Lists and watches, in a task; a second call does nothing. Raises RuntimeError after `stop`."""
        self._refuse_if_stopped()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"informer {self.kind}")

    async def stop(self) -> None:
        """Ends the task that `start` made, and waits for its end. The indexer stays as it is."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def add_event_handler(self, handler: processor.ResourceEventHandler[T]) -> HandlerRegistration[T]:
        """Adds a handler; a late one is notified of every object at once. Raises RuntimeError after `stop`."""
        self._refuse_if_stopped()
        return self.processor.add(handler)

    def remove_event_handler(self, registration: HandlerRegistration[T]) -> None:
        self.processor.remove(registration)

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise RuntimeError(f"the informer of {self.kind} was stopped, and does not start again: make another")


async def wait_for_cache_sync(*informers: SharedIndexInformer[Any], timeout: float | None = None) -> bool:
    """Waits until every informer has synced; False when that took longer than `timeout` seconds."""
    return all(await asyncio.gather(*(informer.wait_for_sync(timeout) for informer in informers)))


class CustomResourceWatch:
    """Wakes informers whose kind gets installed, and tells those whose kind is not served when its definition is gone.
    Watches, metadata only, from when the first of them misses its kind.

    Where the rights don't allow that the informers find out by themselves that a kind is there, within `missing_poll`
    seconds, and keep the objects of one that is not."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers: set[SharedIndexInformer[Any]] = set()
        self._watch: SharedIndexInformer[PartialObjectMetadata] | None = None
        self._first_list: asyncio.Task[bool] | None = None

    def add(self, informer: SharedIndexInformer[Any]) -> None:
        """Registers an informer to be woken. Idempotent."""
        self._informers.add(informer)
        informer.processor.on_not_installed = partial(self._check_definition, informer.resource.group_resource)

    def remove(self, informer: SharedIndexInformer[Any]) -> None:
        self._informers.discard(informer)

    def hides(self, informer: SharedIndexInformer[Any]) -> bool:
        """Reports whether a kind that is not served may have a definition, as far as those may be read."""
        watch = self._watch
        if informer.installed or watch is None or watch.forbidden:
            return False
        return not watch.has_synced() or informer.resource.group_resource in watch.indexer

    async def stop(self) -> None:
        if self._first_list is not None:
            self._first_list.cancel()
        if self._watch is not None:
            await self._watch.stop()

    def _check_definition(self, group_resource: str) -> None:
        """Looks for the definition of a kind that is not served: without one its objects are gone."""
        if self._watch is None:
            metadata = self._client.resource(CUSTOM_RESOURCE_DEFINITIONS.metadata())
            self._watch = SharedIndexInformer(metadata, transform=_name_only)
            self._watch.add_event_handler(
                ResourceEventHandlerFuncs(
                    on_add=lambda definition, _: self._wake(definition.name),
                    # It is served a moment after it was created: its status tells.
                    on_update=lambda _, definition: self._wake(definition.name),
                    on_delete=lambda definition, _: self._check_definition(definition.name),
                )
            )
            self._watch.start()
            self._first_list = asyncio.create_task(self._watch.wait_for_sync(), name="definitions of missing kinds")
            self._first_list.add_done_callback(lambda _: self._check_all())
        if self._watch.has_synced() and group_resource not in self._watch.indexer:
            for informer in self._not_served(group_resource):
                informer.processor.uninstalled()

    def _check_all(self) -> None:
        for group_resource in {informer.resource.group_resource for informer in self._informers}:
            self._check_definition(group_resource)

    def _wake(self, group_resource: str) -> None:
        for informer in self._not_served(group_resource):
            informer.retry_now()

    def _not_served(self, group_resource: str) -> list[SharedIndexInformer[Any]]:
        informers = [informer for informer in self._informers if informer.resource.group_resource == group_resource]
        return [informer for informer in informers if not informer.installed]


def _name_only(definition: PartialObjectMetadata) -> PartialObjectMetadata:
    meta = definition.metadata
    identity = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version)
    return PartialObjectMetadata(metadata=identity)
