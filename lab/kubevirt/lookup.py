"""Finding pods, VMIs and migrations by what belongs together. Reads caches only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object
from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt import names
from lab.kubevirt.instance import is_launcher
from lab.kubevirt.objects import VirtualMachineInstanceMigration
from pkg.util import constants

_BY_INSTANCE = "instance"
_BY_JOB = "migration job"
_BY_OWNER = "owning launcher"
_BY_NODE = "node of a living launcher"
_TARGETS = "target pods"
_BY_VMI = "vmi"
_ALL = "all"


class Pods:
    """Launcher and attachment pods by VMI, migration, owner and node."""

    def __init__(self, pods: CacheReader[Pod]) -> None:
        self._pods = pods
        pods.add_indexer(_BY_INSTANCE, instance_keys)
        pods.add_indexer(_BY_JOB, _job_uids)
        pods.add_indexer(_BY_OWNER, _owning_launchers)
        pods.add_indexer(_BY_NODE, _nodes)
        pods.add_indexer(_TARGETS, lambda pod: [_ALL] if _job_uids(pod) and not pod.terminal else [])

    def get(self, key: str) -> Pod | None:
        return self._pods.get_by_key(key)

    def launchers(self, vmi_key: str) -> list[Pod]:
        """Every launcher of a VMI of that key, of earlier VMIs of the same name as well."""
        return self._pods.by_index(_BY_INSTANCE, vmi_key)

    def target(self, migration: VirtualMachineInstanceMigration) -> Pod | None:
        return next(iter(self._pods.by_index(_BY_JOB, migration.uid)), None)

    def targets(self) -> list[Pod]:
        """Every pod that was created as a target and has not ended."""
        return self._pods.by_index(_TARGETS, _ALL)

    def attachment(self, launcher: Pod | None) -> Pod | None:
        return next(iter(self.attachments(launcher)), None) if launcher else None

    def attachments(self, launcher: Pod) -> list[Pod]:
        return self._pods.by_index(_BY_OWNER, launcher.uid)

    def launcher_of(self, attachment: Pod) -> Pod | None:
        """The launcher that owns an attachment pod, if it is (still) known."""
        owner = owner_name(attachment, "Pod")
        return self._pods.get(namespace=attachment.namespace, name=owner) if owner else None

    def load(self, node_names: Iterable[str]) -> Counter[str]:
        """Living launchers by node."""
        return Counter({name: len(self._pods.by_index(_BY_NODE, name)) for name in node_names})


class Migrations:
    def __init__(self, migrations: CacheReader[VirtualMachineInstanceMigration]) -> None:
        self._migrations = migrations
        migrations.add_indexer(_BY_VMI, lambda migration: [migration.vmi_key])

    def get(self, key: str) -> VirtualMachineInstanceMigration | None:
        return self._migrations.get_by_key(key)

    def of(self, vmi_key: str) -> list[VirtualMachineInstanceMigration]:
        return self._migrations.by_index(_BY_VMI, vmi_key)

    def active(self, vmi_key: str) -> list[VirtualMachineInstanceMigration]:
        """Those of a VMI that have not ended."""
        return [migration for migration in self.of(vmi_key) if is_active(migration)]

    def by_uid(self, vmi_key: str, uid: str) -> VirtualMachineInstanceMigration | None:
        """The migration of the VMI that has this uid."""
        return next((migration for migration in self.of(vmi_key) if migration.uid == uid), None)

    def rival(self, migration: VirtualMachineInstanceMigration) -> bool:
        """Whether another migration of the VMI is under way that came first."""
        others = (each for each in self.active(migration.vmi_key) if each.uid != migration.uid)
        return any(other.phase or _age(other) < _age(migration) for other in others)


def is_active(migration: VirtualMachineInstanceMigration | None) -> bool:
    """Whether the migration exists and has not come to its end."""
    return migration is not None and migration.phase not in constants.FINAL_PHASES


def instance_keys(pod: Pod) -> list[str]:
    """The key of the VMI that a launcher belongs to; none for other pods."""
    owner = owner_name(pod, "VirtualMachineInstance") if is_launcher(pod) else ""
    return [f"{pod.namespace}/{owner}"] if owner else []


def migration_keys(pod: Pod) -> list[str]:
    """The key of the VMIM that a target or attachment pod was created for."""
    name = pod.annotations.get(names.ANNOTATION_MIGRATION_JOB_NAME)
    return [f"{pod.namespace}/{name}"] if name else []


def owner_name(obj: Object, kind: str) -> str:
    """The name of the object's controller if it is of that kind, else ""."""
    references = obj.metadata.owner_references or ()
    return next((ref.name for ref in references if ref.controller and ref.kind == kind), "")


def _owning_launchers(pod: Pod) -> list[str]:
    if pod.labels.get(constants.LABEL_APP) != constants.APP_HOTPLUG_DISK:
        return []
    return [ref.uid for ref in pod.metadata.owner_references or () if ref.kind == "Pod"]


def _job_uids(pod: Pod) -> list[str]:
    uid = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "")
    return [uid] if uid and is_launcher(pod) else []


def _nodes(pod: Pod) -> list[str]:
    node = pod.spec.node_name
    return [node] if node and is_launcher(pod) and not pod.terminal else []


def _age(migration: VirtualMachineInstanceMigration) -> tuple[str, str]:
    return migration.metadata.creation_timestamp or "", migration.name
