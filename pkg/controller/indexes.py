"""The indexes that controllers share: by which other object an object is looked up."""

from __future__ import annotations

from kubeloop.api.core import Pod
from pkg.config.management import Management
from pkg.util.kubevirt.migration_pods import migration_of

MIGRATIONS_BY_VMI = "vmi"
"""VMIMs by `namespace/vmiName`."""
PODS_BY_MIGRATION = "migrationJobUID"
"""Pods by `namespace/<vmim uid>`: a migration's target pod and its attachment pods."""


def index(management: Management) -> None:
    """Make all of them available; once, before anything is registered."""
    management.virtual_machine_instance_migrations.cache().add_indexer(
        MIGRATIONS_BY_VMI, lambda vmim: [f"{vmim.namespace}/{vmim.spec.vmi_name}"]
    )
    management.pods.cache().add_indexer(PODS_BY_MIGRATION, _by_migration)


def _by_migration(pod: Pod) -> list[str]:
    uid = migration_of(pod)
    return [f"{pod.namespace}/{uid}"] if uid else []
