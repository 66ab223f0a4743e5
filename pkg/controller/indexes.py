"""The indexes that controllers share: by which other object an object is looked up."""

from __future__ import annotations

from kubeloop.api.core import Pod
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.migration import migration_of

MIGRATIONS_BY_VMI = "vmi"
"""VMIMs by `namespace/vmiName`."""
PODS_BY_MIGRATION = "migrationJobUID"
"""Pods by `namespace/<vmim uid>`: a migration's target pod and its attachment pods."""
LAUNCHERS_BY_VM = "launchers-by-vm"
"""Launcher pods by `namespace/<VM name>`."""


def index(migrations: CacheReader[VirtualMachineInstanceMigration], pods: CacheReader[Pod]) -> None:
    """Make all of them available; once, before anything is registered."""
    migrations.add_indexer(MIGRATIONS_BY_VMI, lambda vmim: [f"{vmim.namespace}/{vmim.spec.vmi_name}"])
    pods.add_indexer(PODS_BY_MIGRATION, lambda pod: _key(pod, migration_of(pod)))
    pods.add_indexer(LAUNCHERS_BY_VM, lambda pod: _key(pod, vm_of(pod)))


def _key(pod: Pod, name: str) -> list[str]:
    return [f"{pod.namespace}/{name}"] if name else []
