"""Watches CustomResourceDefinitions: the informer of a kind that is installed later starts at once, and the objects of
one whose definition is deleted are gone."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from kubeloop.api.meta import ObjectMeta, PartialObjectMetadata
from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.client import Client


class CustomResourceWatch:
    """Wakes informers whose kind gets installed, and tells those whose kind is not served when its definition is gone.
    Watches, metadata only, from when the first of them misses its kind.

    Where the rights don't allow that the informers find out by themselves that a kind is there, within `missing_poll`
    seconds, and keep the objects of one that is not."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers: dict[str, list[SharedIndexInformer[Any]]] = {}
        self._watch: SharedIndexInformer[PartialObjectMetadata] | None = None
        self._first_look: asyncio.Task[None] | None = None

    def add(self, informer: SharedIndexInformer[Any]) -> None:
        """Registers an informer to be woken. Idempotent."""
        informers = self._informers.setdefault(informer.resource.group_resource, [])
        if informer not in informers:
            informers.append(informer)
            informer.on_not_installed(partial(self._check_definition, informer))

    def remove(self, informer: SharedIndexInformer[Any]) -> None:
        informers = self._informers.get(informer.resource.group_resource, [])
        if informer in informers:
            informers.remove(informer)

    def hides(self, informer: SharedIndexInformer[Any]) -> bool:
        """Reports whether a kind that is not served has, or may have, a definition: then its objects are hidden. Where
        definitions may not be read, it counts as not installed."""
        watch = self._watch
        if informer.installed or watch is None or watch.forbidden:
            return False
        return not watch.has_synced() or watch.indexer.get_by_key(informer.resource.group_resource) is not None

    async def stop(self) -> None:
        if self._first_look is not None:
            self._first_look.cancel()
        if self._watch is not None:
            await self._watch.stop()

    def _check_definition(self, informer: SharedIndexInformer[Any]) -> None:
        """Looks for the definition of a kind that is not served: without one its objects are gone."""
        self._start()
        self._forget(informer.resource.group_resource)

    def _start(self) -> None:
        if self._watch is None:
            metadata = self._client.metadata(CUSTOM_RESOURCE_DEFINITIONS)
            self._watch = SharedIndexInformer(metadata, transform=_name_only)
            self._watch.add_event_handler(
                ResourceEventHandlerFuncs(
                    on_add=lambda definition, _: self._wake(definition.name),
                    # It is served a moment after it was created: its status tells.
                    on_update=lambda _, definition: self._wake(definition.name),
                    on_delete=lambda definition, _: self._forget(definition.name),
                )
            )
            self._watch.start()
            self._first_look = asyncio.create_task(self._look(self._watch), name="definitions of missing kinds")

    async def _look(self, watch: SharedIndexInformer[PartialObjectMetadata]) -> None:
        """Forgets, at the first whole list, the objects of kinds that have no definition."""
        await watch.wait_for_sync()
        for group_resource in self._informers:
            self._forget(group_resource)

    def _forget(self, group_resource: str) -> None:
        """Forgets the objects of a kind that is not served and has no definition."""
        watch = self._watch
        if watch is None or not watch.has_synced() or watch.indexer.get_by_key(group_resource) is not None:
            return
        for informer in self._informers.get(group_resource, ()):
            if not informer.installed:
                informer.uninstalled()

    def _wake(self, group_resource: str) -> None:
        for informer in self._informers.get(group_resource, ()):
            if not informer.installed:
                informer.retry_now()


def _name_only(definition: PartialObjectMetadata) -> PartialObjectMetadata:
    meta = definition.metadata
    identity = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version)
    return PartialObjectMetadata(metadata=identity)
