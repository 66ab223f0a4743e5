"""management.cattle.io/v3 Project, as far as quotas go, and which project a namespace is in."""

from typing import Any, Final

from kubeloop.api.core import Namespace
from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource

ANNOTATION_PROJECT: Final = "field.cattle.io/projectId"
ANNOTATION_QUOTA_PROJECT: Final = "field.cattle.io/resourceQuotaProjectId"
"""The project in whose used limit the namespace is counted: it lags behind when a namespace moves."""
CLUSTER: Final = "local"
"""The cluster's name in Rancher, and the namespace of its projects."""


class ProjectResourceQuota(Struct):
    """A project's quota. `limit`: the sum that its namespaces may request."""

    limit: dict[str, Any] | None = None
    used_limit: dict[str, Any] | None = None


class NamespaceResourceQuota(Struct):
    limit: dict[str, Any] | None = None


class ProjectSpec(Struct):
    resource_quota: ProjectResourceQuota | None = None
    namespace_default_resource_quota: NamespaceResourceQuota | None = None
    container_default_resource_limit: dict[str, Any] | None = None


class Project(Object):
    """A group of namespaces with a common quota, in the namespace that is named like its cluster."""

    spec: ProjectSpec = ProjectSpec()

    @property
    def id(self) -> str:
        """The name by which namespaces say that they are in it."""
        return f"{self.namespace}:{self.name}"

    @property
    def has_limits(self) -> bool:
        """Reports whether Rancher has anything to do for its namespaces."""
        spec = self.spec
        parts = (spec.resource_quota, spec.namespace_default_resource_quota, spec.container_default_resource_limit)
        return any(part is not None for part in parts)


PROJECTS: Final = Resource("management.cattle.io", "v3", "projects", "Project", Project, status_subresource=False)


def project_id(namespace: Namespace) -> str:
    """Returns `CLUSTER:PROJECT`, or ""."""
    return namespace.annotations.get(ANNOTATION_PROJECT, "")


def project_key(project: str) -> str:
    """Returns the cache key of a project by its id."""
    cluster, separator, name = project.partition(":")
    return f"{cluster}/{name}" if separator else project
