"""Lookups in the caches: pods, VMIs and migrations by their relations, and KubeVirt's present configuration."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object
from kubeloop.api.objects import by_creation
from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt.instance import is_launcher
from lab.kubevirt.objects import ANNOTATION_MIGRATION_JOB_NAME, VirtualMachineInstanceMigration
from lab.kubevirt.options import StandInOptions, reported_version
from pkg.api.kubevirt import MigrationConfiguration
from pkg.config.management import Management
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.kubevirt.profiles import NEWEST, PROFILES
from pkg.util.kubevirt.rendering import Rendering, deployed_kubevirt, limited_resources, rendering

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
        pods.add_indexer(_BY_INSTANCE, vmi_keys)
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

    def attachments(self, launcher: Pod | None) -> list[Pod]:
        return self._pods.by_index(_BY_OWNER, launcher.uid) if launcher else []

    def vmis_of(self, pod: Pod) -> list[str]:
        """The VMI of a launcher, or of the launcher that an attachment pod belongs to, while that is known."""
        owner = owner_name(pod, "Pod")
        launcher = self._pods.get(namespace=pod.namespace, name=owner) if owner else pod
        return vmi_keys(launcher) if launcher else []

    def load(self, node_names: Iterable[str]) -> Counter[str]:
        """Living launchers by node."""
        return Counter({name: len(self._pods.by_index(_BY_NODE, name)) for name in node_names})


class Migrations:
    def __init__(self, migrations: CacheReader[VirtualMachineInstanceMigration]) -> None:
        self._migrations = migrations
        migrations.add_indexer(_BY_VMI, lambda migration: [migration.vmi_key])

    def get(self, key: str) -> VirtualMachineInstanceMigration | None:
        return self._migrations.get_by_key(key)

    def running(self) -> list[VirtualMachineInstanceMigration]:
        """Returns the migrations that have left Pending and have not ended."""
        waiting_phases = (None, "", constants.PHASE_PENDING)
        return [m for m in self._migrations.list() if m.status.phase not in waiting_phases and not is_finished(m)]

    def active(self, vmi_key: str) -> list[VirtualMachineInstanceMigration]:
        """Returns the migrations of a VMI that have not ended."""
        return [migration for migration in self._migrations.by_index(_BY_VMI, vmi_key) if not is_finished(migration)]

    def by_uid(self, vmi_key: str, uid: str) -> VirtualMachineInstanceMigration | None:
        """The migration of the VMI that has this uid."""
        return next((m for m in self._migrations.by_index(_BY_VMI, vmi_key) if m.uid == uid), None)

    def of_pod(self, pod: Pod) -> list[str]:
        """The migration that a pod was created for, and those that wait for a pod of their VMI to end."""
        waiting_keys = [migration.key for vmi_key in vmi_keys(pod) for migration in self.active(vmi_key)]
        return [*migration_keys(pod), *waiting_keys]

    def has_rival(self, migration: VirtualMachineInstanceMigration) -> bool:
        """Reports whether an earlier migration of the VMI is under way."""
        rivals = (candidate for candidate in self.active(migration.vmi_key) if candidate.uid != migration.uid)
        return any(rival.phase or by_creation(rival) < by_creation(migration) for rival in rivals)


class Configuration:
    """The present configuration, from the caches: the CR of the KubeVirt that is Deployed, Harvester's setting."""

    def __init__(self, management: Management, options: StandInOptions) -> None:
        self._kubevirts = management.kubevirts.cache()
        self._settings = management.settings.cache()
        self._quotas = management.resource_quotas.cache()
        self._namespaces = management.namespaces.cache()
        self._options = options

    def rendering(self, name: str) -> Rendering:
        """Returns the rendering for pods of the namespace of this name."""
        namespace = self._namespaces.get_by_key(name)
        setting = self._settings.get_by_key(constants.SETTING_OVERHEAD_RATIO)
        profile = PROFILES[self._options.overhead_profile]
        limits = limited_resources(limit for quota in self._quotas.list(name) for limit in quota.hard)
        configured = rendering(self._kubevirts.list(), setting, profile, namespace.labels if namespace else {})
        return replace(configured, quota_limits=limits)

    @property
    def launcher_image(self) -> str:
        return f"virt-launcher:{reported_version(self._options.overhead_profile)}"

    @property
    def reports_overhead(self) -> bool:
        """Reports whether VMIs have the overhead in status.memory.memoryOverhead, as recorded ones do."""
        return self._options.overhead_profile == NEWEST

    def limits(self) -> MigrationConfiguration:
        """The parallel limits: the CR's, else the command line's."""
        configured = deployed_kubevirt(self._kubevirts.list()).spec.configuration.migrations
        return configured or MigrationConfiguration(self._options.parallel_migrations, self._options.parallel_outbound)


def vmi_keys(pod: Pod) -> list[str]:
    """The key of the VMI that a launcher belongs to; none for other pods."""
    owner = owner_name(pod, "VirtualMachineInstance") if is_launcher(pod) else ""
    return [f"{pod.namespace}/{owner}"] if owner else []


def migration_keys(pod: Pod) -> list[str]:
    """The key of the VMIM that a target or attachment pod was created for."""
    name = pod.annotations.get(ANNOTATION_MIGRATION_JOB_NAME)
    return [f"{pod.namespace}/{name}"] if name else []


def owner_name(obj: Object, kind: str) -> str:
    """The name of the object's controller if it is of that kind, else ""."""
    references = obj.metadata.owner_references or ()
    return next((ref.name for ref in references if ref.controller and ref.kind == kind), "")


def is_owned_by(obj: Object, owner: Object) -> bool:
    """Reports whether this owner has the object: an earlier owner of the same name does not count, nor does an object
    of the same name without an owner."""
    return any(ref.uid == owner.uid for ref in obj.metadata.owner_references or ())


def _owning_launchers(pod: Pod) -> list[str]:
    if pod.labels.get(constants.LABEL_APP) != constants.APP_HOTPLUG_DISK:
        return []
    return [ref.uid for ref in pod.metadata.owner_references or () if ref.kind == "Pod"]


def _nodes(pod: Pod) -> list[str]:
    return [pod.spec.node_name or ""] if is_launcher(pod) and not pod.terminal else []


def _job_uids(pod: Pod) -> list[str]:
    uid = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "")
    return [uid] if uid and is_launcher(pod) else []
