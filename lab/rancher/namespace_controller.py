"""Namespace annotation → default ResourceQuota, as Rancher's SyncController does it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from lab.rancher.limits import Unreadable, differs, render
from pkg.config.management import Management
from pkg.util import constants

logger = logging.getLogger(__name__)

AGENT_NAMESPACE: Final = "cattle-system"
ANNOTATION_RESTART: Final = "testcluster.headroom.harvesterhci.io/restart-agent"
LABEL_CREATOR: Final = "cattle.io/creator"
CREATOR: Final = "norman"
DEFAULT_QUOTA_SELECTOR: Final = f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}={constants.TRUE}"


class NamespaceHandler:
    """Renders each namespace's annotation once, and again when it changes or the agent restarts.

    Quotas are read from the server, not from a cache: an agent that has just started knows what there is now, and what
    was raised a moment ago must not be missed.
    """

    def __init__(self, quotas: ResourceClient[ResourceQuota]) -> None:
        self._quotas = quotas
        # What each namespace said when it was last rendered.
        self._rendered: dict[str, str] = {}
        # All quotas as they were at the start, in one request; each namespace looks into it once.
        self._at_start: asyncio.Future[list[ResourceQuota]] | None = None
        self._looked: set[str] = set()

    def restart(self) -> None:
        """The agent starts anew: it knows nothing of what it has written before."""
        # New ones, not emptied ones: what is under way then reports to the old ones.
        self._rendered, self._looked, self._at_start = {}, set(), None

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """Raises ApiError."""
        rendered = self._rendered
        if namespace is None or namespace.deleting:
            rendered.pop(key, None)
            return
        annotation = namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
        if rendered.get(key) == annotation:
            return
        if annotation:
            await self._render(key, annotation)
        rendered[key] = annotation

    async def _render(self, namespace: str, annotation: str) -> None:
        try:
            hard = render(annotation)
        except Unreadable as error:
            logger.warning("namespace %s: %s", namespace, error)
            return
        if not hard:
            return
        quota = await self._default_quota(namespace)
        if quota is None:
            await self._create(namespace, annotation, hard)
        elif differs(quota.spec.hard, hard):
            await self._replace(quota, hard)

    async def _default_quota(self, namespace: str) -> ResourceQuota | None:
        if namespace not in self._looked:
            self._looked.add(namespace)
            if self._at_start is None:
                self._at_start = asyncio.ensure_future(self._list(""))
            found = [quota for quota in await asyncio.shield(self._at_start) if quota.namespace == namespace]
            if found:
                return _first(found)
        # Asked once more before one is created: a second default quota would stay.
        return _first(await self._list(namespace))

    async def _list(self, namespace: str) -> list[ResourceQuota]:
        return await self._quotas.list(namespace, label_selector=DEFAULT_QUOTA_SELECTOR)

    async def _create(self, namespace: str, annotation: str, hard: dict[str, str]) -> None:
        try:
            quota = await self._quotas.create(quota_body(namespace, annotation, hard), namespace=namespace)
        except NotFound:
            return  # The namespace is gone.
        logger.info("namespace %s: created quota %s with %s", namespace, quota.name, hard)

    async def _replace(self, quota: ResourceQuota, hard: dict[str, str]) -> None:
        """Replace spec.hard whole. Without a resourceVersion: Rancher overwrites every other writer."""
        try:
            await self._quotas.json_patch(
                [{"op": "add", "path": "/spec/hard", "value": hard}], name=quota.name, namespace=quota.namespace
            )
        except NotFound:
            return  # Deleted meanwhile.
        except (Conflict, Invalid) as error:
            logger.warning("quota %s: %s", quota.key, error)
            raise
        logger.info("namespace %s: quota %s set to %s (was %s)", quota.namespace, quota.name, hard, quota.spec.hard)


def quota_body(namespace: str, annotation: str, hard: dict[str, str]) -> dict[str, Any]:
    """The default quota as Rancher creates it."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {
            "generateName": constants.DEFAULT_RESOURCE_QUOTA_GENERATE_NAME,
            "namespace": namespace,
            "labels": {constants.LABEL_DEFAULT_RESOURCE_QUOTA: constants.TRUE, LABEL_CREATOR: CREATOR},
            "annotations": {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: annotation},
        },
        "spec": {"hard": hard},
    }


def _first(quotas: list[ResourceQuota]) -> ResourceQuota | None:
    return min(quotas, key=lambda quota: quota.name, default=None)


class Agent:
    """Restarts the handler, by hand or because the annotation on cattle-system says something new."""

    def __init__(self, handler: NamespaceHandler, namespaces: Controller[Namespace]) -> None:
        self._handler = handler
        self._namespaces = namespaces
        self._asked = ""

    def restart(self) -> None:
        """Every quota goes back to its base."""
        self._handler.restart()
        namespaces = self._namespaces.cache().list()
        for namespace in namespaces:
            self._namespaces.enqueue(namespace.key, immediately=True)
        logger.info("agent restarted: %d namespaces", len(namespaces))

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """An annotation that was there at the start restarts it too: that changes nothing, it has just started."""
        if key != AGENT_NAMESPACE:
            return
        asked = namespace.annotations.get(ANNOTATION_RESTART, "") if namespace else ""
        if asked not in ("", self._asked):
            self.restart()
        self._asked = asked


def register(management: Management) -> Agent:
    """Give the management its handlers; start it afterwards."""
    namespaces = management.namespaces
    handler = NamespaceHandler(management.client.resource(RESOURCE_QUOTAS))
    agent = Agent(handler, namespaces)
    namespaces.on_change("agent", agent.on_namespace_changed)
    namespaces.on_change("resourcequota-sync", handler.on_namespace_changed)
    return agent
