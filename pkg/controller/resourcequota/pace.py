"""The pace of decisions: an event of its namespace has a quota decided about at once where a migration waits for that,
else a moment later. KubeVirt updates what belongs to one step of a migration a few milliseconds apart: one decision
serves it all.

Promises: after every event comes a decision that sees what the event is about.
Forbids: reading more than a quota and its namespace's migrations here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kubeloop.api.core import ResourceQuota
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.controllers.controller import Controller
from kubeloop.workqueue.queue import DEFAULT_PRIORITY
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.timers import is_urgent, pause


@dataclass(eq=False)
class Pace:
    """Enqueues quotas, at once or a moment later."""

    quotas: Controller[ResourceQuota]
    source: Source
    is_as_written: Callable[[ResourceQuota], bool]
    """Whether a quota is as headroom's last patch left it."""
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    # Invariant: a timer runs for each of these keys, and when it was set no migration waited.

    def soon(self, key: str, priority: int = DEFAULT_PRIORITY) -> None:
        """Enqueues a quota, at once where a migration waits. One timer serves all that happens until it fires."""
        quota = self.quotas.cache().get_by_key(key)
        if quota is None or key in self._timers:
            return
        if has_waiting_migration(self.source, quota, self.source.migrations.list(quota.namespace)):
            self._at_once(key)
        else:
            later = asyncio.get_running_loop().call_later
            self._timers[key] = later(pause(quota.annotations), self._at_once, key, priority)

    def _at_once(self, key: str, priority: int = DEFAULT_PRIORITY) -> None:
        self._forget(key)
        self.quotas.queue.add(key, priority)

    def _forget(self, key: str) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def migration_handlers(
        self, read: Callable[[VirtualMachineInstanceMigration], object]
    ) -> ResourceEventHandlerFuncs[VirtualMachineInstanceMigration]:
        """Returns the handlers of migrations: one is new or gone, or `read` returns another value of it. Only that one
        may wait because of it."""

        def enqueue(migration: VirtualMachineInstanceMigration, *, hurry: bool = False) -> None:
            for quota in self.quotas.cache().list(migration.namespace):
                waits = hurry or has_waiting_migration(self.source, quota, [migration])
                (self._at_once if waits else self.soon)(quota.key)

        return ResourceEventHandlerFuncs(
            lambda migration, _: enqueue(migration, hurry=not is_finished(migration)),
            lambda old, new: enqueue(new) if read(old) != read(new) else None,
            lambda migration, _: enqueue(migration),
        )

    def quota_handlers(self) -> ResourceEventHandlerFuncs[ResourceQuota]:
        """Returns the handlers of quotas. What others change of spec or metadata is repaired at once. Of a first list,
        in which thousands may be, quotas of namespaces in which a VM migrates come first."""

        def add(quota: ResourceQuota, _: bool) -> None:
            if not all(map(is_finished, self.source.migrations.list(quota.namespace))):
                self._at_once(quota.key)

        def update(old: ResourceQuota, new: ResourceQuota) -> None:
            can_wait = self.is_as_written(new) or _all_but_status(old) == _all_but_status(new)
            (self.soon if can_wait else self._at_once)(new.key)

        return ResourceEventHandlerFuncs(add, update, lambda quota, _: self._forget(quota.key))


def has_waiting_migration(
    source: Source, quota: ResourceQuota, migrations: Iterable[VirtualMachineInstanceMigration]
) -> bool:
    """Reports whether one of the namespace's migrations is about to be tried, or was refused."""
    namespace = quota.namespace
    return is_urgent(quota.annotations, migrations, lambda vm: source.instances.get(name=vm, namespace=namespace))


def _all_but_status(quota: ResourceQuota) -> object:
    meta = quota.metadata
    return meta.uid, meta.deletion_timestamp, meta.labels, meta.annotations, quota.spec
