"""Gathers from the caches what a decision about a ResourceQuota looks at."""

from __future__ import annotations

from collections.abc import Mapping

from pkg.api.core import Namespace, ResourceQuota
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import RawResourceList
from pkg.generic.cache_reader import CacheReader
from pkg.util import constants
from pkg.util.memory_overhead import harvester_delta, normalize_ratio
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.planner import Estimate, Memory, Observed


class Observer:
    """Reads caches only: a decision costs no request."""

    def __init__(
        self,
        namespaces: CacheReader[Namespace],
        migrations: CacheReader[VirtualMachineInstanceMigration],
        instances: CacheReader[VirtualMachineInstance],
        settings: CacheReader[Setting],
    ) -> None:
        self._namespaces = namespaces
        self._migrations = migrations
        self._instances = instances
        self._settings = settings

    def observe(self, quota: ResourceQuota, now: float, memory: Memory) -> Observed:
        """The state of the quota's namespace; `now` in seconds on the clock that `memory` was made with."""
        namespace = self._namespaces.get("", quota.namespace)
        migrations = self._migrations.list(quota.namespace)
        names = {migration.spec.vmi_name for migration in migrations}
        found = {name: self._instances.get(quota.namespace, name) for name in names}
        return Observed(
            quota=quota,
            limits=namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
            if namespace
            else "",
            migrations=migrations,
            instances={name: vmi for name, vmi in found.items() if vmi is not None},
            estimate=self._estimate(),
            now=now,
            memory=memory,
        )

    def _estimate(self) -> Estimate:
        """Harvester's own formula at today's overhead ratio."""
        setting = self._settings.get("", constants.SETTING_OVERHEAD_RATIO)
        ratio = (
            normalize_ratio(setting.value, setting.default) if setting else constants.DEFAULT_OVERHEAD_RATIO
        )

        def estimate(vmi: VirtualMachineInstance, hard: RawResourceList) -> Mapping[str, Quantity] | None:
            return harvester_delta(vmi.spec, hard, ratio=ratio, arch=vmi.spec.architecture or "amd64")

        return estimate
