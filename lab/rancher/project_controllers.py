"""Rancher's controllers of projects: they look at a project's namespaces again, sum their usage, remove their requests.

Source: rancher pkg/controllers/managementuser/resourcequota: resource_quota_validate.go,
resource_quota_calculate_used.go, namespace_quota_reset.go.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

from kubeloop.api.core import Namespace
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from lab.rancher import condition
from lab.rancher.limits import decode_annotation, limit_of
from lab.rancher.project import ANNOTATION_QUOTA_PROJECT, Project, project_id
from lab.rancher.releases import Release
from lab.rancher.sync_controller import ANNOTATION, BY_PROJECT, SyncController
from lab.rancher.validation import sum_of


@dataclass(eq=False)
class ReconcileController:
    """Has the namespaces of a project looked at again when the project changes."""

    namespaces: Controller[Namespace]
    sync: SyncController

    async def on_project_changed(self, key: str, project: Project | None) -> None:
        """Starts the controllers for quotas with the first project that has limits."""
        if project is None or project.deleting:
            return
        if project.has_limits and not self.sync.has_started:
            self.sync.has_started = True
            self.namespaces.enqueue_all()
        if self.sync.has_started:
            for namespace in self.namespaces.cache().by_index(BY_PROJECT, project.id):
                self.namespaces.enqueue(namespace.key, immediately=True)


@dataclass(eq=False)
class UsedLimitController:
    """Keeps a project's used limit: the sum of the requests that were found to fit."""

    namespaces: Controller[Namespace]
    projects: ResourceClient[Project]
    sync: SyncController
    release: Release

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """Raises ApiError."""
        if namespace is None or not self.sync.has_started:
            return
        project, old_project = project_id(namespace), namespace.annotations.get(ANNOTATION_QUOTA_PROJECT, "")
        if not self.release.tracks_moves:
            old_project = project
        if old_project:
            await self._calculate(old_project)
        if project != old_project:
            # The write brings this handler back, for the project that the namespace is in now.
            await _annotate(self.namespaces.client, namespace, ANNOTATION_QUOTA_PROJECT, project or None)

    async def on_project_changed(self, key: str, project: Project | None) -> None:
        """Raises ApiError."""
        if project is not None and not project.deleting and self.sync.has_started:
            await self._calculate(project.id)

    async def _calculate(self, project: str) -> None:
        cluster, _, name = project.partition(":")
        try:
            project_object = await self.projects.get(name=name, namespace=cluster)
        except NotFound:
            return
        if project_object.spec.resource_quota is None:
            return
        namespaces = self.namespaces.cache().by_index(BY_PROJECT, project)
        valid_namespaces = [ns for ns in namespaces if not ns.deleting and condition.is_set(ns, condition.VALIDATED)]
        texts = [text for ns in valid_namespaces if (text := ns.annotations.get(ANNOTATION, ""))]
        limit = limit_of(sum_of(map(decode_annotation, texts)))
        if limit == (project_object.spec.resource_quota.used_limit or {}):
            return
        operations: list[dict[str, Any]] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": project_object.metadata.resource_version},
            {"op": "add", "path": "/spec/resourceQuota/usedLimit", "value": limit},
        ]
        await self.projects.json_patch(operations, name=name, namespace=cluster)


@dataclass(eq=False)
class ResetController:
    """Takes the requests of a project's namespaces away when the project has no quota any more."""

    namespaces: Controller[Namespace]
    sync: SyncController

    async def on_project_changed(self, key: str, project: Project | None) -> None:
        """Raises ApiError."""
        if project is None or project.deleting or project.spec.resource_quota is not None or not self.sync.has_started:
            return
        for namespace in self.namespaces.cache().by_index(BY_PROJECT, project.id):
            if ANNOTATION in namespace.annotations:
                await _annotate(self.namespaces.client, namespace, ANNOTATION, None)


def register(
    namespaces: Controller[Namespace], projects: Controller[Project], sync: SyncController, release: Release
) -> None:
    """Registers the handlers of namespaces after the sync's, in Rancher's order."""
    reconcile = ReconcileController(namespaces, sync)
    calculate = UsedLimitController(namespaces, projects.client, sync, release)
    reset = ResetController(namespaces, sync)
    namespaces.on_change("resourceQuotaUsedLimitController", calculate.on_namespace_changed)
    projects.on_change("resourceQuotaNamespacesReconcileController", reconcile.on_project_changed)
    projects.on_change("resourceQuotaProjectUsedLimitController", calculate.on_project_changed)
    projects.on_change("namespaceResourceQuotaResetController", reset.on_project_changed)


async def _annotate(client: ResourceClient[Namespace], namespace: Namespace, key: str, text: str | None) -> None:
    """Raises Conflict if the namespace is not as it was read."""
    metadata = {"annotations": {key: text}, "resourceVersion": namespace.metadata.resource_version}
    with contextlib.suppress(NotFound):
        await client.merge_patch({"metadata": metadata}, name=namespace.name)
