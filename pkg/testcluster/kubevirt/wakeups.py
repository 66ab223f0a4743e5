"""Which change of one kind concerns which objects of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pkg.api.core import Pod, ResourceQuota
from pkg.api.meta import Object
from pkg.generic.factory import Management
from pkg.testcluster.kubevirt.gate import Gate
from pkg.testcluster.kubevirt.instance import is_launcher
from pkg.testcluster.kubevirt.lookup import Migrations, Pods, instance_keys, is_active, migration_keys
from pkg.testcluster.kubevirt.objects import (
    INSTANCES,
    MACHINES,
    MIGRATIONS,
    VirtualMachineInstance,
)
from pkg.testcluster.kubevirt.refusals import Refusals


def connect(
    management: Management,
    pods: Pods,
    migrations: Migrations,
    gate: Gate,
    launching: Refusals,
    migrating: Refusals,
) -> None:
    """Have every controller told of what concerns it in the other kinds."""
    machine_controller = management.controller(MACHINES)
    instance_controller = management.controller(INSTANCES)
    migration_controller = management.controller(MIGRATIONS)
    machine_controller.watch_related(instance_controller, own_key)
    instance_controller.watch_related(machine_controller, own_key)
    instance_controller.watch_related(management.pods, instances_of(pods))
    instance_controller.watch_related(migration_controller, lambda migration: [migration.vmi_key])
    instance_controller.watch_related(management.resource_quotas, refused_by(launching))
    migration_controller.watch_related(management.pods, migrations_of(pods, migrations))
    migration_controller.watch_related(instance_controller, active_migrations(migrations))
    migration_controller.watch_related(management.resource_quotas, refused_by(migrating, gate.is_waiting))


def own_key(obj: Object) -> list[str]:
    """A VM and its VMI have the same key."""
    return [obj.key]


def instances_of(pods: Pods) -> Callable[[Pod], list[str]]:
    """The VMI of a launcher, or of the launcher that an attachment pod belongs to."""

    def resolve(pod: Pod) -> list[str]:
        launcher = pod if is_launcher(pod) else pods.launcher_of(pod)
        return instance_keys(launcher) if launcher else []

    return resolve


def migrations_of(pods: Pods, migrations: Migrations) -> Callable[[Pod], list[str]]:
    """The migration that a pod was created for, and those that wait for a pod of their VMI to end."""

    def resolve(pod: Pod) -> Iterable[str]:
        yield from migration_keys(pod)
        for vmi_key in instance_keys(pod):
            yield from _active(migrations, vmi_key)

    return lambda pod: list(resolve(pod))


def active_migrations(migrations: Migrations) -> Callable[[VirtualMachineInstance], list[str]]:
    """The migrations of a VMI that have not ended."""
    return lambda vmi: _active(migrations, vmi.key)


def refused_by(
    refusals: Refusals, is_waiting: Callable[[str], bool] = lambda key: False
) -> Callable[[ResourceQuota], list[str]]:
    """Whatever was refused in a quota's namespace: it is tried again at once when the quota changes or goes.

    Not what `is_waiting` for another reason: of three hundred that may not run yet nobody need be told every time that
    a pod is counted.
    """
    return lambda quota: [key for key in refusals.quota_changed(quota.namespace) if not is_waiting(key)]


def _active(migrations: Migrations, vmi_key: str) -> list[str]:
    return [migration.key for migration in migrations.of(vmi_key) if is_active(migration)]
