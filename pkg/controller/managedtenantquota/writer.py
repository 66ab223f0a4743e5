"""Does one write of the sequence, and returns the observation after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import LEASES, RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.controllers.events import EventRecorder
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, VirtualMachineMigrationResourceQuota
from pkg.config.configuration_writes import written
from pkg.util.constants import EVENT_LOCKED, EVENT_RELEASED, EVENT_UNLOCKED
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed
from pkg.util.managedtenantquota.sequence import Write
from pkg.util.metrics import METRICS
from pkg.util.resource_list import parse_resource_list

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

_LOCK_SECONDS = METRICS["headroom_mtq_lock_seconds"].histogram(
    (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
)
_RELEASED = METRICS["headroom_mtq_quota_released_total"].counter()
_WRITES = METRICS["headroom_mtq_writes_total"].counter()

_NANO = 1e-9
_EVENTS = {"MakeLock": EVENT_LOCKED, "Raise": EVENT_RELEASED, "Unlock": EVENT_UNLOCKED}
"""By the name of a write; the others are only logged."""


class Clients:
    """Live access to budgets, quotas and locks."""

    def __init__(self, client: Client) -> None:
        self.budgets = client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
        self.quotas = client.resource(RESOURCE_QUOTAS)
        self.locks = client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.leases = client.resource(LEASES)

    async def unlock(self, lock: Lock) -> None:
        """Delete a lock. With finalizers of any owner it would go on refusing pods. Raises ApiError."""
        with suppress(NotFound):
            if lock.finalizers:
                patch = {"metadata": {"uid": lock.uid, "finalizers": None}}
                await self.locks.merge_patch(patch, name=lock.name)
                written(VALIDATING_WEBHOOK_CONFIGURATIONS, lock.name, "updated")
            await self.locks.delete(name=lock.name, uid=lock.uid)
            written(VALIDATING_WEBHOOK_CONFIGURATIONS, lock.name, "removed")


@dataclass(eq=False)
class Writer:
    """Raises ApiError; Conflict when the observed objects have changed since."""

    clients: Clients
    events: EventRecorder

    async def do(self, step: Write, observed: Observed) -> Observed:
        """The observation as it is after the write."""
        _WRITES.labels(step.name).inc()
        match step.what:
            case ResourceQuota() as quota:
                after = await self._quota(quota, step, observed)
            case VirtualMachineMigrationResourceQuota() as budget:
                new = await self.clients.budgets.merge_patch(
                    step.body, name=budget.name, namespace=budget.namespace, subresource="status"
                )
                after = replace(observed, budgets=_with(observed.budgets, new))
            case standing:
                after = await self._lock(standing, step, observed)
        log.info("%s: %s", observed.namespace, step.text)
        if step.name in _EVENTS:
            for obj in (*observed.budgets, *step.about):
                self.events.event(obj, "Normal", _EVENTS[step.name], step.text)
        return after

    async def _quota(self, quota: ResourceQuota, step: Write, observed: Observed) -> Observed:
        body = step.body
        try:
            new = await self.clients.quotas.merge_patch(body, name=quota.name, namespace=quota.namespace)
        except NotFound:  # deleted meanwhile: nothing to raise, nothing to restore
            return replace(observed, quotas=[other for other in observed.quotas if other.name != quota.name])
        if step.name == "Raise":
            before, after = parse_resource_list(quota.hard), parse_resource_list(body["spec"]["hard"])
            for name, limit in after.items():
                _RELEASED.labels(name).inc((limit - before[name]).nanos * _NANO)
        return replace(observed, quotas=_with(observed.quotas, new))

    async def _lock(self, lock: Lock | None, step: Write, observed: Observed) -> Observed:
        if lock is not None and not step.body:
            await self.clients.unlock(lock)
            _LOCK_SECONDS.observe(max(0.0, observed.now - lock.seen))
            return replace(observed, lock=None)
        if lock is None:
            made = await self.clients.locks.create(step.body)
            written(VALIDATING_WEBHOOK_CONFIGURATIONS, made.name, "created")
        else:
            made = await self.clients.locks.merge_patch(step.body, name=lock.name)
            written(VALIDATING_WEBHOOK_CONFIGURATIONS, made.name, "updated")
        return replace(observed, lock=recognise(made))


def _with(objects: Sequence[T], new: T) -> list[T]:
    return [new if obj.key == new.key else obj for obj in objects]
