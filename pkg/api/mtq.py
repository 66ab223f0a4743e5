"""mtq.kubevirt.io/v1alpha1: KubeVirt's managed-tenant-quota; existing objects are read as they are."""

from kubeloop.api.core import ResourceQuotaSpec
from kubeloop.api.meta import Object, RawResourceList, Struct
from kubeloop.api.registry import Resource


class ResourceQuotaNameAndSpec(Struct):
    name: str = ""
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class VirtualMachineMigrationResourceQuotaSpec(Struct):
    additional_migration_resources: RawResourceList | None = None
    """The most that may be added to a quota's spec.hard for migrations."""


class VirtualMachineMigrationResourceQuotaStatus(Struct):
    """The quotas that are raised at this moment, as they were before; empty while none is."""

    additional_migration_resources: RawResourceList | None = None
    """As the spec said when they were raised."""
    migrations_to_blocking_resource_quotas: dict[str, list[str] | None] | None = None
    """A migration's name to the names of the quotas that refuse its target pod."""
    original_blocking_resource_quotas: list[ResourceQuotaNameAndSpec] | None = None


class VirtualMachineMigrationResourceQuota(Object):
    spec: VirtualMachineMigrationResourceQuotaSpec = VirtualMachineMigrationResourceQuotaSpec()
    status: VirtualMachineMigrationResourceQuotaStatus = VirtualMachineMigrationResourceQuotaStatus()

    @property
    def additional(self) -> RawResourceList:
        return self.spec.additional_migration_resources or {}


VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS = Resource(
    "mtq.kubevirt.io",
    "v1alpha1",
    "virtualmachinemigrationresourcequotas",
    "VirtualMachineMigrationResourceQuota",
    VirtualMachineMigrationResourceQuota,
    status_subresource=True,
)
