"""The events that headroom writes: the table that docs/reference.md is made from. A test holds it against the code."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Event:
    """`about` is the kind of object that it is written on; `remedy` is what to do, "" where nothing is to be done."""

    reason: str
    about: str
    meaning: str
    remedy: str = ""
    kind: str = "Warning"


_QUOTA: Final = "ResourceQuota"
_VMI: Final = "VirtualMachineInstance"
_OWN: Final = "ConfigMap `headroom`"
_BUDGET: Final = "VMMRQ, VMIM"
EVENTS: Final = (
    # -- what keeps a quota from being raised
    Event(
        "InvalidResourceQuotaAnnotation",
        "ResourceQuota, Namespace",
        "`field.cattle.io/resourceQuota` of the namespace or the recorded base is not valid; spec.hard is not changed.",
        "Correct it: `kubectl get namespace NS -o yaml`",
    ),
    Event(
        "InvalidMigratingEntry",
        _QUOTA,
        "An annotation `harvesterhci.io/migrating…` is not a ResourceList; spec.hard is not changed.",
        "Correct or remove it: `kubectl -n NS get resourcequota -o yaml`",
    ),
    Event(
        "MigrationNotScaled",
        _VMI,
        "The VM has no limits, or something about it can't be worked out.",
        "Read the event's text; set limits on the VM",
    ),
    Event(
        "PodExceedsVirtualMachine",
        _VMI,
        "A pod of the VM counts more than KubeVirt renders; nothing is added for the surplus.",
        "Find out what changed the pod: `kubectl -n NS get pods -o yaml`",
    ),
    Event(
        "MaxExtraReached",
        "ResourceQuota, VirtualMachineInstance",
        "The cap `max-extra` is used up; the migration waits.",
        "Raise it, or let other migrations finish: `headroom status -n NS`",
    ),
    Event(
        "ResourceQuotaNotGranted",
        _QUOTA,
        "Rancher has refused what the namespace's annotation requests. What it has granted stays the base.",
        "Give the project room, or lower the request",
    ),
    Event(
        "ProjectQuotaExceeded",
        _QUOTA,
        "Rancher's project has no room for what a migration needs.",
        "Give the project room: [beside Rancher](rancher.md)",
    ),
    Event(
        "RancherDoesNotAnswer",
        _QUOTA,
        "Rancher has not written the quota within 10 seconds of headroom's request.",
        "Rancher's server has to run and to reach the cluster; the namespace has to be in a project",
    ),
    Event(
        "MigratingEntryStuck",
        _QUOTA,
        "The quota carries entries that only Rancher may remove, and that no longer count.",
        "Run the command that the event names",
    ),
    Event(
        "ResourceQuotaReverted",
        _QUOTA,
        "Another writer, which the event names by its field manager, lowers spec.hard again and again.",
        "Stop it, or run the webhooks: [Another writer](troubleshooting.md#another-writer-lowers-the-quota)",
    ),
    Event("MaxExtraCapsNothing", _QUOTA, "`max-extra` names a resource that is not limited there.", "Correct the name"),
    Event(
        "TooManyMigrations",
        _VMI,
        "The quota's annotations are nearly full; the migration waits for others.",
        "Nothing, or fewer migrations at once",
    ),
    Event(
        "DeviceNotInBase",
        _VMI,
        "Quota refuses the target for a device that its source does not have; the event names it.",
        "Enlarge the base by it: [migrations](limits.md#migrations)",
    ),
    Event(
        "HoldLimitReached",
        _VMI,
        "A source pod still counts long after its migration; its headroom is taken back.",
        "Find out why it does not end: `kubectl -n NS get pods -l kubevirt.io=virt-launcher`",
    ),
    Event(
        "ReserveLabelRemoved",
        "Namespace",
        "Another client removed the label `headroom.harvesterhci.io/holding`: nothing is reserved until it is back.",
        "Have that client (a GitOps tool that prunes) leave the label alone",
    ),
    Event(
        "InsufficientResourceQuota",
        "VirtualMachine",
        "The VM cannot start within the quota and was halted.",
        "Raise the quota, then start the VM: `headroom status -n NS`",
    ),
    Event(
        "BaseChanged",
        _QUOTA,
        "The quota was changed while it was raised: what was written is its new base.",
        kind="Normal",
    ),
    Event(
        "ResourceQuotaCorrected",
        _QUOTA,
        "A write of Rancher's would have taken the added headroom away; it was corrected.",
        kind="Normal",
    ),
    # -- what keeps headroom from its work
    Event(
        "RequestRefused",
        "what waits, or ConfigMap `headroom`",
        "A webhook, a policy, RBAC or a quota refuses what headroom asks for; it is tried again every 25 s at least.",
        "[Who refuses](runbooks/HeadroomRequestsRefused.md): the event names it",
    ),
    Event(
        "RequestUnanswered",
        "what waits",
        "A request of headroom's has had no answer for 5 seconds.",
        "Look at the API server and at the webhooks that it asks: [who refuses](runbooks/HeadroomRequestsRefused.md)",
    ),
    # -- the installation
    Event(
        "LeaseNotAcquired",
        _OWN,
        "A replica can't read or write the Lease, and would not take over.",
        "Apply the roles of the version that runs; see /readyz",
    ),
    Event(
        "WebhookNotReached",
        _OWN,
        "The webhooks are registered, and the API server does not reach them.",
        "[The webhooks do not answer](troubleshooting.md#the-webhooks-do-not-answer)",
    ),
    Event(
        "WebhookFlagsDiffer",
        _OWN,
        "Another replica answers, and it was started with other flags.",
        "Same flags for all replicas",
    ),
    Event(
        "WebhookConfigurationChanged",
        _OWN,
        "Another client has deleted or changed headroom's webhook configuration; who registers it writes it again.",
        "Find out who did: the API server's audit log, a GitOps tool, a backup that was restored",
    ),
    Event(
        "PodPolicyMissing",
        _OWN,
        "A policy about pods is missing or changed, or refuses KubeVirt's own pods; the event names it.",
        "Set `kubevirtUsers`, or install it again: [the policies](runbooks/HeadroomPolicyMissing.md)",
    ),
    # -- managed tenant quota
    Event(
        "NotEnoughResourceToRelease",
        _BUDGET,
        "The budget is smaller than what the target pod needs, or other migrations have used it for 30 s.",
        "Raise `additionalMigrationResources`: `headroom explain NS/VM`",
    ),
    Event(
        "MultipleMigrationResourceQuotas",
        _BUDGET,
        "The namespace has more than one budget; none is used.",
        "Keep exactly one",
    ),
    Event("InvalidMigrationResourceQuota", _BUDGET, "The budget is not valid.", "Correct what the event names"),
    Event(
        "LockUnavailable",
        _BUDGET,
        "The namespace can't be locked or a quota not raised; nothing stays locked or raised.",
        "Read the event's text; see /readyz and the controller's log",
    ),
    Event(
        "LockLimitReached",
        _BUDGET,
        "The target pod did not appear in time; the lock was ended.",
        "See virt-controller's log, `headroom explain NS/VM`",
    ),
    Event(
        "ResourceQuotaNotRestored",
        _BUDGET,
        "Something refuses that a raised quota is restored; it is tried again.",
        "Remove what the event names",
    ),
    Event(
        "NamespaceNotUnlocked",
        _BUDGET,
        "Something refuses that the lock is deleted. Once it has ended, it refuses nothing.",
        "`headroom release --only locks`",
    ),
    Event("NamespaceLocked", _BUDGET, "The namespace is locked for a migration.", kind="Normal"),
    Event(
        "ResourceQuotaRaised",
        f"{_VMI}, VMIM",
        "A quota was raised for its migration, with a VMMRQ under the lock.",
        kind="Normal",
    ),
    Event("ResourceQuotaGivenBack", _VMI, "What was added for its migration has been given back.", kind="Normal"),
    Event("NamespaceUnlocked", _BUDGET, "The lock has ended.", kind="Normal"),
)
