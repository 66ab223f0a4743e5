"""KubeVirt's parallel limits: the order of target pods, from the caches and from reservations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt.lookup import Migrations, Pods, migration_keys
from lab.kubevirt.objects import VirtualMachineInstance
from pkg.util.constants import LABEL_MIGRATION_JOB_UID
from pkg.util.kubevirt.migration import Limits, hindrance, is_finished


@dataclass(eq=False)
class Gate:
    """Lets migrations through while the limits allow it; the others wait in order.

    A place is reserved before the pod is created, without an `await` between looking and reserving, so that no two
    workers take the same place; what is reserved counts until the cache shows the pod.
    """

    migrations: Migrations
    instances: CacheReader[VirtualMachineInstance]
    pods: Pods
    limits: Callable[[], Limits]
    enqueue: Callable[[str], None]
    _reserved: set[str] = field(default_factory=set, init=False)
    _waiting: dict[str, None] = field(default_factory=dict, init=False)

    def enter(self, key: str, node: str) -> str:
        """Reserve a place for a migration away from `node`: "" when it has one, else why it waits."""
        reason = hindrance([self._sources(k) for k in self._running() if k != key], node, self.limits())
        if reason:
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)
            self._reserved.add(key)
        return reason

    def is_waiting(self, key: str) -> bool:
        """Reports whether the migration waits for a place: it will be woken."""
        return key in self._waiting

    def leave(self, key: str) -> None:
        """The place is free again, or its pod is in the cache and counts there; the next in line may enter."""
        self._waiting.pop(key, None)
        if key in self._reserved:
            self._reserved.discard(key)
            self.wake()

    def wake(self) -> None:
        """Enqueue as many of the waiting as there is room for."""
        if not self._waiting:
            return
        running = [self._sources(key) for key in self._running()]
        limits = self.limits()
        for key in list(self._waiting):
            if len(running) >= limits.per_cluster:
                return
            vmi = self._vmi_of(key)
            node = (vmi.status.node_name or "") if vmi else ""
            if not hindrance(running, node, limits):
                del self._waiting[key]
                running.append(frozenset({node}))
                self.enqueue(key)

    def _running(self) -> set[str]:
        """The migrations that have a target pod, or are about to."""
        keys = set(self._reserved)
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
        return self.instances.get_by_key(migration.vmi_key) if migration else None
