"""Gathers what a decision about a namespace with a budget looks at: from the caches, and from the API server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Lease, ResourceQuota
from kubeloop.api.meta import ObjectMeta
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.controllers.cache_reader import CacheReader
from pkg.controller.managedtenantquota.lock_maker import CannotLock, LockMaker
from pkg.controller.managedtenantquota.writer import Clients
from pkg.util.constants import UPSTREAM_LEASE
from pkg.util.managedtenantquota.lock import Lock, lock_name, moment, recognise
from pkg.util.managedtenantquota.missing_targets import with_running
from pkg.util.managedtenantquota.model import Observed, Timers
from pkg.util.managedtenantquota.record import record_of
from pkg.util.resourcequota.observe import Observer as FactsObserver

T = TypeVar("T")


@dataclass(eq=False)
class Observer:
    """`cached` costs no request and suggests; `live` costs six and decides."""

    facts: FactsObserver
    clients: Clients
    locks: CacheReader[ValidatingWebhookConfiguration]
    maker: LockMaker

    def concerns_us(self, namespace: str) -> bool:
        """Whether there is a budget, a lock or a quota that records how it was: most namespaces have none."""
        if self._lock(namespace) or self.facts.source.budgets.list(namespace):
            return True
        return any(map(record_of, self.facts.source.quotas.list(namespace)))

    def cached(self, namespace: str, now: float, timers: Timers) -> Observed:
        """By the source. How a lock shall look is not looked at."""
        source, found = self.facts.source, self.facts.source.namespaces.get(name=namespace)
        facts = self.facts.observe(ResourceQuota(metadata=ObjectMeta(namespace=namespace)), now)
        return Observed(
            namespace=namespace,
            exists=found is not None and not found.deleting,
            budgets=source.budgets.list(namespace),
            lock=self._lock(namespace),
            quotas=source.quotas.list(namespace),
            facts=with_running(facts, source),
            now=now,
            timers=timers,
        )

    async def live(self, namespace: str, now: float, timers: Timers) -> Observed:
        """Budgets, quotas and lock as the API server has them now. Raises ApiError.

        The budgets are read first: a status that holds nothing then means that the quotas, read after it, are as they
        were. The save is bound to the version of that status.
        """
        budgets, (lock, no_lock), (upstream, unknown), ((wanted, holder), not_served) = await asyncio.gather(
            list_installed(self.clients.budgets, namespace),
            _or_why(self._live_lock(namespace), None),
            _or_why(self._upstream(now), ""),
            _or_why(self.maker.webhook(namespace), (None, "")),
        )
        return replace(
            self.cached(namespace, now, timers),
            budgets=budgets,
            quotas=await self.clients.quotas.list(namespace),
            lock=lock,
            upstream=upstream,
            wanted_lock=wanted,
            holder=holder,
            why_not=no_lock or unknown or not_served,
        )

    def _lock(self, namespace: str) -> Lock | None:
        return recognise(self.locks.get(name=lock_name(namespace)))

    async def _live_lock(self, namespace: str) -> Lock | None:
        try:
            found = await self.clients.locks.get(name=lock_name(namespace))
        except NotFound:
            return None
        if (lock := recognise(found)) is None:
            raise CannotLock(f"there is a ValidatingWebhookConfiguration {found.name} that is not a lock")
        return lock

    async def _upstream(self, now: float) -> str:
        """Who holds the Lease of KubeVirt's managed-tenant-quota controller, wherever that is installed."""
        try:
            found = await self.clients.leases.list(field_selector=f"metadata.name={UPSTREAM_LEASE}")
        except (NotFound, Forbidden):
            return ""
        except ApiError as exc:
            raise CannotLock(f"the API server does not say whether KubeVirt's own controller runs: {exc}") from exc
        held = [lease for lease in found if _is_held(lease, now)]
        return f"KubeVirt's managed-tenant-quota controller runs, it holds Lease {held[0].key}" if held else ""


async def _or_why(read: Awaitable[T], default: T) -> tuple[T, str]:
    """What was read. What only a lock needs is no reason not to restore: the default, and why."""
    try:
        return await read, ""
    except CannotLock as reason:
        return default, str(reason)


def _is_held(lease: Lease, now: float) -> bool:
    """Whether its holder has renewed it in time; `now` in seconds since the epoch."""
    spec = lease.spec
    return bool(spec.holder_identity) and moment(spec.renew_time) + (spec.lease_duration_seconds or 0) > now
