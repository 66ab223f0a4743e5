"""Names, labels and annotation keys of the objects that KubeVirt makes. Wire format, where pkg.util has it not."""

from __future__ import annotations

import hashlib
from typing import Final

FINALIZER_MIGRATION: Final = "kubevirt.io/migrationJobFinalize"
FINALIZER_INSTANCE: Final = "kubevirt.io/virtualMachineControllerFinalize"
LABEL_VMI_NAME: Final = "kubevirt.io/vmi-name"
"""On a VMIM: what `kubectl get vmim -l` selects by."""
LABEL_MIGRATION_TARGET_NODE: Final = "kubevirt.io/migrationTargetNodeName"
ANNOTATION_MIGRATION_JOB_NAME: Final = "kubevirt.io/migrationJobName"
ANNOTATION_MIGRATION_TARGET_READY: Final = "kubevirt.io/migration-target-ready-timestamp"
ANNOTATION_OBSERVED_API: Final = "kubevirt.io/latest-observed-api-version"
ANNOTATION_OBSERVED_STORAGE: Final = "kubevirt.io/storage-observed-api-version"
ANNOTATION_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
CONDITION_MIGRATION_REQUIRED: Final = "MigrationRequired"
CONDITION_SYNCHRONIZED: Final = "Synchronized"
"""Condition of a VMI whose pod could not be created: status False, reason FailedCreate."""

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""apimachinery's alphabet for generated names: no vowels, no words."""
_MAX_GENERATED_BASE: Final = 58
_MAX_LABEL: Final = 63


def generate_name(base: str) -> str:
    """The part before the suffix, as long as the API server would leave it (apiserver's names/generate.go)."""
    return base[:_MAX_GENERATED_BASE]


def generated_name(base: str, uid: str) -> str:
    """`base` and five characters that follow from `uid`.

    The API server would draw them; drawn from the uid, a pod that was created just before a crash or a lost answer is
    found again by its name instead of being created twice.
    """
    number = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")
    suffix = ""
    for _ in range(5):
        number, index = divmod(number, len(_SUFFIX_LETTERS))
        suffix += _SUFFIX_LETTERS[index]
    return generate_name(base) + suffix


def instance_id(name: str) -> str:
    """A VMI's name as a label value: names longer than 63 characters end in a hash (KubeVirt 1.7)."""
    if len(name) <= _MAX_LABEL:
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:8]
    return f"{name[: _MAX_LABEL - 9]}-{digest}"


def host_name(name: str) -> str:
    """A VMI's name as a pod's hostname: its first part, 63 characters at most (KubeVirt's SanitizeHostname)."""
    return name.split(".", 1)[0][:_MAX_LABEL].rstrip("-")
