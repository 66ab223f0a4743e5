"""The wire format of managed-tenant-quota, and what we add to it."""

from __future__ import annotations

from typing import Final

LOCK_LABEL: Final = "mtq-lock-server"
LOCK_LABELS: Final = {LOCK_LABEL: "mtq-lock-server"}
LOCK_SELECTOR: Final = f"{LOCK_LABEL}={LOCK_LABEL}"
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""Kubernetes' own label on every namespace: a lock's namespaceSelector."""

ANNOTATION_SINCE: Final = "headroom.harvesterhci.io/locked-since"
"""On a lock: RFC 3339 with fractions of a second; its creationTimestamp has none. Its age goes by that one."""
ANNOTATION_UNTIL: Final = "headroom.harvesterhci.io/locked-until"
"""The moment at which the lock is ended at the latest, by the same clock as the other one."""
ANNOTATION_HOLDER: Final = "headroom.harvesterhci.io/locked-by"
ANNOTATION_REASON: Final = "headroom.harvesterhci.io/locked-for"
"""On a lock: the VMs whose migrations it was made for."""

ANNOTATION_ORIGINALS: Final = "headroom.harvesterhci.io/originals"
"""On a raised quota: spec.hard as it was, and what was added, as JSON."""

NEVER_LOCKED: Final = (
    "kube-*",
    "kubevirt",
    "harvester-system",
    "harvester-public",
    "cattle-*",
    "fleet-*",
    "cluster-fleet-*",
    "rancher-operator-system",
    "longhorn-system",
)
"""Namespaces (shell patterns) of Kubernetes, KubeVirt, Harvester and Rancher: without new pods there the cluster stops.
The namespaces of headroom and of the KubeVirt objects belong to them too."""

UPSTREAM_LEASE: Final = "mtq-controller"
"""The Lease of KubeVirt's managed-tenant-quota (pkg/mtq-controller/application.go)."""

EVENT_UPSTREAM: Final = "UpstreamControllerRunning"
EVENT_NOT_ENOUGH: Final = "NotEnoughResourceToRelease"
EVENT_SEVERAL_BUDGETS: Final = "MultipleMigrationResourceQuotas"
EVENT_INVALID_BUDGET: Final = "InvalidMigrationResourceQuota"
EVENT_LOCK_UNAVAILABLE: Final = "LockUnavailable"
EVENT_LOCK_LIMIT: Final = "LockLimitReached"
EVENT_RESTORE_REFUSED: Final = "ResourceQuotaNotRestored"
EVENT_UNLOCK_REFUSED: Final = "NamespaceNotUnlocked"
EVENT_LOCKED: Final = "NamespaceLocked"
EVENT_UNLOCKED: Final = "NamespaceUnlocked"
EVENT_RELEASED: Final = "ResourceQuotaRaised"
