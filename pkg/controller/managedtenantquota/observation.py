"""Gathers what a decision about a namespace with a budget looks at: from the caches, and from the API server itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Lease, ResourceQuota
from kubeloop.api.meta import ObjectMeta
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.controllers.cache_reader import CacheReader
from pkg.controller.managedtenantquota.identity import CannotLock, LockMaker
from pkg.controller.managedtenantquota.writer import Clients
from pkg.util.constants import UPSTREAM_LEASE
from pkg.util.managedtenantquota.lock import Lock, lock_name, moment, recognise
from pkg.util.managedtenantquota.missing_targets import with_running
from pkg.util.managedtenantquota.model import Observed, Timers
from pkg.util.managedtenantquota.record import record_of
from pkg.util.resourcequota.observe import Observer as FactsObserver

LOCKS_BY_NAMESPACE = "locked namespace"
"""Locks by the namespace that they lock."""


@dataclass(eq=False)
class Observer:
    """`cached` costs no request and suggests; `live` costs six and decides."""

    facts: FactsObserver
    clients: Clients
    locks: CacheReader[ValidatingWebhookConfiguration]
    """Indexed by LOCKS_BY_NAMESPACE."""
    maker: LockMaker

    def concerns_us(self, namespace: str) -> bool:
        """Whether there is a budget, a lock or a quota that records how it was: most namespaces have none."""
        locked = self.locks.by_index(LOCKS_BY_NAMESPACE, namespace)
        if locked or self.facts.source.budgets.list(namespace):
            return True
        return any(map(record_of, self.facts.source.quotas.list(namespace)))

    def cached(self, namespace: str, now: float, timers: Timers) -> Observed:
        """By the source. How a lock shall look is not looked at."""
        facts = self.facts.observe(ResourceQuota(metadata=ObjectMeta(namespace=namespace)), now)
        return Observed(
            namespace=namespace,
            exists=self._exists(namespace),
            budgets=self.facts.source.budgets.list(namespace),
            lock=self._cached_lock(namespace),
            quotas=self.facts.source.quotas.list(namespace),
            facts=with_running(facts, self.facts.source),
            now=now,
            timers=timers,
        )

    async def live(self, namespace: str, now: float, timers: Timers) -> Observed:
        """Budgets, quotas and lock as the API server has them now. Raises ApiError.

        The budgets are read first: a status that holds nothing then means that the quotas, read after it, are as they
        were. The save is bound to the version of that status.
        """
        observed = self.cached(namespace, now, timers)
        budgets, lock, wanted, upstream = await asyncio.gather(
            list_installed(self.clients.budgets, namespace),
            self._live_lock(namespace, observed.lock),
            self._wanted(namespace),
            self._upstream(now),
        )
        quotas = await self.clients.quotas.list(namespace)
        observed = replace(observed, budgets=budgets, quotas=quotas, lock=None)
        if isinstance(lock, CannotLock):
            return replace(observed, why_not=str(lock))
        if isinstance(upstream, CannotLock):
            return replace(observed, lock=lock, why_not=str(upstream))
        observed = replace(observed, lock=lock, upstream=upstream)
        if isinstance(wanted, CannotLock):
            return replace(observed, why_not=str(wanted))
        return replace(observed, wanted_lock=wanted)

    def _exists(self, namespace: str) -> bool:
        found = self.facts.source.namespaces.get(name=namespace)
        return found is not None and not found.deleting

    def _cached_lock(self, namespace: str) -> Lock | None:
        found = self.locks.by_index(LOCKS_BY_NAMESPACE, namespace)
        return recognise(min(found, key=lambda lock: lock.name)) if found else None

    async def _live_lock(self, namespace: str, cached: Lock | None) -> Lock | CannotLock | None:
        """The lock under our name for it, or under the name that the cache knows (another installation's)."""
        names = [lock_name(namespace)]
        if cached is not None and cached.name not in names:
            names.insert(0, cached.name)
        for name in names:
            try:
                found = await self.clients.locks.get(name=name)
            except NotFound:
                continue
            lock = recognise(found)
            if lock is None or lock.namespace != namespace:
                return CannotLock(
                    f"there is a ValidatingWebhookConfiguration {name} that is not a lock of this namespace"
                )
            return lock
        return None

    async def _upstream(self, now: float) -> str | CannotLock:
        """Who holds the Lease of KubeVirt's managed-tenant-quota controller, wherever that is installed."""
        try:
            selector = f"metadata.name={UPSTREAM_LEASE}"
            found = await self.clients.leases.list(field_selector=selector)
        except (NotFound, Forbidden):
            return ""
        except ApiError as exc:
            return CannotLock(f"the API server does not say whether KubeVirt's own controller runs: {exc}")
        held = [lease for lease in found if _is_held(lease, now)]
        return f"KubeVirt's managed-tenant-quota controller runs, it holds Lease {held[0].key}" if held else ""

    async def _wanted(self, namespace: str) -> dict[str, object] | CannotLock:
        """What only a lock needs is no reason not to restore, whatever the API server answers to it."""
        try:
            return await self.maker.webhook(namespace)
        except CannotLock as reason:
            return reason
        except ApiError as exc:
            return CannotLock(f"the API server does not say whether it reaches headroom's webhook: {exc}")


def _is_held(lease: Lease, now: float) -> bool:
    """Whether its holder has renewed it in time; `now` in seconds since the epoch."""
    spec = lease.spec
    return bool(spec.holder_identity) and moment(spec.renew_time) + (spec.lease_duration_seconds or 0) > now
