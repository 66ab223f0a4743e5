"""A namespace's request → its default ResourceQuota: Rancher's SyncController, on every event of the namespace.

Source: rancher pkg/controllers/managementuser/resourcequota/resource_quota_sync.go.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.resource_list import ResourceList, format_resource_list
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from lab.rancher import condition
from lab.rancher.limits import Limit, Unreadable, complete, decode, decode_annotation, differs, encode_annotation
from lab.rancher.limits import resources as resources_of
from lab.rancher.project import Project, project_id, project_key
from lab.rancher.releases import Release
from lab.rancher.validation import Verdict, validate, validate_together
from pkg.util import constants

logger = logging.getLogger(__name__)

ANNOTATION: Final = constants.ANNOTATION_RANCHER_RESOURCE_QUOTA
DEFAULT_QUOTA_SELECTOR: Final = f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}={constants.TRUE}"
BY_PROJECT: Final = "namespaces by project"
"""The index of namespaces by the id of their project."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients and caches of the controller. `quotas` may belong to a user of its own."""

    quotas: ResourceClient[ResourceQuota]
    namespaces: ResourceClient[Namespace]
    namespace_cache: CacheReader[Namespace]
    project_cache: CacheReader[Project]
    clock: Callable[[], float]


class SyncController:
    """Writes what a namespace requests into its default quota, if it fits into the project.

    Quotas are read from the server: what was raised a moment ago must not be missed.
    """

    def __init__(self, clients: Clients, release: Release) -> None:
        self._clients = clients
        self._validate_limits = validate if release.separates_negative else validate_together
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.has_started = False
        """Reports whether a project has ever had limits: before that, Rancher's controllers for quotas do not run."""

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> Namespace | None:
        """Returns the namespace as it is then. Raises ApiError, Unreadable."""
        if namespace is None or namespace.deleting:
            return None
        with contextlib.suppress(NotFound):  # The namespace, or the quota, is gone.
            if not project_id(namespace):
                await self._sync_without_project(namespace)
            elif self.has_started:
                namespace = await self._sync(namespace)
            if self.has_started and not condition.is_set(namespace, condition.INIT):
                namespace = await self._set_condition(namespace, condition.INIT, True, "")
        return namespace

    # ---- the request -----------------------------------------------------------------------------------------

    def _requested_limit(self, namespace: Namespace) -> Limit | None:
        """Returns the namespace's limit completed by its project's default; None: nothing is limited."""
        text = namespace.annotations.get(ANNOTATION, "")
        requested = decode_annotation(text) if text else None
        project = self._project(namespace)
        default = project.spec.namespace_default_resource_quota if project else None
        if default is None:
            return None
        limit = decode(default.limit)
        return limit if requested is None else complete(requested, limit)

    def _project(self, namespace: Namespace) -> Project | None:
        """Returns the namespace's project if it limits anything. An unknown one counts as none."""
        project = self._clients.project_cache.get_by_key(project_key(project_id(namespace)))
        return project if project is not None and project.spec.resource_quota is not None else None

    # ---- the quota -------------------------------------------------------------------------------------------

    async def _sync(self, namespace: Namespace) -> Namespace:
        """Returns the namespace as it is then."""
        limit = self._requested_limit(namespace)
        hard = resources_of(limit) if limit else {}
        quota = await self._quota(namespace.name)
        if quota is None:
            return await self._create(namespace, limit, hard) if limit and hard else namespace
        if not limit or not hard:
            return await self._delete(namespace, quota)
        if not differs(quota.spec.hard, format_resource_list(hard)):
            return namespace
        verdict, namespace = await self._validate(namespace, limit)
        if verdict.fits:
            await self._replace(quota, format_resource_list(hard))
        return namespace

    async def _sync_without_project(self, namespace: Namespace) -> None:
        """Renders the annotation of a namespace that is in no project.

        The stand-in's one leniency: Rancher has such a namespace's quota deleted, or leaves it alone as long as no
        project has limits. Most tests are about one namespace with a quota, and project-less they stay short.
        """
        text = namespace.annotations.get(ANNOTATION, "")
        try:
            hard = format_resource_list(resources_of(decode_annotation(text))) if text else {}
        except Unreadable as error:
            logger.warning("namespace %s: %s", namespace.name, error)
            return
        if not hard:
            return
        quota = await self._quota(namespace.name)
        if quota is None:
            await self._create_quota(namespace.name, hard)
        elif differs(quota.spec.hard, hard):
            await self._replace(quota, hard)

    async def _quota(self, namespace: str) -> ResourceQuota | None:
        quotas = await self._clients.quotas.list(namespace, label_selector=DEFAULT_QUOTA_SELECTOR)
        return min(quotas, key=lambda quota: quota.name, default=None)

    async def _create(self, namespace: Namespace, limit: Limit, hard: ResourceList) -> Namespace:
        """Creates the quota, with zeros for what does not fit."""
        verdict, namespace = await self._validate(namespace, limit)
        await self._create_quota(namespace.name, format_resource_list(verdict.granted(limit)))
        return namespace

    async def _create_quota(self, namespace: str, hard: dict[str, str]) -> None:
        quota = await self._clients.quotas.create(quota_body(hard), namespace=namespace)
        logger.info("namespace %s: created quota %s with %s", namespace, quota.name, hard)

    async def _replace(self, quota: ResourceQuota, hard: dict[str, str]) -> None:
        """Replaces the whole spec, if the quota is as it was read."""
        operations: list[dict[str, Any]] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": quota.metadata.resource_version},
            {"op": "add", "path": "/spec", "value": {"hard": hard}},
        ]
        try:
            await self._clients.quotas.json_patch(operations, name=quota.name, namespace=quota.namespace)
        except (Conflict, Invalid) as error:
            logger.warning("quota %s: %s", quota.key, error)
            raise
        logger.info("namespace %s: quota %s set to %s (was %s)", quota.namespace, quota.name, hard, quota.spec.hard)

    async def _delete(self, namespace: Namespace, quota: ResourceQuota) -> Namespace:
        if ANNOTATION in namespace.annotations:
            namespace = await self._annotate(namespace, {ANNOTATION: None})
        await self._clients.quotas.delete(name=quota.name, namespace=quota.namespace)
        logger.info("namespace %s: deleted quota %s", quota.namespace, quota.name)
        return namespace

    # ---- the project -----------------------------------------------------------------------------------------

    async def _validate(self, namespace: Namespace, limit: Limit) -> tuple[Verdict, Namespace]:
        """Writes the completed request and whether it fits on the namespace. Raises Unreadable."""
        project = self._project(namespace)
        if project is None or project.spec.resource_quota is None:
            return Verdict(), namespace
        text = encode_annotation(limit)
        if namespace.annotations.get(ANNOTATION) != text:
            namespace = await self._annotate(namespace, {ANNOTATION: text})
        async with self._locks[project.id]:
            other_limits = [
                decode_annotation(text)
                for member in self._clients.namespace_cache.by_index(BY_PROJECT, project_id(namespace))
                if member.name != namespace.name and (text := member.annotations.get(ANNOTATION, ""))
            ]
            verdict = self._validate_limits(limit, other_limits, decode(project.spec.resource_quota.limit))
            if not verdict.fits:
                logger.info("namespace %s: %s", namespace.name, verdict.message)
            namespace = await self._set_condition(namespace, condition.VALIDATED, verdict.fits, verdict.message)
            return verdict, namespace

    async def _set_condition(self, namespace: Namespace, kind: str, is_true: bool, message: str) -> Namespace:
        old_text = namespace.annotations.get(condition.ANNOTATION, "")
        try:
            text = condition.with_condition(old_text, kind, is_true, message, self._clients.clock())
        except msgspec.DecodeError as error:
            logger.warning("namespace %s: %s: %s", namespace.name, condition.ANNOTATION, error)
            return namespace
        return namespace if text == old_text else await self._annotate(namespace, {condition.ANNOTATION: text})

    async def _annotate(self, namespace: Namespace, changes: dict[str, str | None]) -> Namespace:
        """Raises Conflict if the namespace is not as it was read."""
        metadata = {"annotations": changes, "resourceVersion": namespace.metadata.resource_version}
        return await self._clients.namespaces.merge_patch({"metadata": metadata}, name=namespace.name)


def quota_body(hard: dict[str, str]) -> dict[str, Any]:
    """Returns the default quota as Rancher creates it."""
    metadata = {"generateName": "default-", "labels": {constants.LABEL_DEFAULT_RESOURCE_QUOTA: constants.TRUE}}
    return {"metadata": metadata, "spec": {"hard": hard}}
