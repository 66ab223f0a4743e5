"""Watches what the API server publishes, every version of it, and says afterwards what was wrong with any of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from pkg.api import registry
from pkg.api.core import Event, Pod, ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.client.client import Client
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, add, parse_resource_list, total
from pkg.util.resourcequota.annotations import entries
from pkg.util.resourcequota.usage import pod_usage

_MARGIN = 1.0
"""Seconds that a refusal may take to become known: it is told by an Event, written in the background."""
_NAMES = ("limits.cpu", "limits.memory")


@dataclass
class Witness:
    """What was seen of one namespace whose base is `base`."""

    namespace: str
    base: Mapping[str, Quantity]
    versions: int = 0
    reverts: list[str] = field(default_factory=list)
    """Versions of the quota whose spec.hard was below base + entries."""
    refusals: list[str] = field(default_factory=list)
    """Target pods that were refused although their room had been there for a while."""
    most_of_tenants: ResourceList = field(default_factory=dict)
    """The most that pods labelled app=tenant took at any moment, by resource."""
    _room_since: dict[tuple[str, str], float] = field(default_factory=dict)
    """VM and entry, to the time since when quota grants it."""
    _room_of: dict[str, float] = field(default_factory=dict)
    _born: dict[str, float] = field(default_factory=dict)
    """Migrations that were told of, and when."""
    _tenants: dict[str, ResourceList] = field(default_factory=dict)

    def saw_quota(self, quota: ResourceQuota) -> None:
        """One version."""
        self.versions += 1
        standing = list(entries(quota.annotations))
        needed = add(dict(self.base), total(entry.resources for entry in standing))
        short = _below(quota.hard, needed)
        if standing and short:
            self.reverts.append(f"version {quota.metadata.resource_version}: {short}")
        granted = not _below(quota.status.hard or {}, needed)
        there = {(entry.target.value, entry.text) for entry in standing} if granted else set()
        now = time.monotonic()
        self._room_since = {entry: self._room_since.get(entry, now) for entry in there}
        self._room_of = {vm: since for (vm, _), since in self._room_since.items()}

    def saw_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        self._born.setdefault(migration.name, time.monotonic())

    def saw_event(self, event: Event) -> None:
        """FailedCreate of a migration: KubeVirt was refused its target pod. Its first try comes before the room."""
        if event.reason != "FailedCreate" or event.involved_object.kind != "VirtualMachineInstanceMigration":
            return
        name = event.involved_object.name
        now = time.monotonic()
        room_since = self._room_of.get(name.rpartition("-")[0], now)
        if now - max(room_since, self._born.get(name, now)) > _MARGIN:
            self.refusals.append(event.message)

    def saw_pod(self, kind: str, pod: Pod) -> None:
        """Tenants' pods are summed up."""
        if pod.labels.get("app") != "tenant":
            return
        if kind == "DELETED" or pod.terminal:
            self._tenants.pop(pod.uid, None)
        else:
            self._tenants[pod.uid] = pod_usage(pod)
        now = total(self._tenants.values())
        for name in _NAMES:
            self.most_of_tenants[name] = max(self.most_of_tenants.get(name, ZERO), now.get(name, ZERO))


def _below(hard: Mapping[str, str | int | float], needed: Mapping[str, Quantity]) -> dict[str, str]:
    have = parse_resource_list(hard)
    return {
        n: f"{have.get(n)} < {needed[n]}" for n in _NAMES if n in needed and have.get(n, ZERO) < needed[n]
    }


@contextlib.asynccontextmanager
async def witnesses(
    client: Client, bases: Mapping[str, Mapping[str, str]]
) -> AsyncIterator[dict[str, Witness]]:
    """One for each namespace, from the moment the block begins; `bases` in the words of spec.hard."""
    seen = {name: Witness(name, parse_resource_list(base)) for name, base in bases.items()}
    ready: list[asyncio.Event] = []
    tasks = []
    for name, witness in seen.items():
        for watch in (_quotas, _migrations, _events, _pods):
            began = asyncio.Event()
            ready.append(began)
            tasks.append(asyncio.create_task(watch(client, name, witness, began)))
    for began in ready:
        await asyncio.wait_for(began.wait(), 10)
    try:
        yield seen
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _quotas(client: Client, namespace: str, witness: Witness, began: asyncio.Event) -> None:
    async with client.resource(registry.RESOURCE_QUOTAS).watch(namespace) as versions:
        began.set()
        async for version in versions:
            if version.object is not None:
                witness.saw_quota(version.object)


async def _migrations(client: Client, namespace: str, witness: Witness, began: asyncio.Event) -> None:
    async with client.resource(registry.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).watch(namespace) as migrations:
        began.set()
        async for migration in migrations:
            if migration.object is not None:
                witness.saw_migration(migration.object)


async def _events(client: Client, namespace: str, witness: Witness, began: asyncio.Event) -> None:
    async with client.resource(registry.EVENTS).watch(namespace) as events:
        began.set()
        async for event in events:
            if event.object is not None:
                witness.saw_event(event.object)


async def _pods(client: Client, namespace: str, witness: Witness, began: asyncio.Event) -> None:
    async with client.resource(registry.PODS).watch(namespace) as pods:
        began.set()
        async for pod in pods:
            if pod.object is not None:
                witness.saw_pod(pod.type, pod.object)


def summary(seen: Mapping[str, Witness]) -> dict[str, int]:
    """How much was seen, for the message of a failure."""
    counted: dict[str, int] = defaultdict(int)
    for witness in seen.values():
        counted["versions"] += witness.versions
        counted["reverts"] += len(witness.reverts)
        counted["refusals"] += len(witness.refusals)
    return dict(counted)
