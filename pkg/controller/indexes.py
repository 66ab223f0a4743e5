"""The indexes that controllers share: by which other object an object is looked up."""

from __future__ import annotations

from kubeloop.api.core import Pod
from pkg.config.management import Management
from pkg.util import constants

MIGRATIONS_BY_VMI = "vmi"
"""VMIMs by `namespace/vmiName`."""
PODS_BY_MIGRATION = "migrationJobUID"
"""Pods by `namespace/<vmim uid>`: a migration's target pod and its attachment pods."""
PODS_BY_VMI = "created-by"
"""Launcher pods by `namespace/<vmi uid>`."""


def index(management: Management) -> None:
    """Make all of them available; once, before anything is registered."""
    management.virtual_machine_instance_migrations.cache().add_indexer(
        MIGRATIONS_BY_VMI, lambda vmim: [f"{vmim.namespace}/{vmim.spec.vmi_name}"]
    )
    pods = management.pods.cache()
    pods.add_indexer(PODS_BY_MIGRATION, lambda pod: _by_label(pod, constants.LABEL_MIGRATION_JOB_UID))
    pods.add_indexer(PODS_BY_VMI, lambda pod: _by_label(pod, constants.LABEL_CREATED_BY))


def _by_label(pod: Pod, label: str) -> list[str]:
    value = pod.labels.get(label)
    return [f"{pod.namespace}/{value}"] if value else []
