"""KubeVirt's parallel limits: the order of target pods, from the caches and from reservations."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt.lookup import Migrations, Pods, migration_keys
from lab.kubevirt.objects import VirtualMachineInstance
from pkg.api.kubevirt import MigrationConfiguration
from pkg.util.constants import LABEL_MIGRATION_JOB_UID
from pkg.util.kubevirt.migration import is_finished, parallel_limit_reason


@dataclass(eq=False)
class Gate:
    """Lets migrations through while the limits allow it; the others wait in order.

    A place is reserved before the pod is created, without an `await` between looking and reserving, so that no two
    workers take the same place; what is reserved counts until the cache shows the pod.
    """

    migrations: Migrations
    vmis: CacheReader[VirtualMachineInstance]
    pods: Pods
    limits: Callable[[], MigrationConfiguration]
    enqueue: Callable[[str], None]
    _reservations: set[str] = field(default_factory=set, init=False)
    _queue: dict[str, None] = field(default_factory=dict, init=False)

    def enter(self, key: str, node: str) -> str:
        """Reserves a place for a migration away from `node`; returns "" or the reason why it waits."""
        reason = parallel_limit_reason(
            [self._sources(k) for k in self._running_keys() if k != key], node, self.limits()
        )
        if reason:
            self._queue[key] = None
        else:
            self._queue.pop(key, None)
            self._reservations.add(key)
        return reason

    def is_waiting(self, key: str) -> bool:
        """Reports whether the migration waits for a place: it will be woken."""
        return key in self._queue

    def leave(self, key: str) -> None:
        """The place is free again, or its pod is in the cache and counts there; the next in line may enter."""
        self._queue.pop(key, None)
        if key in self._reservations:
            self._reservations.discard(key)
            self.wake()

    def wake(self) -> None:
        """Enqueues as many of the waiting migrations as there is room for."""
        if not self._queue:
            return
        running_sources = [self._sources(key) for key in self._running_keys()]
        limits = self.limits()
        for key in list(self._queue):
            if len(running_sources) >= limits.parallel_migrations_per_cluster:
                return
            vmi = self._vmi_of(key)
            node = (vmi.status.node_name or "") if vmi else ""
            if not parallel_limit_reason(running_sources, node, limits):
                del self._queue[key]
                running_sources.append(frozenset({node}))
                self.enqueue(key)

    def _running_keys(self) -> set[str]:
        """The migrations that have a target pod, or are about to."""
        keys = set(self._reservations)
        for pod in self.pods.targets():
            for key in migration_keys(pod):
                migration = self.migrations.get(key)
                if migration and not is_finished(migration) and migration.uid == pod.labels[LABEL_MIGRATION_JOB_UID]:
                    keys.add(key)
        return keys

    def _sources(self, key: str) -> frozenset[str]:
        vmi = self._vmi_of(key)
        state = vmi.status.migration_state if vmi else None
        nodes = (vmi and vmi.status.node_name, state and state.source_node)
        return frozenset(node for node in nodes if node)

    def _vmi_of(self, key: str) -> VirtualMachineInstance | None:
        migration = self.migrations.get(key)
        return self.vmis.get_by_key(migration.vmi_key) if migration else None
