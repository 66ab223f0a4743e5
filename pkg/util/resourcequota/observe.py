"""The observation of a ResourceQuota's namespace, gathered in one way: from caches, from lists, or from both; and the
fields that it reads of an object. Pure."""

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from kubeloop.api.core import LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota
from kubeloop.api.meta import Object
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.claims import state_claim_of
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.launcher import rendered_from
from pkg.util.kubevirt.migration import may_attach, migration_of, migration_state_fields, stage_of
from pkg.util.kubevirt.profiles import Profile
from pkg.util.kubevirt.rendering import Rendering, limited_resources, rendering
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.resourcequota.base import counts_of_claims
from pkg.util.resourcequota.facts import NO_RANCHER, Cache, Facts, RancherFacts, Timers
from pkg.util.resourcequota.managed import is_default, switched_off
from pkg.util.resourcequota.rancher import annotation_of, granted_to, project_of, stuck_entries, with_request

T = TypeVar("T", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)


class Reader(Protocol[T_co]):
    """The objects of one kind: a cache (kubeloop.controllers.CacheReader) or `Listed`."""

    def get(self, *, name: str, namespace: str = "") -> T_co | None:
        """Returns the object, or None if there is none. No namespace for cluster-scoped kinds."""

    def list(self, namespace: str = "") -> Sequence[T_co]:
        """Returns all objects, or those of one namespace."""


class Listed(Generic[T]):
    """A list as a Reader."""

    def __init__(self, objects: Iterable[T] = ()) -> None:
        self._objects = list(objects)
        self._by_name = {(obj.namespace, obj.name): obj for obj in self._objects}
        self._by_namespace: dict[str, builtins.list[T]] = {}
        for obj in self._objects:
            self._by_namespace.setdefault(obj.namespace, []).append(obj)

    def get(self, *, name: str, namespace: str = "") -> T | None:
        return self._by_name.get((namespace, name))

    def list(self, namespace: str = "") -> builtins.list[T]:
        return self._by_namespace.get(namespace, []) if namespace else self._objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Reader a kind, from which namespaces are observed: over caches a decision costs no request. A kind that is not
    given has no objects."""

    namespaces: Reader[Namespace] = Listed()
    migrations: Reader[VirtualMachineInstanceMigration] = Listed()
    instances: Reader[VirtualMachineInstance] = Listed()
    pods: Reader[Pod] = Listed()
    """KubeVirt's: launchers and attachments."""
    claims: Reader[PersistentVolumeClaim] = Listed()
    machines: Reader[VirtualMachine] = Listed()
    limit_ranges: Reader[LimitRange] = Listed()
    kubevirts: Reader[KubeVirt] = Listed()
    settings: Reader[Setting] = Listed()
    quotas: Reader[ResourceQuota] = Listed()
    """As they are stored; decisions read `list_quotas`."""
    budgets: Reader[VirtualMachineMigrationResourceQuota] = Listed()
    """A namespace with one is managed tenant quota's."""
    kubernetes: Callable[[], Releases] = lambda: NEWEST
    """The releases by which the API servers count."""
    policy_in_force: Callable[[], bool] = lambda: False
    """Whether deploy/policy.yaml is."""
    profile: Profile | None = None
    """Overrides the KubeVirt object's version."""
    ratio: str | None = None
    """Overrides the configured overhead ratio."""
    asks: Callable[[ResourceQuota], bool] | None = None
    """Whether a quota is raised by requests to Rancher; None: where the namespace has a record of one."""
    cache: Cache = field(default_factory=Cache)

    def list_quotas(self, namespace: str = "") -> list[ResourceQuota]:
        """Returns all quotas, or those of a namespace, as decisions see them: where Rancher is asked to raise one, its
        entries are those of the namespace's record."""
        return [with_request(quota, self.namespaces.get(name=quota.namespace)) for quota in self.quotas.list(namespace)]

    def rendering(self, namespace: str) -> Rendering:
        """Returns how launcher pods are rendered there, the same as long as nothing it is made of changes: what depends
        on it is cached by it."""
        stored, setting = self.namespaces.get(name=namespace), self.settings.get(name=constants.SETTING_OVERHEAD_RATIO)
        inputs = tuple(self.kubevirts.list()), setting, self.profile, stored.labels if stored else {}
        surroundings: dict[str, Any] = {
            "limit_ranges": tuple(self.limit_ranges.list(namespace)),
            "quota_limits": limited_resources(name for quota in self.quotas.list(namespace) for name in quota.hard),
            "kubernetes": self.kubernetes(),
            "policy_in_force": self.policy_in_force(),
        }
        if self.ratio is not None:
            surroundings |= {"ratio": self.ratio, "harvester_ratio": self.ratio}
        key = "rendering", namespace, self.ratio
        return self.cache.get_or_compute(
            key, (*inputs, surroundings), lambda: replace(rendering(*inputs), **surroundings)
        )

    def observe(
        self, quota: ResourceQuota, now: float, timers: Timers | None = None, namespace: Namespace | None = None
    ) -> Facts:
        """Returns the state of the quota's namespace; `now` in seconds since the epoch. `namespace`: a later version of
        it than the Reader has."""
        name = quota.namespace
        namespace = namespace or self.namespaces.get(name=name) or Namespace()
        rancher = self._rancher(quota, namespace)
        counted = any(counts_of_claims(name) for listed in (quota, *self.quotas.list(name)) for name in listed.hard)
        claims = {claim.name: claim for claim in self.claims.list(name)} if counted else None
        return Facts(
            quota=quota if self.asks and not rancher.asks else with_request(quota, namespace, asks=rancher.asks),
            limits=annotation_of(namespace),
            rancher=rancher,
            migrations=self.migrations.list(name),
            instances={vmi.name: vmi for vmi in self.instances.list(name)},
            now=now,
            timers=timers or Timers(),
            pods=self.pods.list(name),
            claims=claims,
            machines={vm.name: vm for vm in self.machines.list(name)} if counted else {},
            storage_migration=namespace.annotations.get(constants.ANNOTATION_STORAGE_MIGRATION) == constants.TRUE,
            rendering=self.rendering(name),
            max_extra=namespace.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""),
            mtq=bool(self.budgets.list(name)),
            namespace_off=switched_off(namespace),
            cache=self.cache,
        )

    def _rancher(self, quota: ResourceQuota, namespace: Namespace) -> RancherFacts:
        recorded = constants.ANNOTATION_REQUEST in namespace.annotations
        asks = is_default(quota) and (recorded if self.asks is None else self.asks(quota))
        granted = granted_to(quota, namespace)
        if granted is None and not (asks or recorded):
            return NO_RANCHER
        project, name = project_of(namespace) if asks else "", namespace.name
        others = [other for other in self.namespaces.list() if project_of(other) == project] if project else []
        siblings = sorted((other.name, annotation_of(other)) for other in others if other.name != name)
        return RancherFacts(granted, asks, namespace, stuck_entries(quota), siblings)


# The fields that decisions read of an object. Most of the dozens of updates that a migration makes change none.


def read_of_migration(migration: VirtualMachineInstanceMigration) -> object:
    """Returns the fields that affect a quota. Phases after the target pods exist are equivalent."""
    phase = stage_of(migration), may_attach(migration), migration.phase == constants.PHASE_PENDING
    ends = [t for t in migration.status.phase_transition_timestamps or () if t.phase in constants.FINAL_PHASES]
    state = migration_state_fields(migration.status.migration_state)
    return _read_of_metadata(migration), migration.spec, phase, state, ends


def read_of_pod(pod: Pod) -> object:
    status = pod.status
    containers = *(status.container_statuses or ()), *(status.init_container_statuses or ())
    in_force = [container for container in containers if container.resources or container.allocated_resources]
    labels = pod.labels.get(constants.LABEL_APP), migration_of(pod)
    read_status = pod.terminal, status.conditions, status.qos_class, in_force
    return _read_of_metadata(pod), labels, pod.spec, read_status


def read_of_vmi(vmi: VirtualMachineInstance) -> object:
    status = trusted_status(vmi)
    lives = status.phase, status.node_name, migration_state_fields(status.migration_state)
    volumes = state_claim_of(vmi), status.changed_block_tracking, status.migrated_volumes
    return _read_of_metadata(vmi), lives, volumes, rendered_from(vmi)


def _read_of_metadata(obj: Object) -> object:
    meta = obj.metadata
    return meta.uid, meta.deletion_timestamp, meta.deletion_grace_period_seconds, meta.owner_references
