"""The wire format of managed-tenant-quota, and what we add to it."""

from __future__ import annotations

from typing import Final

LOCK_LABEL: Final = "mtq-lock-server"
LOCK_LABELS: Final = {LOCK_LABEL: "mtq-lock-server"}
LOCK_SELECTOR: Final = f"{LOCK_LABEL}={LOCK_LABEL}"
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""Kubernetes' own label on every namespace: a lock's namespaceSelector."""

ANNOTATION_SINCE: Final = "headroom.harvesterhci.io/locked-since"
"""On a lock: RFC 3339 with fractions of a second; its creationTimestamp has none."""
ANNOTATION_HOLDER: Final = "headroom.harvesterhci.io/locked-by"
ANNOTATION_REASON: Final = "headroom.harvesterhci.io/locked-for"
"""On a lock: the VMs whose migrations it was made for."""

VIRT_CONTROLLER: Final = "kubevirt-controller"
"""The service account that creates target pods."""
KUBEVIRT_NAMESPACE: Final = "kubevirt"
"""Where KubeVirt lives unless its CR is somewhere else."""

EVENT_NOT_ENOUGH: Final = "NotEnoughResourceToRelease"
EVENT_SEVERAL_BUDGETS: Final = "MultipleMigrationResourceQuotas"
EVENT_INVALID_BUDGET: Final = "InvalidMigrationResourceQuota"
EVENT_LOCK_UNAVAILABLE: Final = "LockUnavailable"
EVENT_LOCK_LIMIT: Final = "LockLimitReached"
EVENT_LOCKED: Final = "NamespaceLocked"
EVENT_UNLOCKED: Final = "NamespaceUnlocked"
EVENT_RELEASED: Final = "ResourceQuotaRaised"
