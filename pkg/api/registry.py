"""Every kind's group, version, plural and type, in one table: paths are built here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pkg.api import admissionregistration, core, harvesterhci, kubevirt, mtq
from pkg.api.meta import Object

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One REST resource: where it lives and what its objects decode into."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def crd_name(self) -> str:
        """The CustomResourceDefinition that brings this kind, `plural.group`."""
        return f"{self.plural}.{self.group}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, an object or its subresource."""
        parts = ["/apis", self.group] if self.group else ["/api"]
        parts.append(self.version)
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", core.Namespace, namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", core.Node, namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", core.Pod)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", core.ResourceQuota)
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange", core.LimitRange)
SECRETS = Resource("", "v1", "secrets", "Secret", core.Secret)
EVENTS = Resource("", "v1", "events", "Event", core.Event)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    core.CustomResourceDefinition,
    namespaced=False,
)
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    admissionregistration.ValidatingWebhookConfiguration,
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    admissionregistration.MutatingWebhookConfiguration,
    namespaced=False,
)
VIRTUAL_MACHINES = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine", kubevirt.VirtualMachine)
VIRTUAL_MACHINE_INSTANCES = Resource(
    "kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance", kubevirt.VirtualMachineInstance
)
VIRTUAL_MACHINE_INSTANCE_MIGRATIONS = Resource(
    "kubevirt.io",
    "v1",
    "virtualmachineinstancemigrations",
    "VirtualMachineInstanceMigration",
    kubevirt.VirtualMachineInstanceMigration,
)
KUBEVIRTS = Resource("kubevirt.io", "v1", "kubevirts", "KubeVirt", kubevirt.KubeVirt)
SETTINGS = Resource(
    "harvesterhci.io", "v1beta1", "settings", "Setting", harvesterhci.Setting, namespaced=False
)
VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS = Resource(
    "mtq.kubevirt.io",
    "v1alpha1",
    "virtualmachinemigrationresourcequotas",
    "VirtualMachineMigrationResourceQuota",
    mtq.VirtualMachineMigrationResourceQuota,
)
