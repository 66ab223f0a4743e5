"""Watches what the API server publishes, every version of it, and says afterwards what was wrong with any of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api import registry
from kubeloop.api.core import Event, Pod, ResourceQuota
from kubeloop.client.client import Client
from kubeloop.client.resource_client import ResourceClient
from lab.record import Refusal
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VirtualMachineInstanceMigration
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.migration import is_finished
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resource_list import ResourceList, add, parse_resource_list, total
from pkg.util.resourcequota.entries import entries

_MARGIN = 1.0
"""Seconds that a refusal may take to become known: it is told by an Event, written in the background."""
_NAMES = ("limits.cpu", "limits.memory")


@dataclass(frozen=True)
class _Seen:
    """A pod: whose it is, the VM that runs in it or "", and what quota counts of it."""

    of_tenant: bool
    vm: str
    usage: ResourceList


@dataclass
class QuotaAudit:
    """What was seen of one namespace whose base is `base`."""

    namespace: str
    base: Mapping[str, Quantity]
    versions: int = 0
    reverts: list[str] = field(default_factory=list)
    """Versions of the quota whose spec.hard was below base + entries."""
    refusals: list[str] = field(default_factory=list)
    """Target pods that were refused although their room had been there for a while."""
    behind: list[str] = field(default_factory=list)
    """Refusals although there was room: quota's own count had not noticed yet that a pod has ended."""
    most_of_tenants: ResourceList = field(default_factory=dict)
    """The most that pods labelled app=tenant took at any moment, by resource."""
    _room_since: dict[tuple[str, str], float] = field(default_factory=dict)
    """VM and entry, to the time since when quota grants it."""
    _room_of: dict[str, float] = field(default_factory=dict)
    _entries: ResourceList = field(default_factory=dict)
    """The sum of all of them."""
    _born: dict[str, float] = field(default_factory=dict)
    """When each VM's migration began that has not ended."""
    _pods: dict[str, _Seen] = field(default_factory=dict)
    """Pods that quota counts, by uid."""

    def saw_quota(self, _type: str, quota: ResourceQuota) -> None:
        """One version."""
        self.versions += 1
        standing = list(entries(quota.annotations))
        needed = add(dict(self.base), total(entry.resources for entry in standing))
        short = _below(quota.hard, needed)
        if standing and short:
            self.reverts.append(f"version {quota.metadata.resource_version}: {short}")
        granted = not _below(quota.status.hard or {}, needed)
        admin = {(entry.vm.value, entry.text) for entry in standing} if granted else set()
        now = time.monotonic()
        self._room_since = {entry: self._room_since.get(entry, now) for entry in admin}
        self._room_of = {vm: since for (vm, _), since in self._room_since.items()}
        self._entries = total(entry.resources for entry in standing)

    def saw_migration(self, type: str, migration: VirtualMachineInstanceMigration) -> None:
        vm = migration.spec.vmi_name
        if type == "DELETED" or is_finished(migration):
            self._born.pop(vm, None)
        else:
            self._born.setdefault(vm, time.monotonic())

    def saw_event(self, _type: str, event: Event) -> None:
        """FailedCreate of a VM that migrates: KubeVirt was refused its target pod. Its first tries come before the
        room."""
        if event.reason != "FailedCreate" or event.involved_object.kind != "VirtualMachineInstance":
            return
        vm, now = event.involved_object.name, time.monotonic()
        since = self._room_of.get(vm, now)
        if now - max(since, self._born.get(vm, now)) <= _MARGIN:
            return
        refusal = Refusal.of(event.message)
        assert refusal is not None, event.message
        requested, limited = refusal.requested, refusal.limited
        assert requested.keys() == limited.keys() != set(), event.message
        if not self._has_room_for(requested):
            return  # the controller has yet to make it
        admin = total(seen.usage for seen in self._pods.values())
        full = any(admin.get(name, ZERO) + requested[name] > limit for name, limit in limited.items())
        by_vm = Counter(seen.vm or "a tenant" for seen in self._pods.values())
        detail = f"{vm}: {event.message}; room since {now - since:.1f} s; pods: {dict(by_vm)}; entries: "
        detail += ", ".join(f"{vm} {now - at:.1f} s" for vm, at in self._room_of.items())
        (self.refusals if full else self.behind).append(detail)

    def _has_room_for(self, requested: ResourceList) -> bool:
        """Whether the entries cover all pods beyond the side that each VM lives in, and one more of that size."""
        by_vm: dict[str, list[ResourceList]] = defaultdict(list)
        for seen in self._pods.values():
            if seen.vm:
                by_vm[seen.vm].append(seen.usage)
        for name, amount in requested.items():
            for usages in by_vm.values():
                amounts = [usage.get(name, ZERO) for usage in usages]
                amount += sum(amounts, ZERO) - max(amounts)
            if self._entries.get(name, ZERO) < amount:
                return False
        return True

    def saw_pod(self, kind: str, pod: Pod) -> None:
        """Tenants' pods are summed up."""
        if kind == "DELETED" or pod.terminal:
            self._pods.pop(pod.uid, None)
        else:
            of_tenant = pod.labels.get("app") == "tenant"
            self._pods[pod.uid] = _Seen(of_tenant, vm_of(pod), pod_usage(pod))
        now = total(seen.usage for seen in self._pods.values() if seen.of_tenant)
        for name in _NAMES:
            self.most_of_tenants[name] = max(self.most_of_tenants.get(name, ZERO), now.get(name, ZERO))


def _below(hard: Mapping[str, str | int | float], needed: Mapping[str, Quantity]) -> dict[str, str]:
    have = parse_resource_list(hard)
    return {
        n: f"{have.get(n)} < {needed[n]}" for n in _NAMES if n in needed and have.get(n, ZERO) < needed[n]
    }


@contextlib.asynccontextmanager
async def audited(
    client: Client, bases: Mapping[str, Mapping[str, str]]
) -> AsyncIterator[dict[str, QuotaAudit]]:
    """One for each namespace, from the moment the block begins; `bases` in the words of spec.hard."""
    seen = {name: QuotaAudit(name, parse_resource_list(base)) for name, base in bases.items()}
    ready: list[asyncio.Event] = []
    tasks = []
    for name, audit in seen.items():
        for resource, saw in (
            (registry.RESOURCE_QUOTAS, audit.saw_quota),
            (VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, audit.saw_migration),
            (registry.EVENTS, audit.saw_event),
            (registry.PODS, audit.saw_pod),
        ):
            began = asyncio.Event()
            ready.append(began)
            tasks.append(asyncio.create_task(_watch(client.resource(resource), name, saw, began)))
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


async def _watch(
    resource: ResourceClient[Any], namespace: str, saw: Callable[[str, Any], None], began: asyncio.Event
) -> None:
    async with resource.watch(namespace) as events:
        began.set()
        async for event in events:
            if event.object is not None:
                saw(event.type, event.object)


def summary(seen: Mapping[str, QuotaAudit]) -> dict[str, int]:
    """How much was seen, for the message of a failure."""
    counted: dict[str, int] = defaultdict(int)
    for audit in seen.values():
        counted["versions"] += audit.versions
        counted["reverts"] += len(audit.reverts)
        counted["refusals"] += len(audit.refusals)
    return dict(counted)
