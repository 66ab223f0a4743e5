"""Does one write of the sequence, and returns the observation after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.controllers.events import EventRecorder
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, VirtualMachineMigrationResourceQuota
from pkg.config.metrics import METRICS, configuration_written
from pkg.config.rancher_quotas import RancherWrites
from pkg.util.constants import EVENT_LOCKED, EVENT_RAISED, EVENT_UNLOCKED
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed
from pkg.util.managedtenantquota.sequence import Write

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

_LOCK_SECONDS = METRICS["headroom_mtq_lock_seconds"].histogram(
    (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
)
_RELEASED = METRICS["headroom_mtq_quota_released_total"].counter()
_WRITES = METRICS["headroom_mtq_writes_total"].counter()

_NANO = 1e-9
_OF_BUDGETS = {"MakeLock": EVENT_LOCKED, "Unlock": EVENT_UNLOCKED}
"""By the name of a write, what is recorded about the budgets. Of each window the same, so that Kubernetes counts it in
one event; what is raised for whom is told the migrations."""
_LOCKED = "locked until the target pods of migrations exist"


class Writer:
    """Does the writes. Every method raises ApiError; Conflict when the observed objects have changed since."""

    def __init__(self, client: Client, events: EventRecorder, rancher: RancherWrites) -> None:
        self.budgets = client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
        self.quotas, self._rancher = client.resource(RESOURCE_QUOTAS), rancher
        self.locks = client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self._events = events

    async def do(self, step: Write, observed: Observed) -> Observed:
        """Does a write and returns the observation after it."""
        _WRITES.labels(step.name).inc()
        match step.subject:
            case ResourceQuota() as quota:
                result = replace(observed, quotas=await self._quota(quota, step, observed.quotas))
            case VirtualMachineMigrationResourceQuota() as budget:
                new = await self.budgets.merge_patch(
                    step.body, name=budget.name, namespace=budget.namespace, subresource="status"
                )
                result = replace(observed, budgets=_with(observed.budgets, new))
            case _:
                result = replace(observed, lock=await self._lock(observed.lock, step))
                if result.lock is None:  # before another lock the webhook is proven anew
                    result = replace(result, render_webhook=None)
        if step.name == "Unlock" and observed.lock:
            _LOCK_SECONDS.observe(max(0.0, observed.now - observed.lock.known_since))
        log.info("%s: %s", observed.namespace, step.text)
        for budget in observed.budgets if step.name in _OF_BUDGETS else ():
            text = step.text if step.name == "Unlock" else _LOCKED
            self._events.event(budget, "Normal", _OF_BUDGETS[step.name], text)
        for migration in step.migrations:
            self._events.event(migration, "Normal", EVENT_RAISED, step.text)
        return result

    async def _unlock(self, lock: Lock) -> None:
        """Deletes a lock, with its finalizers: it would go on refusing pods."""
        meta = lock.configuration.metadata
        with suppress(NotFound):
            if meta.finalizers:
                await self.locks.merge_patch({"metadata": {"uid": meta.uid, "finalizers": None}}, name=meta.name)
                configuration_written(VALIDATING_WEBHOOK_CONFIGURATIONS, meta.name, "updated")
            await self.locks.delete(name=meta.name, uid=meta.uid)
            configuration_written(VALIDATING_WEBHOOK_CONFIGURATIONS, meta.name, "removed")

    async def _quota(self, quota: ResourceQuota, step: Write, quotas: Sequence[ResourceQuota]) -> list[ResourceQuota]:
        try:
            new = await self._rancher.quotas(quota).merge_patch(step.body, name=quota.name, namespace=quota.namespace)
        except NotFound:  # deleted meanwhile: nothing to raise, nothing to restore
            return [other_quota for other_quota in quotas if other_quota.name != quota.name]
        if step.name == "Raise":
            old_limits, new_limits = parse_resource_list(quota.hard), parse_resource_list(step.body["spec"]["hard"])
            for name, limit in new_limits.items():
                _RELEASED.labels(name).inc((limit - old_limits[name]).nanos * _NANO)
        return _with(quotas, new)

    async def _lock(self, lock: Lock | None, step: Write) -> Lock | None:
        if lock is None:
            configuration, operation = await self.locks.create(step.body), "created"
        elif step.body:
            configuration, operation = await self.locks.merge_patch(step.body, name=lock.configuration.name), "updated"
        else:
            await self._unlock(lock)
            return None
        configuration_written(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration.name, operation)
        return recognise(configuration)


def _with(objects: Sequence[T], new: T) -> list[T]:
    return [new if obj.key == new.key else obj for obj in objects]
