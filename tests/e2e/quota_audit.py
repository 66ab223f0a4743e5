"""Watches what the API server publishes, every version of it, and says what was wrong with any of them as it comes."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from kubeloop.api.registry import EVENTS, PODS, RESOURCE_QUOTAS
from kubeloop.client.client import Client
from lab.questions import went_by
from lab.record import Amounts, EventSeen, Happening, PhaseChange, QuotaVersion, Record, Refusal, Track
from lab.watching import Watching
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import total

_MARGIN = 1.0
"""Seconds that a refusal may take to become known: it is told by an Event, written in the background."""
_FOLLOWED = (RESOURCE_QUOTAS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, EVENTS, PODS)


@dataclass
class QuotaAudit:
    """What was seen of one namespace whose base is `base`."""

    base: Amounts
    record: Record = field(default_factory=Record)
    reverts: list[str] = field(default_factory=list)
    """Versions of the quota whose spec.hard was below base + entries."""
    refusals: list[str] = field(default_factory=list)
    """Target pods that were refused although their room had been there for a while."""
    behind: list[str] = field(default_factory=list)
    """Refusals although there was room: quota's own count had not noticed yet that a pod has ended."""
    most_of_tenants: Amounts = field(default_factory=Amounts)
    """The most that pods labelled app=tenant took at any moment, by resource."""
    _room_since: dict[tuple[str, str], float] = field(default_factory=dict)
    """VM and entry, to the time since when quota grants it."""

    def __post_init__(self) -> None:
        self.record.listener = self._seen

    @property
    def versions(self) -> int:
        """Of the quota."""
        return len(self.record.quotas)

    def _seen(self, happening: Happening) -> None:
        match happening:
            case QuotaVersion():
                self._saw_quota(happening)
            case EventSeen(reason="FailedCreate"):
                self._saw_refusal(happening)
            case PhaseChange(about=about) if about in self.record.pods:
                self._saw_pod()

    def _saw_quota(self, version: QuotaVersion) -> None:
        needed = self.base + total(entry.resources for entry in version.entries)
        if version.entries and not version.hard.covers(needed):
            self.reverts.append(f"version {version.version}: {version.hard} < {needed}")
        granted = version.entries if version.shown.covers(needed) else []
        known = {(entry.vm, entry.text) for entry in granted}
        self._room_since = {entry: self._room_since.get(entry, version.at) for entry in known}

    def _saw_refusal(self, event: EventSeen) -> None:
        """KubeVirt was refused a VM's target pod. Its first tries come before the room."""
        migration = self.record.migrations[event.about]
        room_of = {vm: since for (vm, _), since in self._room_since.items()}
        since = room_of.get(migration.vm, event.at)
        if migration.ended is not None or event.at - max(since, migration.began.at) <= _MARGIN:
            return
        refusal = Refusal.of(event.message)
        if refusal is None or not refusal.requested.keys() == refusal.limited.keys() != set():
            self.refusals.append(f"unreadable: {event.message}")
            return
        version = went_by(self.record, event, refusal)
        if version is not None and not self._has_room_for(refusal.requested, version):
            return  # the controller had yet to make it
        needed = self.record.taken + refusal.requested
        full = any(needed[name] > limit for name, limit in refusal.limited.items())
        by_vm = Counter(pod.vm or "a tenant" for pod in self.record.counted.values())
        detail = f"{migration.vm}: {event.message}; room since {event.at - since:.1f} s; pods: {dict(by_vm)}; "
        detail += "entries: " + ", ".join(f"{vm} {event.at - at:.1f} s" for vm, at in room_of.items())
        (self.refusals if full else self.behind).append(detail)

    def _has_room_for(self, requested: Mapping[str, Quantity], version: QuotaVersion) -> bool:
        """Whether a version's entries cover all pods beyond the side that each VM lives in, and one more of that."""
        by_vm: dict[str, list[Track]] = defaultdict(list)
        for pod in self.record.counted.values():
            if pod.vm:
                by_vm[pod.vm].append(pod)
        entries = total(entry.resources for entry in version.entries)
        for name, amount in requested.items():
            for pods in by_vm.values():
                amounts = [pod.usage[name] for pod in pods]
                amount += sum(amounts, ZERO) - max(amounts)
            if entries.get(name, ZERO) < amount:
                return False
        return True

    def _saw_pod(self) -> None:
        """Tenants' pods are summed up."""
        pods = self.record.counted.values()
        now = sum((pod.usage for pod in pods if pod.labels.get("app") == "tenant"), Amounts())
        most = self.most_of_tenants
        self.most_of_tenants = Amounts({name: max(amount, now[name]) for name, amount in most.items()})


@contextlib.asynccontextmanager
async def audited(client: Client, bases: Mapping[str, Mapping[str, str]]) -> AsyncIterator[dict[str, QuotaAudit]]:
    """One for each namespace, from the moment the block begins; `bases` in the words of spec.hard."""
    seen = {name: QuotaAudit(Amounts.within(base)) for name, base in bases.items()}
    async with Watching(client, {name: audit.record for name, audit in seen.items()}, *_FOLLOWED):
        yield seen


def summary(seen: Mapping[str, QuotaAudit]) -> dict[str, int]:
    """How much was seen, for the message of a failure."""
    audits = seen.values()
    return {
        "versions": sum(audit.versions for audit in audits),
        "reverts": sum(len(audit.reverts) for audit in audits),
        "refusals": sum(len(audit.refusals) for audit in audits),
    }
