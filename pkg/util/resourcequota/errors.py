"""The reasons of Events about ResourceQuotas, and the errors that are raised where an object cannot be read."""

from __future__ import annotations

from pkg.util.problems import Problem

EVENT_NOT_SCALED = "MigrationNotScaled"
EVENT_TOO_LARGE = "PodExceedsVirtualMachine"
EVENT_BASE_CHANGED = "BaseChanged"
EVENT_CAP_REACHED = "MaxExtraReached"
EVENT_IDLE_CAP = "MaxExtraCapsNothing"
EVENT_TOO_MANY = "TooManyMigrations"
EVENT_DEVICE = "DeviceNotInBase"
EVENT_HOLD_LIMIT = "HoldLimitReached"
EVENT_NOT_GRANTED = "ResourceQuotaNotGranted"
EVENT_PROJECT_FULL = "ProjectQuotaExceeded"
EVENT_STUCK = "MigratingEntryStuck"
EVENT_NO_ANSWER = "RancherDoesNotAnswer"
EVENT_REVERTED = "ResourceQuotaReverted"


def not_understood(vm: str, error: Exception) -> Problem:
    """Returns the problem of a VM whose objects the formulas, which were made for KubeVirt's, do not follow."""
    text = f"VM {vm}: {type(error).__name__}: {error}"[:250]
    return Problem(EVENT_NOT_SCALED, text, vm=vm, cause=error)


class ResourceQuotaError(Exception):
    """Something that is written on a quota or a namespace is garbage, or not enough."""

    reason = ""
    """The Event's reason."""

    @property
    def problem(self) -> Problem:
        return Problem(self.reason, str(self))


class InvalidNamespaceAnnotation(ResourceQuotaError):
    """`field.cattle.io/resourceQuota` is not the JSON that Rancher writes (upstream: an error, retried)."""

    reason = "InvalidResourceQuotaAnnotation"


class InvalidBaseQuantity(ResourceQuotaError):
    """A limit in the namespace annotation is not a quantity (upstream: skip scaling)."""

    reason = "InvalidResourceQuotaAnnotation"


class InvalidEntry(ResourceQuotaError):
    """A migrating entry or the compensation on the ResourceQuota is garbage (upstream: skip scaling)."""

    reason = "InvalidMigratingEntry"


def insufficient(resource: str) -> str:
    """Returns Harvester's text about a VM that cannot start within the quota: `resource` is cpu, memory or storage."""
    return f"{resource} insufficient resources due to resource quota"
