"""Gathers what a decision about a namespace with a budget looks at: from the caches, and from the API server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.client.errors import NotFound
from pkg.controller.indexes import PODS_BY_MIGRATION
from pkg.controller.managedtenantquota.clients import Clients
from pkg.controller.managedtenantquota.identity import CannotLock, LockMaker
from pkg.controller.resourcequota.observation import Caches
from pkg.generic.cache_reader import CacheReader
from pkg.util import constants
from pkg.util.managedtenantquota.lock import Lock, lock_name, locked_namespace, recognise
from pkg.util.managedtenantquota.model import Memory, Observed, Surroundings
from pkg.util.managedtenantquota.target import running_sources
from pkg.util.memory_overhead import OverheadProfile
from pkg.util.resourcequota.demand import is_finished
from pkg.util.resourcequota.installation import rendering

LOCKS_BY_NAMESPACE = "locked namespace"


@dataclass(frozen=True, slots=True)
class Kinds:
    """What is looked at of a namespace itself, in caches and live."""

    clients: Clients
    budgets: CacheReader[VirtualMachineMigrationResourceQuota]
    quotas: CacheReader[ResourceQuota]
    locks: CacheReader[ValidatingWebhookConfiguration]

    def index(self) -> None:
        """Make locks findable by the namespace that they record; once."""
        self.locks.add_indexer(LOCKS_BY_NAMESPACE, lambda lock: [locked_namespace(lock)])


class Observer:
    """`cached` costs no request and suggests; `live` costs four and decides."""

    def __init__(
        self, caches: Caches, kinds: Kinds, locks: LockMaker, profile: OverheadProfile | None = None
    ) -> None:
        self._caches = caches
        self._kinds = kinds
        self._locks = locks
        self._profile = profile

    def concerns_us(self, namespace: str) -> bool:
        """Whether there is a budget or a lock at all: most namespaces have neither."""
        kinds = self._kinds
        return bool(kinds.budgets.list(namespace) or kinds.locks.by_index(LOCKS_BY_NAMESPACE, namespace))

    def cached(self, namespace: str, now: float, memory: Memory) -> Observed:
        """By the caches. How a lock shall look is not looked at."""
        kinds = self._kinds
        return Observed(
            namespace=namespace,
            exists=self._exists(namespace),
            budgets=kinds.budgets.list(namespace),
            lock=self._cached_lock(namespace),
            quotas=kinds.quotas.list(namespace),
            surroundings=self._surroundings(namespace),
            now=now,
            memory=memory,
        )

    async def live(self, namespace: str, now: float, memory: Memory) -> Observed:
        """Budgets, quotas and lock as the API server has them now. Raises ApiError.

        The budgets are read first: a status that holds nothing then means that the quotas, read after it, are as they
        were. The save is bound to the version of that status.
        """
        observed = self.cached(namespace, now, memory)
        budgets, lock, wanted = await asyncio.gather(
            self._live_budgets(namespace), self._live_lock(namespace, observed.lock), self._wanted(namespace)
        )
        observed = replace(observed, budgets=budgets, quotas=await self._live_quotas(namespace))
        if isinstance(lock, CannotLock):
            return replace(observed, lock=None, can_lock=False, why_not=str(lock))
        if isinstance(wanted, CannotLock):
            return replace(observed, lock=lock, can_lock=False, why_not=str(wanted))
        return replace(observed, lock=lock, wanted_lock=wanted)

    def _exists(self, namespace: str) -> bool:
        found = self._caches.namespaces.get("", namespace)
        return found is not None and not found.deleting

    def _cached_lock(self, namespace: str) -> Lock | None:
        found = self._kinds.locks.by_index(LOCKS_BY_NAMESPACE, namespace)
        return recognise(min(found, key=lambda lock: lock.name)) if found else None

    async def _live_budgets(self, namespace: str) -> list[VirtualMachineMigrationResourceQuota]:
        try:
            return (await self._kinds.clients.budgets.list(namespace))[0]
        except NotFound:  # the kind is not installed any more
            return []

    async def _live_quotas(self, namespace: str) -> list[ResourceQuota]:
        return (await self._kinds.clients.quotas.list(namespace))[0]

    async def _live_lock(self, namespace: str, cached: Lock | None) -> Lock | CannotLock | None:
        """The lock under our name for it, or under the name that the cache knows (another installation's)."""
        names = [lock_name(namespace)]
        if cached is not None and cached.name not in names:
            names.insert(0, cached.name)
        for name in names:
            try:
                found = await self._kinds.clients.locks.get(name)
            except NotFound:
                continue
            lock = recognise(found)
            if lock is None or lock.namespace != namespace:
                return CannotLock(
                    f"there is a ValidatingWebhookConfiguration {name} that is no lock of this namespace"
                )
            return lock
        return None

    async def _wanted(self, namespace: str) -> dict[str, object] | CannotLock:
        try:
            return await self._locks.webhook(namespace)
        except CannotLock as reason:
            return reason

    def _surroundings(self, namespace: str) -> Surroundings:
        caches = self._caches
        migrations = caches.migrations.list(namespace)
        pending = any(migration.phase == constants.PHASE_PENDING for migration in migrations)
        setting = caches.settings.get("", constants.SETTING_OVERHEAD_RATIO)
        limit_ranges = caches.limit_ranges.list(namespace)
        in_cache = caches.namespaces.get("", namespace)
        labels = in_cache.labels if in_cache else {}
        return Surroundings(
            migrations=migrations,
            instances={vmi.name: vmi for vmi in caches.instances.list(namespace)},
            pods=caches.pods.list(namespace) if pending else (),
            rendering=rendering(caches.kubevirts.list(), setting, limit_ranges, self._profile, labels),
            running=self._running() if pending else (),
        )

    def _running(self) -> Sequence[Collection[str]]:
        caches = self._caches
        migrations = [each for each in caches.migrations.list() if not is_finished(each)]
        instances: dict[str, VirtualMachineInstance] = {}
        with_target: set[str] = set()
        for migration in migrations:
            vmi = caches.instances.get(migration.namespace, migration.spec.vmi_name)
            if vmi is not None:
                instances[vmi.key] = vmi
            if caches.pods.by_index(PODS_BY_MIGRATION, f"{migration.namespace}/{migration.uid}"):
                with_target.add(migration.uid)
        return running_sources(migrations, instances, with_target)
