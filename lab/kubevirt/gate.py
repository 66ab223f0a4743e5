"""Who may have a target pod next: KubeVirt's parallel limits over what the caches show and what was just created."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt.creation import Clock
from lab.kubevirt.lookup import Migrations, Pods, is_active, migration_keys
from lab.kubevirt.objects import VirtualMachineInstance
from pkg.util.kubevirt.installed import Limits, hindrance

_UNSEEN = 5.0
"""Seconds after which a target pod that the cache never showed counts as not there."""


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
    clock: Clock
    _reserved: dict[str, float] = field(default_factory=dict, init=False)
    _waiting: dict[str, None] = field(default_factory=dict, init=False)

    def enter(self, key: str, node: str) -> str:
        """Reserve a place for a migration away from `node`: "" when it has one, else why it waits."""
        reason = hindrance(self._running(except_for=key), node, self.limits())
        if reason:
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)
            self._reserved[key] = self.clock.loop()
        return reason

    def awaits_pod(self, key: str) -> bool:
        """Whether the migration's pod was created a moment ago and the cache has yet to show it."""
        since = self._reserved.get(key)
        return since is not None and self.clock.loop() - since < _UNSEEN

    def is_waiting(self, key: str) -> bool:
        """Whether the migration waits for a place: it will be woken."""
        return key in self._waiting

    def leave(self, key: str) -> None:
        """The place is free again, or its pod is in the cache and counts there; the next in line may enter."""
        self._waiting.pop(key, None)
        if self._reserved.pop(key, None) is not None:
            self.wake()

    def wake(self) -> None:
        """Enqueue as many of the waiting as there is room for."""
        if not self._waiting:
            return
        running = list(self._running())
        limits = self.limits()
        for key in list(self._waiting):
            if len(running) >= limits.per_cluster:
                return
            node = self._node_of(key)
            if not hindrance(running, node, limits):
                del self._waiting[key]
                running.append(frozenset({node}))
                self.enqueue(key)

    def _running(self, except_for: str = "") -> Iterator[frozenset[str]]:
        """The source nodes of each migration that has a target pod, or is about to."""
        keys = {migration.key for migration in self.migrations.started()}
        keys.update(
            key for pod in self.pods.targets() for key in migration_keys(pod) if self._is_active(key, pod.labels)
        )
        keys.update(self._reserved)
        keys.discard(except_for)
        return (self._sources(key) for key in keys)

    def _is_active(self, key: str, labels: Mapping[str, str]) -> bool:
        migration = self.migrations.get(key)
        return migration is not None and is_active(migration) and migration.uid in labels.values()

    def _sources(self, key: str) -> frozenset[str]:
        vmi = self._vmi_of(key)
        if vmi is None:
            return frozenset()
        state = vmi.status.migration_state
        nodes = (vmi.status.node_name, state.source_node if state else None)
        return frozenset(node for node in nodes if node)

    def _node_of(self, key: str) -> str:
        vmi = self._vmi_of(key)
        return (vmi.status.node_name or "") if vmi else ""

    def _vmi_of(self, key: str) -> VirtualMachineInstance | None:
        migration = self.migrations.get(key)
        return self.instances.get_by_key(migration.vmi_key) if migration else None
