"""Observes a namespace and does the next writes of the sequence; what may change a decision enqueues its namespace."""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cachetools import LRUCache

from kubeloop.api.core import Namespace, ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.meta import Object
from kubeloop.api.registry import RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from kubeloop.controllers.enqueue import EnqueueHandler
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.logs import Once
from kubeloop.workqueue.queue import loop_time
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, VirtualMachineMigrationResourceQuota
from pkg.config.management import Management
from pkg.config.metrics import METRICS, configuration_written
from pkg.config.rancher_quotas import RancherWrites
from pkg.config.settings import Settings
from pkg.config.time_slices import TimeSlices
from pkg.controller.managedtenantquota.observation import WindowObserver
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.managedtenantquota.lock import Lock, lock_name, recognise
from pkg.util.managedtenantquota.model import Observed, WindowPolicy, WindowTimers, is_in_use
from pkg.util.managedtenantquota.sequence import Wait, Window, Write, next_step
from pkg.util.managedtenantquota.targets import facts_by_scopes
from pkg.util.resourcequota.observe import read_of_migration, read_of_pod, read_of_vmi
from pkg.util.resourcequota.policy import EXACT

log = logging.getLogger(__name__)

MANAGED_TENANT_QUOTA_CONTROLLER = "managedTenantQuotaController"
_PAUSE = 0.1
"""Seconds after which a namespace without a lock is decided about for what neither quota nor a refusal shows: one
decision serves what KubeVirt changes meanwhile."""
_LOCK_SECONDS = METRICS["headroom_mtq_lock_seconds"].histogram(
    (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
)
_RELEASED = METRICS["headroom_mtq_quota_released_total"].counter()
_WRITES = METRICS["headroom_mtq_writes_total"].counter()
_EVENTS = {
    "MakeLock": (constants.EVENT_LOCKED, "locked until the target pods of migrations exist"),
    "Raise": (constants.EVENT_RAISED, ""),
    "Unlock": (constants.EVENT_UNLOCKED, ""),
}
"""By a write's name: its event, and a text instead of the write's, always the same: Kubernetes counts it in one."""
_LIMIT_REACHED = METRICS["headroom_mtq_lock_limit_reached_total"].counter()
_MOST_WRITES = 100  # in one go; a namespace with more blocking quotas than that goes on after a pause
_FIRST_PAUSE = 0.05  # seconds after the first error of a namespace; twice as long after each further one
_OPENING_SECONDS = 12.0
"""The namespace is locked while a write that opens a window has no answer. By default the API server itself waits 10
for another webhook, and then goes on without it or names it."""
_REMEMBERED = 4096
_REFUSED = {
    "Restore": (constants.EVENT_RESTORE_REFUSED, "resource quota {} is still raised, restoring it will be retried: {}"),
    "Unlock": (constants.EVENT_UNLOCK_REFUSED, "lock {} still stands, deleting it will be retried: {}"),
}
"""By the name of a write that, refused, does not keep the other ones from being done: the event about that."""


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
                name, namespace = budget.name, budget.namespace
                new = await self.budgets.merge_patch(step.body, name=name, namespace=namespace, subresource="status")
                result = replace(observed, budgets=[new if b.key == new.key else b for b in observed.budgets])
            case _:
                result = replace(observed, lock=await self._lock(observed.lock, step))
        if step.name == "Unlock" and observed.lock:
            _LOCK_SECONDS.observe(max(0.0, observed.now - observed.lock.known_since))
            result = replace(result, render_webhook=None)  # before another lock the webhook is proven anew
        log.info("%s: %s", observed.namespace, step.text)
        if step.name in _EVENTS:
            reason, text = _EVENTS[step.name]
            for obj in step.migrations if step.name == "Raise" else observed.budgets:
                self._events.event(obj, "Normal", reason, text or step.text)
        return result

    async def _quota(self, quota: ResourceQuota, step: Write, quotas: Sequence[ResourceQuota]) -> list[ResourceQuota]:
        try:
            new = await self._rancher.quotas(quota).merge_patch(step.body, name=quota.name, namespace=quota.namespace)
        except NotFound:  # deleted meanwhile: nothing to raise, nothing to restore
            return [other for other in quotas if other.name != quota.name]
        if step.name == "Raise":
            old_limits, new_limits = parse_resource_list(quota.hard), parse_resource_list(step.body["spec"]["hard"])
            for name, limit in new_limits.items():
                _RELEASED.labels(name).inc((limit - old_limits[name]).nanos / 1e9)
        return [new if other.key == new.key else other for other in quotas]

    async def _lock(self, lock: Lock | None, step: Write) -> Lock | None:
        if lock is None:
            configuration, operation = await self.locks.create(step.body), "created"
        elif step.body:
            configuration, operation = await self.locks.merge_patch(step.body, name=lock.configuration.name), "updated"
        else:
            meta = lock.configuration.metadata
            with suppress(NotFound):
                if meta.finalizers:  # it would go on refusing pods
                    await self.locks.merge_patch({"metadata": {"uid": meta.uid, "finalizers": None}}, name=meta.name)
                    configuration_written(VALIDATING_WEBHOOK_CONFIGURATIONS, meta.name, "updated")
                await self.locks.delete(name=meta.name, uid=meta.uid)
                configuration_written(VALIDATING_WEBHOOK_CONFIGURATIONS, meta.name, "removed")
            return None
        configuration_written(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration.name, operation)
        return recognise(configuration)


class WindowHandler:
    """Handles Namespaces, by name: all that happens in one of them is in order."""

    def __init__(self, observer: WindowObserver, writer: Writer, events: EventRecorder, policy: WindowPolicy) -> None:
        self._observer, self._writer, self._events, self._policy = observer, writer, events, policy
        self._slices = TimeSlices()
        self._first_seen: LRUCache[str, float] = LRUCache(_REMEMBERED)  # by a lock's uid, on the event loop's clock
        self._timers: defaultdict[str, WindowTimers] = defaultdict(WindowTimers)
        self._pauses = ItemExponentialFailureRateLimiter[str](_FIRST_PAUSE, policy.sweep)
        # Invariant: why the last write of a namespace failed, while one is left undone because of it.
        self._refusals: dict[str, Exception] = {}
        self._reported = Once(600.0, most=_REMEMBERED, clock=loop_time)

    async def on_namespace_changed(self, key: str, _namespace: Namespace | None) -> None:
        """Does the next step. Raises RetryAfter while there is something to re-check, also after an error."""
        if not self._observer.concerns_us(key):
            self._timers.pop(key, None)
            self._observer.windows.pop(key, None)
            self._refusals.pop(key, None)
            self._pauses.forget(key)
            return
        try:
            window, step = await self._work_off(key)
        except (TimeoutError, ApiError) as exc:
            self._refusals[key] = exc
            raise RetryAfter(self._pauses.when(key), f"after an error: {exc}") from exc
        observed = window.observed
        if observed.refused_writes:
            undone = "a quota is still raised, or a lock stands"
            raise RetryAfter(self._pauses.when(key), undone) from self._refusals.get(key)
        self._pauses.forget(key)
        if not (window.refused_targets and window.timers.refusals):
            self._refusals.pop(key, None)
        # What has begun is re-checked, even if an event was lost.
        is_open = window.lock or window.records or window.problems or any(map(is_in_use, observed.budgets))
        seconds = min(step.seconds, self._policy.sweep if is_open else math.inf)
        if math.isfinite(seconds):
            raise RetryAfter(seconds, step.reason) from self._refusals.get(key)

    async def on_lock_changed(self, _key: str, configuration: ValidatingWebhookConfiguration | None) -> None:
        """Ends a lock that is overdue, and asks nothing before: on a queue of its own, for those who work off the
        namespaces may all be waiting for an answer. Raises RetryAfter until then."""
        lock = recognise(configuration)
        if lock is None:
            return
        window = await self._window(replace(self._observer.cached(lock.namespace), lock=lock))
        if not window.overdue:
            raise RetryAfter(window.seconds_left, "the lock has to end then")
        step = next_step(window)
        assert isinstance(step, Write)
        if (await self._try(window, step)).refused_writes:
            raise RetryAfter(self._pauses.when(lock.namespace), "the lock still stands")

    async def _work_off(self, key: str) -> tuple[Window, Wait]:
        """Writes one step after the other until one waits, and returns that one. The caches suggest the first write and
        live reads decide it; under a lock what was kept of the last reads decides, with what the caches have since.
        Raises RetryAfter after _MOST_WRITES, TimeoutError at the limit of a lock that was not overdue before."""
        continued = self._observer.continued(key)
        observed, is_decisive = continued or self._observer.cached(key), continued is not None
        async with asyncio.timeout(None) as deadline:
            for _ in range(_MOST_WRITES):
                window = await self._window(observed)
                step = next_step(window)
                if isinstance(step, Wait):
                    if is_decisive and observed is not continued:
                        self._observer.keep(observed)
                    return window, step
                self._observer.windows.pop(key, None)  # until it is kept: nothing of what fails
                has_end = window.lock is not None and not window.overdue
                deadline.reschedule(loop_time() + window.seconds_left if has_end else None)
                lacks_webhook = observed.render_webhook is None and not observed.lock_unavailable_reason
                if not is_decisive or (step.opens and lacks_webhook):
                    observed, is_decisive = await self._observer.live(key, opens=step.opens), True
                else:
                    observed = replace(await self._try(window, step), now=self._observer.clock())
        raise RetryAfter(self._pauses.when(key), "there is more to write")

    async def _window(self, observed: Observed) -> Window:
        """Returns the window. A lock is at least as old as we have known it, also when a clock is set back."""
        lock, now = observed.lock, observed.now
        if lock is not None:
            age = loop_time() - self._first_seen.setdefault(lock.configuration.uid, loop_time())
            lock = replace(lock, since=now - max(lock.age(now), age), known_since=now - age)
        observed = replace(observed, lock=lock, timers=self._timers[observed.namespace])
        for facts in facts_by_scopes(observed).values():
            await self._slices.work_out(facts, EXACT, charges=False)
        window = Window(observed, self._policy)
        self._store_results(window)
        return window

    async def _try(self, window: Window, step: Write) -> Observed:
        """Tries a write; returns the observation after it. Raises ApiError; a window that it was to open is closed."""
        observed, subject = window.observed, step.subject
        try:
            async with asyncio.timeout(_OPENING_SECONDS if step.opens else None):
                return await self._writer.do(step, observed)
        except (Conflict, AlreadyExists):
            raise
        except (ApiError, TimeoutError) as exc:
            refusal = exc if isinstance(exc, ApiError) else Unreachable(f"no answer within {_OPENING_SECONDS:g} s")
        if step.opens:
            window.close_after_refusal(str(refusal), self._observer.clock())
            self._store_results(window)
        if subject is None or step.name not in _REFUSED:
            raise refusal
        self._refusals[observed.namespace] = refusal
        reason, message = _REFUSED[step.name]
        quotas = [subject] if isinstance(subject, ResourceQuota) else []
        window.problems.append(observed.problem(reason, message.format(subject.name, refusal), subject.name, *quotas))
        self._store_results(window)
        return replace(observed, refused_writes=[*observed.refused_writes, subject.key])

    def _store_results(self, window: Window) -> None:
        """Keeps the waiting times, and reports each problem by events, at most once in a while."""
        namespace = window.observed.namespace
        self._timers[namespace] = window.timers
        for problem in window.problems:
            if self._reported.is_due(namespace, problem.key):
                log.warning("%s: %s", namespace, problem.message)
                if problem.reason == constants.EVENT_LOCK_LIMIT:
                    _LIMIT_REACHED.inc()
                for obj in problem.objects:
                    self._events.event(obj, problem.kind, problem.reason, problem.message)


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the controller. Namespaces are the key: two objects of one namespace are never worked on at a time."""
    namespaces, locks = management.namespaces, management.locks
    budgets = management.virtual_machine_migration_resource_quotas
    source = management.source(settings.profile)
    observer = WindowObserver(source, management.client, locks.cache(), settings, management.clock, management.rancher)
    policy = WindowPolicy(lock_limit=settings.lock_limit)
    handler = WindowHandler(observer, Writer(management.client, events, management.rancher), events, policy)
    namespaces.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_namespace_changed)
    locks.on_change(MANAGED_TENANT_QUOTA_CONTROLLER, handler.on_lock_changed)

    def namespace_with_window(obj: Object) -> list[str]:
        return [obj.namespace] if observer.concerns_us(obj.namespace) else []

    def soon(namespace: str, priority: int) -> None:
        if locks.cache().get(name=lock_name(namespace)):
            namespaces.queue.add(namespace, priority)
        else:
            namespaces.queue.add_after(namespace, _PAUSE)

    namespaces.watch_related(budgets, lambda budget: [budget.namespace])
    namespaces.watch_related(locks, lambda webhooks: [lock.namespace] if (lock := recognise(webhooks)) else [])
    namespaces.watch_related(management.resource_quotas, namespace_with_window)
    migrations, vmis = management.virtual_machine_instance_migrations, management.virtual_machine_instances
    namespaces.watch_related(migrations, namespace_with_window, reads=is_refused)
    migrations.informer.add_event_handler(EnqueueHandler(namespace_with_window, soon, [read_of_migration]))
    vmis.informer.add_event_handler(EnqueueHandler(namespace_with_window, soon, [read_of_vmi]))
    reads_of_pod = [read_of_pod, lambda pod: pod.status.phase]
    management.pods.informer.add_event_handler(EnqueueHandler(namespace_with_window, soon, reads_of_pod))
    namespaces.watch_related(management.limit_ranges, namespace_with_window)
    namespaces.watch_related(management.kubevirts, lambda _: {budget.namespace for budget in budgets.cache().list()})
