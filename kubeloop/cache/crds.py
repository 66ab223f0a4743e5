"""Watches CustomResourceDefinitions: the informer of a kind that is installed later starts at once."""

from __future__ import annotations

from typing import Any

from kubeloop.api.meta import ObjectMeta, PartialObjectMetadata
from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.client.client import Client


class CustomResourceWatch:
    """Wakes informers whose kind gets installed. Watches, metadata only, from when the first of them misses its kind.

    Where the rights don't allow that the informers find out by themselves, within `missing_poll` seconds.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers: dict[str, list[SharedIndexInformer[Any]]] = {}
        self._watch: SharedIndexInformer[PartialObjectMetadata] | None = None

    def add(self, informer: SharedIndexInformer[Any]) -> None:
        """Register an informer to be woken. Idempotent."""
        informers = self._informers.setdefault(informer.resource.group_resource, [])
        if informer not in informers:
            informers.append(informer)
            informer.on_not_installed(self._start)

    def remove(self, informer: SharedIndexInformer[Any]) -> None:
        """The informer is not woken any more."""
        informers = self._informers.get(informer.resource.group_resource, [])
        if informer in informers:
            informers.remove(informer)

    async def stop(self) -> None:
        """Ends the watch, if there is one."""
        if self._watch is not None:
            await self._watch.stop()

    def _start(self) -> None:
        if self._watch is None:
            metadata = self._client.metadata(CUSTOM_RESOURCE_DEFINITIONS)
            self._watch = SharedIndexInformer(metadata, transform=_name_only)
            self._watch.add_event_handler(
                ResourceEventHandlerFuncs(
                    on_add=lambda definition, _: self._wake(definition.name),
                    # It is served a moment after it was created: its status tells.
                    on_update=lambda _, definition: self._wake(definition.name),
                )
            )
            self._watch.start()

    def _wake(self, group_resource: str) -> None:
        for informer in self._informers.get(group_resource, ()):
            if not informer.installed:
                informer.retry_now()


def _name_only(definition: PartialObjectMetadata) -> PartialObjectMetadata:
    meta = definition.metadata
    known = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version)
    return PartialObjectMetadata(metadata=known)
