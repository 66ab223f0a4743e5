"""The wire format: every key, label and literal that Harvester, Rancher, KubeVirt and this project share.

Source: the formats of Harvester (pkg/util/constants.go), Rancher (resourcequota) and KubeVirt (api/core/v1).
They must match byte for byte; what two modules need is spelled here alone."""

from typing import Final

# Harvester, prefix harvesterhci.io/
HARVESTER_PREFIX: Final = "harvesterhci.io/"
ANNOTATION_MIGRATING_NAME_PREFIX: Final = "harvesterhci.io/migrating-"
"""With a VM's name, on an RQ: a migrating VM's delta (Harvester ≤ 1.4.1, and takeover)."""
ANNOTATION_MIGRATING_UID_PREFIX: Final = "harvesterhci.io/migratingUID-"
"""The same, with the VMI's uid (Harvester ≥ 1.4.2)."""
ANNOTATION_MIGRATING_COMPENSATION: Final = "harvesterhci.io/migratingCompensation"
ANNOTATION_RESYNC_NEEDED: Final = "harvesterhci.io/migratingScalingResyncNeeded"
ANNOTATION_SKIP_AUTO_SCALING: Final = "harvesterhci.io/skipResourceQuotaAutoScaling"
ANNOTATION_MIGRATION_UID: Final = "harvesterhci.io/migrationUID"
ANNOTATION_MIGRATION_STATE: Final = "harvesterhci.io/migrationState"
_MIGRATION_TARGET = "harvesterhci.io/migrationTargetNodeName"
VMI_STATE_ANNOTATIONS: Final = (ANNOTATION_MIGRATION_UID, ANNOTATION_MIGRATION_STATE, _MIGRATION_TARGET)
ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA: Final = "harvesterhci.io/insufficient-resource-quota"
ANNOTATION_VOLUME_CLAIM_TEMPLATES: Final = "harvesterhci.io/volumeClaimTemplates"
SETTING_OVERHEAD_RATIO: Final = "additional-guest-memory-overhead-ratio"
DEFAULT_OVERHEAD_RATIO: Final = "1.5"
EVENT_INSUFFICIENT_RESOURCE_QUOTA: Final = "InsufficientResourceQuota"

# Rancher
ANNOTATION_RANCHER_RESOURCE_QUOTA: Final = "field.cattle.io/resourceQuota"
LABEL_DEFAULT_RESOURCE_QUOTA: Final = "resourcequota.management.cattle.io/default-resource-quota"
DEFAULT_QUOTAS: Final = f"{LABEL_DEFAULT_RESOURCE_QUOTA}=true"
ANNOTATION_PROJECT: Final = "field.cattle.io/projectId"
"""On a namespace: its project, `CLUSTER:PROJECT`."""
ANNOTATION_RANCHER_STATUS: Final = "cattle.io/status"
"""On a namespace: Rancher's conditions, as JSON."""
RANCHER_WEBHOOKS: Final = "rancher.cattle.io"
"""The name of its webhook configurations; its webhooks' names begin with it."""
RANCHER_SUDO_USER: Final = "system:serviceaccount:cattle-system:rancher-webhook-sudo"
RANCHER_SUDO_GROUP: Final = "system:masters"
"""Rancher's own way around its webhook: this group, as the user before."""

# KubeVirt
LABEL_APP: Final = "kubevirt.io"
APP_VIRT_LAUNCHER: Final = "virt-launcher"
APP_HOTPLUG_DISK: Final = "hotplug-disk"
KUBEVIRT_PODS: Final = f"{LABEL_APP} in ({APP_HOTPLUG_DISK},{APP_VIRT_LAUNCHER})"
"""The selector of VMs' pods. Any other pod may have the label with another value, a tenant's too."""
LABEL_CREATED_BY: Final = "kubevirt.io/created-by"
LABEL_MIGRATION_JOB_UID: Final = "kubevirt.io/migrationJobUID"
LABEL_VM_NAME: Final = "vm.kubevirt.io/name"
LABEL_NODE_NAME: Final = "kubevirt.io/nodeName"
LABEL_OUTDATED_LAUNCHER: Final = "kubevirt.io/outdatedLauncherImage"
ANNOTATION_MEMORY_OVERHEAD: Final = "kubevirt.io/memory-overhead-bytes"
EVENT_FAILED_CREATE: Final = "FailedCreate"
CONDITION_REJECTED_BY_RESOURCE_QUOTA: Final = "migrationRejectedByResourceQuota"
CONDITION_ABORT_REQUESTED: Final = "migrationAbortRequested"
CONDITION_BLOCKED_BY_UTILITY_VOLUMES: Final = "migrationBlockedByUtilityVolumes"
CONDITION_CPU_CHANGE: Final = "HotVCPUChange"
CONDITION_MEMORY_CHANGE: Final = "HotMemoryChange"
KUBEVIRT_PHASE_DEPLOYED: Final = "Deployed"

PHASE_UNSET: Final = ""
PHASE_PENDING: Final = "Pending"
PHASE_SCHEDULING: Final = "Scheduling"
PHASE_SCHEDULED: Final = "Scheduled"
PHASE_RUNNING: Final = "Running"
PHASE_SUCCEEDED: Final = "Succeeded"
PHASE_FAILED: Final = "Failed"
FINAL_PHASES: Final = frozenset({PHASE_SUCCEEDED, PHASE_FAILED})
WAITING_PHASES: Final = frozenset({PHASE_UNSET, PHASE_PENDING})
"""A phase that is none of the known ones counts as migrating: newer KubeVirt adds phases."""

RUN_STRATEGY_HALTED: Final = "Halted"

# Ours, prefix headroom.harvesterhci.io/
ANNOTATION_OWNER: Final = "headroom.harvesterhci.io/owner"
OWNER: Final = "headroom"
USER_AGENT: Final = "headroom"
"""In every request; the API server names the field manager after it."""
CONFIG_MAP: Final = "headroom"
LEASE: Final = "headroom"
LABEL_MANAGED: Final = "headroom.harvesterhci.io/managed"
LABEL_HOLDING: Final = "headroom.harvesterhci.io/holding"
"""On a namespace: quotas in it are raised, or may be, so the API server calls the webhook for its new pods."""
ANNOTATION_BASE: Final = "headroom.harvesterhci.io/base"
ANNOTATION_APPLIED: Final = "headroom.harvesterhci.io/applied"
"""Beside the recorded base while something is added to it: spec.hard as we wrote it, a ResourceList as JSON."""
ANNOTATION_REQUEST: Final = "headroom.harvesterhci.io/request"
"""On a namespace while headroom requests more of Rancher (`pkg.util.resourcequota.rancher.Request`)."""
ANNOTATION_MAX_EXTRA: Final = "headroom.harvesterhci.io/max-extra"
ANNOTATION_STORAGE_MIGRATION: Final = "headroom.harvesterhci.io/storage-migration"
ANNOTATION_SUMMARY: Final = "headroom.harvesterhci.io/summary"
ANNOTATION_TOUCHED: Final = "headroom.harvesterhci.io/touched"

WEBHOOK_CONFIGURATION_NAME: Final = "headroom.harvesterhci.io"
LOCK_PATH: Final = "/lock"

# managed-tenant-quota, and what we add to it
LOCK_LABELS: Final = {"mtq-lock-server": "mtq-lock-server"}
ANNOTATION_SINCE: Final = "headroom.harvesterhci.io/locked-since"
"""On a lock: RFC 3339 with fractions of a second; its creationTimestamp has none. Its age goes by that one."""
ANNOTATION_UNTIL: Final = "headroom.harvesterhci.io/locked-until"
ANNOTATION_HOLDER: Final = "headroom.harvesterhci.io/locked-by"
ANNOTATION_REASON: Final = "headroom.harvesterhci.io/locked-for"
"""The VMs whose migrations a lock was made for."""
ANNOTATION_ORIGINALS: Final = "headroom.harvesterhci.io/originals"
"""On a raised quota: spec.hard as it was, and what was added, as JSON."""

_KUBERNETES, _HARVESTER = ("kube-*", "kubevirt"), ("harvester-system", "harvester-public", "longhorn-system")
_RANCHER = ("cattle-*", "fleet-*", "cluster-fleet-*", "rancher-operator-system")
NEVER_LOCKED: Final = (*_KUBERNETES, *_HARVESTER, *_RANCHER)
"""Namespaces (shell patterns) without whose new pods the cluster stops. The namespaces of headroom and of the KubeVirt
objects belong to them too."""

EVENT_NOT_ENOUGH: Final = "NotEnoughResourceToRelease"
EVENT_SEVERAL_BUDGETS: Final = "MultipleMigrationResourceQuotas"
EVENT_INVALID_BUDGET: Final = "InvalidMigrationResourceQuota"
EVENT_LOCK_UNAVAILABLE: Final = "LockUnavailable"
EVENT_LOCK_LIMIT: Final = "LockLimitReached"
EVENT_RESTORE_REFUSED: Final = "ResourceQuotaNotRestored"
EVENT_UNLOCK_REFUSED: Final = "NamespaceNotUnlocked"
EVENT_LOCKED: Final = "NamespaceLocked"
EVENT_UNLOCKED: Final = "NamespaceUnlocked"
EVENT_RAISED: Final = "ResourceQuotaRaised"
EVENT_GIVEN_BACK: Final = "ResourceQuotaGivenBack"

# core/v1
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""On every namespace: a lock's namespaceSelector."""
LIMITS_CPU: Final = "limits.cpu"
LIMITS_MEMORY: Final = "limits.memory"
REQUESTS_STORAGE: Final = "requests.storage"
PODS: Final = "pods"
CPU: Final = "cpu"
MEMORY: Final = "memory"

TRUE: Final = "true"
FALSE: Final = "false"

COLLECTED: Final = "objects.jsonl"
"""The file in what `headroom collect` writes that the offline commands read."""
