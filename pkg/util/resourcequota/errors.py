"""Why a ResourceQuota is left as it is: each is something an administrator can fix, said in one line."""

from __future__ import annotations


class ResourceQuotaError(Exception):
    """Base: `reason` is the Event's reason, `kind` its type, `str(self)` its message. It is about the VM named `vm`, or
    about the quota."""

    reason = "ResourceQuotaNotScaled"
    kind = "Warning"

    def __init__(self, message: str, *, vm: str = "") -> None:
        super().__init__(message)
        self.vm = vm

    @property
    def state(self) -> tuple[str, str]:
        """What stays the same while the amounts in the message change: it is one event."""
        return self.reason, self.vm or str(self).partition(":")[0]


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


class NotUnderstood(ResourceQuotaError):
    """Something about one VM cannot be worked out: it gets no headroom, the others go on."""

    reason = "MigrationNotScaled"


class SideTooLarge(ResourceQuotaError):
    """A pod of the VM counts more than its VMI's spec renders to: the rest is not followed."""

    reason = "PodExceedsVirtualMachine"


class BaseEdited(ResourceQuotaError):
    """A managed quota was edited while it was raised: what was written is its new base."""

    reason = "BaseChanged"
    kind = "Normal"


class CapReached(ResourceQuotaError):
    """`max-extra` allows no more to be added: the migration waits."""

    reason = "MaxExtraReached"


class IdleCap(ResourceQuotaError):
    """`max-extra` names something that is never added, a misspelled resource for example."""

    reason = "MaxExtraCapsNothing"


class TooManyEntries(ResourceQuotaError):
    """The annotations are nearly as large as the API server lets them be: the migration waits."""

    reason = "TooManyMigrations"


class HoldLimitReached(ResourceQuotaError):
    """A pod of the old side still counts long after its migration; its headroom is taken back all the same."""

    reason = "HoldLimitReached"


class InsufficientResources(ResourceQuotaError):
    """A VM cannot start within the quota; the text is Harvester's, `resource` is cpu, memory or storage."""

    reason = "InsufficientResourceQuota"

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} insufficient resources due to resource quota")
        self.resource = resource
