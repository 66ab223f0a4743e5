"""Does one write of the sequence, and returns the observation after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Lease, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import LEASES, RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, VirtualMachineMigrationResourceQuota
from pkg.config.configuration_writes import written
from pkg.controller.managedtenantquota.identity import LockMaker
from pkg.util.constants import (
    ANNOTATION_HOLDER,
    ANNOTATION_ORIGINALS,
    EVENT_LOCKED,
    EVENT_RELEASED,
    EVENT_UNLOCKED,
    LOCK_LABELS,
)
from pkg.util.managedtenantquota.lock import Lock, lock_body, recognise
from pkg.util.managedtenantquota.model import Observed
from pkg.util.managedtenantquota.record import members_of
from pkg.util.managedtenantquota.sequence import Clear, MakeLock, Raise, Restore, Save, Unlock, UpdateLock, Write
from pkg.util.metrics import METRICS
from pkg.util.quantity import Quantity
from pkg.util.resource_list import parse_resource_list

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

_LOCK_SECONDS = METRICS["headroom_mtq_lock_seconds"].histogram(
    (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
)
_RELEASED = METRICS["headroom_mtq_quota_released_total"].counter()
_WRITES = METRICS["headroom_mtq_writes_total"].counter()

_NANO = 1e-9
_AGAIN = 0.05
"""Seconds until the cache, or the next live look, shows what another client wrote first."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Live access to budgets, quotas and locks."""

    budgets: ResourceClient[VirtualMachineMigrationResourceQuota]
    quotas: ResourceClient[ResourceQuota]
    locks: ResourceClient[ValidatingWebhookConfiguration]
    leases: ResourceClient[Lease]

    @classmethod
    def of(cls, client: Client) -> Clients:
        return cls(
            budgets=client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS),
            quotas=client.resource(RESOURCE_QUOTAS),
            locks=client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS),
            leases=client.resource(LEASES),
        )

    async def unlock(self, lock: Lock) -> None:
        """Delete a lock. With finalizers of any owner it would go on refusing pods. Raises NotFound, ApiError."""
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
    locks: LockMaker | None
    """None: none will be made."""
    events: EventRecorder

    async def do(self, step: Write, observed: Observed, now: float) -> Observed:
        """The observation as it is after the write."""
        _WRITES.labels(type(step).__name__).inc()
        match step:
            case MakeLock():
                return await self._lock(step, observed, now)
            case UpdateLock():
                return await self._update(step, observed)
            case Save() | Clear():
                return await self._status(step, observed)
            case Raise():
                return await self._raise(step, observed)
            case Restore():
                return await self._quota(step, observed)
            case Unlock():
                return await self._unlock(step, observed, now)

    async def _lock(self, step: MakeLock, observed: Observed, now: float) -> Observed:
        assert self.locks is not None
        holder = await self.locks.holder()
        body = lock_body(
            observed.namespace, step.webhook, now=now, holder=holder, reason=step.reason, longest=step.longest
        )
        try:
            made = await self.clients.locks.create(body)
        except AlreadyExists as exc:
            raise RetryAfter(_AGAIN, "the lock exists already") from exc
        written(VALIDATING_WEBHOOK_CONFIGURATIONS, made.name, "created")
        log.info("%s: locked for %s", observed.namespace, step.reason)
        self._tell(observed, EVENT_LOCKED, f"locked for the migration of {step.reason}")
        return replace(observed, lock=recognise(made))

    async def _update(self, step: UpdateLock, observed: Observed) -> Observed:
        assert self.locks is not None
        patch: dict[str, Any] = {
            "metadata": {
                "resourceVersion": step.lock.resource_version,
                "labels": LOCK_LABELS,
                "annotations": {ANNOTATION_HOLDER: await self.locks.holder()},
            },
            "webhooks": [step.webhook],
        }
        updated = await self.clients.locks.merge_patch(patch, name=step.lock.name)
        written(VALIDATING_WEBHOOK_CONFIGURATIONS, step.lock.name, "updated")
        return replace(observed, lock=recognise(updated))

    async def _status(self, step: Save | Clear, observed: Observed) -> Observed:
        budget = step.budget
        written = await self.clients.budgets.merge_patch(
            step.patch, name=budget.name, namespace=budget.namespace, subresource="status"
        )
        log.debug("%s: %s %s", observed.namespace, type(step).__name__.lower(), budget.name)
        return replace(observed, budgets=_with(observed.budgets, written))

    async def _raise(self, step: Raise, observed: Observed) -> Observed:
        after = await self._quota(step, observed)
        quota = step.quota
        _count_released(parse_resource_list(quota.hard), parse_resource_list(step.hard))
        text = ", ".join(f"{name} {quota.hard.get(name)} -> {to}" for name, to in step.hard.items())
        message = f"resource quota {quota.name} raised until the target pods exist: {text}"
        self._tell(observed, EVENT_RELEASED, message)
        for migration in _sharing(observed, quota.name):
            self.events.event(migration, "Normal", EVENT_RELEASED, message)
        return after

    async def _quota(self, step: Raise | Restore, observed: Observed) -> Observed:
        quota = step.quota
        record = step.record.text(quota.name) if step.record else None
        patch = {
            "metadata": {
                "resourceVersion": quota.metadata.resource_version,
                "annotations": {ANNOTATION_ORIGINALS: record},
            },
            "spec": {"hard": dict(step.hard)},
        }
        try:
            written = await self.clients.quotas.merge_patch(patch, name=quota.name, namespace=quota.namespace)
        except NotFound:  # deleted meanwhile: nothing to raise, nothing to restore
            left = [other for other in observed.quotas if other.name != quota.name]
            return replace(observed, quotas=left)
        changes = ", ".join(f"{name} {quota.hard.get(name)} -> {to}" for name, to in step.hard.items())
        log.info("%s: %s %s: %s", observed.namespace, type(step).__name__.lower(), quota.name, changes)
        return replace(observed, quotas=_with(observed.quotas, written))

    async def _unlock(self, step: Unlock, observed: Observed, now: float) -> Observed:
        lock = step.lock
        try:
            await self.clients.unlock(lock)
        except NotFound:
            return replace(observed, lock=None)
        seconds = max(0.0, now - lock.seen)
        _LOCK_SECONDS.observe(seconds)
        log.info("%s: unlocked after %.2f s", observed.namespace, seconds)
        still = f"the resource quotas are still to be restored: {', '.join(step.raised)}"
        self._tell(
            observed, EVENT_UNLOCKED, f"unlocked, {still if step.raised else 'the resource quotas are as before'}"
        )
        return replace(observed, lock=None)

    def _tell(self, observed: Observed, reason: str, message: str) -> None:
        for budget in observed.budgets:
            self.events.event(budget, "Normal", reason, message)


def _sharing(observed: Observed, quota: str) -> list[VirtualMachineInstanceMigration]:
    """The migrations of the window that the quota blocks."""
    members = {name for b in observed.budgets for name, q in members_of(b).items() if quota in q}
    return [migration for migration in observed.facts.migrations if migration.name in members]


def _with(objects: Sequence[T], written: T) -> list[T]:
    return [written if obj.key == written.key else obj for obj in objects]


def _count_released(before: Mapping[str, Quantity], after: Mapping[str, Quantity]) -> None:
    """Count what was added to a quota."""
    for name, limit in after.items():
        if name in before and limit > before[name]:
            _RELEASED.labels(name).inc((limit - before[name]).nanos * _NANO)
