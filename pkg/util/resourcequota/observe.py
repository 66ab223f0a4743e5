"""The one way to gather what a decision about a ResourceQuota looks at: from caches, from lists, or from both. Pure."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kubeloop.api.core import LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota
from kubeloop.api.meta import Object
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.profiles import Profile
from pkg.util.kubevirt.rendering import Rendering, limited_by, rendering
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.resourcequota.base import counts_of_claims
from pkg.util.resourcequota.facts import Cache, Facts
from pkg.util.resourcequota.managed import annotation_of, switched_off
from pkg.util.resourcequota.timers import Timers

T = TypeVar("T", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)


class Reader(Protocol[T_co]):
    """The objects of one kind: a cache (kubeloop.controllers.CacheReader) or `Listed`."""

    def get(self, *, name: str, namespace: str = "") -> T_co | None:
        """The object; None: there is none. No namespace for cluster-scoped kinds."""
        ...

    def list(self, namespace: str = "") -> Sequence[T_co]:
        """All objects, or those of one namespace."""
        ...


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
    """A Reader a kind. A kind that is not given has no objects."""

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
    budgets: Reader[VirtualMachineMigrationResourceQuota] = Listed()
    """A namespace with one is managed tenant quota's."""
    kubernetes: Callable[[], Releases] = lambda: NEWEST
    """The releases by which the API servers count."""

    def rendering(self, namespace: str, profile: Profile | None = None) -> Rendering:
        """How launcher pods are rendered there; `profile` overrides the KubeVirt object's version."""
        found = self.namespaces.get(name=namespace)
        return rendering(
            self.kubevirts.list(),
            self.settings.get(name=constants.SETTING_OVERHEAD_RATIO),
            self.limit_ranges.list(namespace),
            profile,
            found.labels if found else {},
            self.quota_limits(namespace),
            self.kubernetes(),
        )

    def quota_limits(self, namespace: str) -> frozenset[str]:
        """What ("cpu", "memory") the namespace's quotas limit."""
        return limited_by(name for quota in self.quotas.list(namespace) for name in quota.hard)


class Observer:
    """Over caches a decision costs no request. `profile` overrides the KubeVirt object's version."""

    def __init__(self, source: Source, profile: Profile | None = None) -> None:
        self.source = source
        self._profile = profile
        self._cache = Cache()

    def observe(
        self, quota: ResourceQuota, now: float, timers: Timers | None = None, *, source: Source | None = None
    ) -> Facts:
        """The state of the quota's namespace, as `source` has it if given; `now` in seconds since the epoch."""
        source, name = source or self.source, quota.namespace
        namespace = source.namespaces.get(name=name) or Namespace()
        counted = any(counts_of_claims(each) for one in (quota, *source.quotas.list(name)) for each in one.hard)
        claims = {claim.name: claim for claim in source.claims.list(name)} if counted else None
        return Facts(
            quota=quota,
            limits=annotation_of(namespace),
            migrations=source.migrations.list(name),
            instances={vmi.name: vmi for vmi in source.instances.list(name)},
            now=now,
            timers=timers or Timers(),
            pods=source.pods.list(name),
            claims=claims,
            machines={vm.name: vm for vm in source.machines.list(name)} if counted else {},
            storage_migration=namespace.annotations.get(constants.ANNOTATION_STORAGE_MIGRATION) == constants.TRUE,
            rendering=self._rendering(source, name, namespace),
            max_extra=namespace.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""),
            mtq=bool(source.budgets.list(name)),
            namespace_off=switched_off(namespace),
            cache=self._cache,
        )

    def _rendering(self, source: Source, name: str, namespace: Namespace) -> Rendering:
        """The same object as long as nothing it is made of changes: what depends on it is cached by it."""
        setting = source.settings.get(name=constants.SETTING_OVERHEAD_RATIO)
        objects = (*source.kubevirts.list(), *source.limit_ranges.list(name), setting)
        made_of = (*objects, namespace.labels, source.quota_limits(name), source.kubernetes())
        return self._cache.made(("rendering", name), made_of, lambda: source.rendering(name, self._profile))
