"""Why a ResourceQuota is left as it is: each is something a person can mend, said in one line."""

from __future__ import annotations


class ResourceQuotaError(Exception):
    """Base: `reason` is the Event's reason, `str(self)` its message."""

    reason = "ResourceQuotaNotScaled"


class InvalidNamespaceAnnotation(ResourceQuotaError):
    """`field.cattle.io/resourceQuota` is not the JSON that Rancher writes (upstream: an error, retried)."""

    reason = "InvalidResourceQuotaAnnotation"


class InvalidBaseQuantity(ResourceQuotaError):
    """A limit in the namespace annotation is not a quantity (upstream: skip scaling)."""

    reason = "InvalidResourceQuotaAnnotation"


class InvalidEntry(ResourceQuotaError):
    """A migrating entry or the compensation on the ResourceQuota is garbage (upstream: skip scaling)."""

    reason = "InvalidMigratingEntry"


class NoLimits(ResourceQuotaError):
    """A migrating VM has neither a cpu nor a memory limit: Harvester's formula has no delta for it."""

    reason = "MigrationNotScaled"


class CapReached(ResourceQuotaError):
    """`max-extra` allows no more to be added: the migration waits."""

    reason = "MaxExtraReached"


class TooManyEntries(ResourceQuotaError):
    """The annotations are nearly as large as the API server lets them be: the migration waits."""

    reason = "TooManyMigrations"


class HoldLimitReached(ResourceQuotaError):
    """A pod of the old side still counts long after its migration; its room is taken back all the same."""

    reason = "HoldLimitReached"


class InsufficientResources(ResourceQuotaError):
    """A VM cannot start within the quota; the text is Harvester's, `resource` is cpu, memory or storage."""

    reason = "InsufficientResourceQuota"

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} insufficient resources due to resource quota")
        self.resource = resource
