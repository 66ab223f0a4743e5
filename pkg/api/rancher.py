"""Types of management.cattle.io, reduced to the fields in use."""

from __future__ import annotations

from typing import Any, Final

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource


class ProjectResourceQuota(Struct):
    limit: dict[str, Any] | None = None
    """What all namespaces of the project may request together, by Rancher's names (`limitsCpu`)."""


class ProjectSpec(Struct):
    resource_quota: ProjectResourceQuota | None = None


class Project(Object):
    """A group of namespaces with a common quota, in the namespace that is named like its cluster."""

    spec: ProjectSpec = ProjectSpec()


PROJECTS: Final = Resource("management.cattle.io", "v3", "projects", "Project", Project, status_subresource=False)
