"""Gathers from the caches what a decision about a ResourceQuota looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cachetools import LRUCache

from pkg.api.core import LimitRange, Namespace, Pod, ResourceQuota
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import RawResourceList
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.generic.cache_reader import CacheReader
from pkg.generic.factory import Management
from pkg.util import constants
from pkg.util.memory_overhead import OverheadProfile, harvester_delta
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.installation import harvester_ratio, rendering
from pkg.util.resourcequota.model import Estimate, Memory, Observed, Rendering


@dataclass(frozen=True, slots=True)
class Caches:
    """What is read; every controller that decides reads the same."""

    namespaces: CacheReader[Namespace]
    migrations: CacheReader[VirtualMachineInstanceMigration]
    instances: CacheReader[VirtualMachineInstance]
    pods: CacheReader[Pod]
    limit_ranges: CacheReader[LimitRange]
    kubevirts: CacheReader[KubeVirt]
    settings: CacheReader[Setting]
    budgets: CacheReader[VirtualMachineMigrationResourceQuota] | None = None
    """Whose namespaces are managed tenant quota's."""

    @classmethod
    def of(cls, management: Management) -> Caches:
        """The caches of a process."""
        return cls(
            namespaces=management.namespaces.cache(),
            migrations=management.virtual_machine_instance_migrations.cache(),
            instances=management.virtual_machine_instances.cache(),
            pods=management.pods.cache(),
            limit_ranges=management.limit_ranges.cache(),
            kubevirts=management.kubevirts.cache(),
            settings=management.settings.cache(),
            budgets=management.virtual_machine_migration_resource_quotas.cache(),
        )

    def has_budget(self, namespace: str) -> bool:
        """Whether the annotation strategy stands back there."""
        return self.budgets is not None and bool(self.budgets.list(namespace))


class Observer:
    """Reads caches only: a decision costs no request. `profile` overrides the KubeVirt CR's version."""

    def __init__(self, caches: Caches, profile: OverheadProfile | None = None) -> None:
        self._caches = caches
        self._profile = profile
        self._renderings: LRUCache[str, tuple[object, Rendering]] = LRUCache(maxsize=4096)

    def observe(self, quota: ResourceQuota, now: float, memory: Memory) -> Observed:
        """The state of the quota's namespace; `now` in seconds since the epoch."""
        caches = self._caches
        namespace = caches.namespaces.get("", quota.namespace)
        annotations = namespace.annotations if namespace else {}
        setting = caches.settings.get("", constants.SETTING_OVERHEAD_RATIO)
        return Observed(
            quota=quota,
            limits=annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, ""),
            migrations=caches.migrations.list(quota.namespace),
            instances={vmi.name: vmi for vmi in caches.instances.list(quota.namespace)},
            estimate=harvester_estimate(harvester_ratio(setting)),
            now=now,
            memory=memory,
            pods=caches.pods.list(quota.namespace),
            rendering=self._rendering(quota.namespace, setting, namespace.labels if namespace else {}),
            max_extra=annotations.get(constants.ANNOTATION_MAX_EXTRA, ""),
            mtq=caches.has_budget(quota.namespace),
        )

    def _rendering(self, namespace: str, setting: Setting | None, labels: Mapping[str, str]) -> Rendering:
        """The same object as long as nothing it is made of changes: what depends on it is cached by it."""
        kubevirts = self._caches.kubevirts.list()
        limit_ranges = self._caches.limit_ranges.list(namespace)
        versions: list[object] = [
            (obj.uid, obj.metadata.resource_version)
            for obj in (*kubevirts, *limit_ranges, *filter(None, [setting]))
        ]
        versions.append(labels.get(constants.LABEL_AUTO_MEMORY_LIMITS_RATIO))
        known = self._renderings.get(namespace)
        if known is None or known[0] != versions:
            known = (versions, rendering(kubevirts, setting, limit_ranges, self._profile, labels))
            self._renderings[namespace] = known
        return known[1]


def harvester_estimate(ratio: str) -> Estimate:
    """Harvester's own formula at an overhead ratio."""

    def estimate(vmi: VirtualMachineInstance, hard: RawResourceList) -> Mapping[str, Quantity] | None:
        return harvester_delta(vmi.spec, hard, ratio=ratio, arch=vmi.spec.architecture or "amd64")

    return estimate
