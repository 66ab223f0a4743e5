"""Problems of quotas and VMs as values, one type from a decision to event, log, metric and report; and the errors of
what is written on a quota or a namespace. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import EventType
from kubeloop.api.meta import Object

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


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a quota or a VM is not served, or its base has changed, that an administrator can act upon."""

    reason: str  # the Event's (docs/reference.md)
    message: str
    vm: str = ""
    """The name of the VM that it is about; "": it is about the quota, or about `objects`."""
    objects: Sequence[Object] = ()
    identity: str = ""
    """What stays the same while the amounts in the message change; "": the VM, or the message up to its colon."""
    kind: EventType = "Warning"
    cause: Exception | None = field(default=None, compare=False)
    """It may be a mistake of headroom's: the log shows where."""

    @property
    def key(self) -> str:
        """The same for the same problem: it is one event."""
        return f"{self.reason}/{self.identity or self.vm or self.message.partition(':')[0]}"

    def __str__(self) -> str:
        return self.message


def not_understood(vm: str, error: Exception) -> Problem:
    """Returns the problem of a VM whose objects the formulas, which were made for KubeVirt's, do not follow."""
    text = f"VM {vm}: {type(error).__name__}: {error}"[:250]
    return Problem(EVENT_NOT_SCALED, text, vm=vm, cause=error)


class ResourceQuotaError(Exception):
    reason = ""

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
