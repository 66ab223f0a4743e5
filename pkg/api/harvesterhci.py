"""Harvester's Setting (harvesterhci.io) and Rancher's Project (management.cattle.io)."""

from typing import Any

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource


class Setting(Object):
    value: str = ""
    default: str = ""


class ProjectResourceQuota(Struct):
    limit: dict[str, Any] | None = None
    """What all namespaces of the project may request together, by Rancher's names (`limitsCpu`)."""


class ProjectSpec(Struct):
    resource_quota: ProjectResourceQuota | None = None


class Project(Object):
    """A group of namespaces with a common quota, in the namespace that is named like its cluster."""

    spec: ProjectSpec = ProjectSpec()


SETTINGS = Resource(
    "harvesterhci.io", "v1beta1", "settings", "Setting", Setting, namespaced=False, status_subresource=False
)
PROJECTS = Resource("management.cattle.io", "v3", "projects", "Project", Project, status_subresource=False)
