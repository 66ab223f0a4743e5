"""Why a ResourceQuota is left as it is: each is something an administrator can fix, said in one line."""

from __future__ import annotations

from kubeloop.api.core import EventType

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


class ResourceQuotaError(Exception):
    """`reason` is the Event's reason (docs/reference.md), `str(self)` its message. It is about the VM named `vm`, or
    about the quota."""

    reason = ""

    def __init__(self, message: str, reason: str = "", *, vm: str = "") -> None:
        super().__init__(message)
        self.reason = reason or self.reason
        self.vm = vm

    @property
    def kind(self) -> EventType:
        """The Event's type."""
        return "Normal" if self.reason == EVENT_BASE_CHANGED else "Warning"

    @property
    def state(self) -> tuple[str, str]:
        """What stays the same while the amounts in the message change: it is one event."""
        return self.reason, self.vm or str(self).partition(":")[0]


_LONGEST = 250
"""Characters of what is said about a VM that is not understood."""


def not_understood(vm: str, error: Exception) -> ResourceQuotaError:
    """A VM whose objects the formulas, which were made for KubeVirt's, do not follow. The error is its cause: it may be
    a mistake of ours, and the log shows where."""
    problem = ResourceQuotaError(f"VM {vm}: {type(error).__name__}: {error}"[:_LONGEST], EVENT_NOT_SCALED, vm=vm)
    problem.__cause__ = error
    return problem


class InvalidNamespaceAnnotation(ResourceQuotaError):
    """`field.cattle.io/resourceQuota` is not the JSON that Rancher writes (upstream: an error, retried)."""

    reason = "InvalidResourceQuotaAnnotation"


class InvalidBaseQuantity(ResourceQuotaError):
    """A limit in the namespace annotation is not a quantity (upstream: skip scaling)."""

    reason = "InvalidResourceQuotaAnnotation"


class InvalidEntry(ResourceQuotaError):
    """A migrating entry or the compensation on the ResourceQuota is garbage (upstream: skip scaling)."""

    reason = "InvalidMigratingEntry"


class InsufficientResources(ResourceQuotaError):
    """A VM cannot start within the quota; the text is Harvester's: `resource` is cpu, memory or storage."""

    reason = "InsufficientResourceQuota"

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} insufficient resources due to resource quota")
