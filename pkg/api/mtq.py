"""mtq.kubevirt.io/v1alpha1: KubeVirt's managed-tenant-quota; existing objects are read as they are."""

from kubeloop.api.core import ResourceQuotaSpec
from kubeloop.api.meta import Object, RawResourceList, Struct
from kubeloop.api.registry import Resource


class ResourceQuotaNameAndSpec(Struct):
    """A ResourceQuota as it was before it was raised."""

    name: str = ""
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class VirtualMachineMigrationResourceQuotaSpec(Struct):
    """`additional_migration_resources`: the most that may be added to a quota's spec.hard for migrations."""

    additional_migration_resources: RawResourceList | None = None


class VirtualMachineMigrationResourceQuotaStatus(Struct):
    """The quotas that are raised at this moment; empty while none is. `migrations_to_blocking_resource_quotas`: a
    migration's name to the names of the quotas that refuse its target pod; `additional_migration_resources`: what was
    added, as the spec said when it was."""

    additional_migration_resources: RawResourceList | None = None
    migrations_to_blocking_resource_quotas: dict[str, list[str] | None] | None = None
    original_blocking_resource_quotas: list[ResourceQuotaNameAndSpec] | None = None


class VirtualMachineMigrationResourceQuota(Object):
    """mtq.kubevirt.io/v1alpha1 VirtualMachineMigrationResourceQuota: a namespace's migration budget."""

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
