"""Queries of a run's record, for the demo's checks, scale's figures, benches and audits. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, marshal, total
from lab.record import RESOURCES, Amounts, EventSeen, QuotaVersion, Record, Refusal, Track
from pkg.util.resourcequota.entries import migrating_key, migrating_uid_key, vm_in_key

T = TypeVar("T")
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits and the usage of a quota, at one moment."""

    hard: Amounts
    used: Amounts

    @classmethod
    def of(cls, version: QuotaVersion) -> Self:
        return cls(version.hard, version.used)

    def __str__(self) -> str:
        return f"hard {self.hard}; used {self.used}"


# ---- the quota


def value_since(record: Record, start: float, expected: T, read: Callable[[QuotaVersion], T]) -> T | None:
    """Returns `expected` if it could be read of the quota at any moment since `start`, else its present value."""
    version = first_version(record, start, lambda version: read(version) == expected) or record.quota
    return read(version) if version else None


def quota_after(record: Record, migration: str) -> Quota | None:
    """The quota now, None while the migration's source pod still counts."""
    source = source_of(record, migration)
    is_over = source is not None and source.ended is not None
    return Quota.of(record.quota) if record.quota and is_over else None


def highest_since(record: Record, start: float) -> Amounts:
    """Returns the highest limits at any moment since `start`, each resource by itself."""
    hard = [version.hard for version in record.quotas if version.at >= start]
    return Amounts({name: max((amounts[name] for amounts in hard), default=ZERO) for name in RESOURCES})


def lowest_under_entries(record: Record, start: float) -> Amounts | None:
    """Returns the lowest limits at any moment since `start` while there was an entry, each resource by itself.

    The version at `start` counts, too. None when there was no entry.
    """
    at_start = [version for version in record.quotas if version.at < start][-1:]
    later = [version for version in record.quotas if version.at >= start]
    hard = [version.hard for version in at_start + later if version.entries]
    return Amounts({name: min(amounts[name] for amounts in hard) for name in RESOURCES}) if hard else None


def first_version(record: Record, start: float, fits: Callable[[QuotaVersion], bool]) -> QuotaVersion | None:
    """Returns the first version since `start` that fits."""
    return next((version for version in record.quotas if version.at >= start and fits(version)), None)


def writes(record: Record, since: float = 0.0, until: float = _FOREVER) -> list[QuotaVersion]:
    """The versions that a change of spec.hard, annotations or labels has made: those of status alone, which the API
    server and its controller manager write, are left out."""
    changes = (new for old, new in pairwise(record.quotas) if old.written_fields != new.written_fields)
    return [version for version in changes if since <= version.at <= until]


def overshoot(record: Record, base: Amounts, since: float, until: float) -> tuple[float, float]:
    """Returns core seconds and byte seconds of unused headroom: the integral of spec.hard − max(base, pods)."""
    cores = size = 0.0
    limit, used, last_time = base, Amounts(), since
    for moment, usage, hard in [*sorted(_changes(record), key=attrgetter("at")), _Change(until, Amounts())]:
        surplus = limit - Amounts({name: max(base[name], used[name]) for name in RESOURCES})
        seconds = max(0.0, min(moment, until) - last_time)
        cores += seconds * max(0, surplus.cpu.milli_value()) / 1000
        size += seconds * max(0, surplus.memory.value())
        limit, used, last_time = hard or limit, used + usage, max(last_time, moment)
    return cores, size


class _Change(NamedTuple):
    """A growth of the pods' usage, or a new limit."""

    at: float
    usage: Amounts
    hard: Amounts | None = None


def _changes(record: Record) -> Iterator[_Change]:
    yield from (_Change(version.at, Amounts(), version.hard) for version in record.quotas)
    yield from _usage_changes(record.pods.values())


def _usage_changes(pods: Iterable[Track]) -> Iterator[_Change]:
    for pod in pods:
        yield _Change(pod.began.at, pod.usage)
        if pod.ended is not None:
            yield _Change(pod.ended.at, Amounts() - pod.usage)


def most_taken(record: Record, fits: Callable[[Track], bool]) -> Amounts:
    """The most that the pods that fit took at any moment, each resource by itself."""
    now = most = Amounts()
    for change in sorted(_usage_changes(filter(fits, record.pods.values())), key=attrgetter("at")):
        now += change.usage
        most = Amounts({name: max(amount, now[name]) for name, amount in most.items()})
    return most


def reverts(record: Record, base: Amounts) -> list[QuotaVersion]:
    """The versions whose spec.hard was below the base and their entries; those of a request once it is granted."""
    low: list[QuotaVersion] = []
    granted_entries: dict[str, ResourceList] = {}
    for version in record.quotas:
        if version.hard.covers(needed(version, base)):
            granted_entries = version.entries
        elif version.entries and (version.entries == granted_entries or not version.is_requested):
            low.append(version)
    return low


def needed(version: QuotaVersion, base: Amounts) -> Amounts:
    """The base and a version's entries."""
    return base + total(version.entries.values())


# ---- refusals


def refusals(record: Record, since: float = 0.0) -> Iterator[tuple[EventSeen, Refusal]]:
    """The events that tell of quota's refusal of a migration's pod."""
    pairs = ((event, Refusal.of(event.message)) for event in record.events if event.at >= since)
    return ((event, refusal) for event, refusal in pairs if refusal is not None)


def refusal_of(record: Record, migration: str) -> str:
    """Returns quota's own words about the migration's target pod, or ""."""
    return next((refusal.words for event, refusal in refusals(record) if event.subject == migration), "")


def refused_after_raise(record: Record, since: float = 0.0) -> int:
    """Counts the refusals by a limit that had the headroom for the very migration, by quota's own words."""
    return sum(event.count for event, refusal in refusals(record, since) if _is_after(record, event, refusal))


def _is_after(record: Record, event: EventSeen, refusal: Refusal) -> bool:
    """Reports whether the refusing limit was raised; without entries anywhere (VMMRQ, other controllers), any above the
    first."""
    limits, versions = refusal.limited, record.quotas
    if not limits or not versions:
        return False
    if not any(version.entries for version in versions):
        return any(limit > versions[0].hard[name] for name, limit in limits.items() if name in RESOURCES)
    version = admission_version(record, event, refusal)
    return version is not None and has_entry(record, version, record.migrations[event.subject])


def admission_version(record: Record, event: EventSeen, refusal: Refusal) -> QuotaVersion | None:
    """The version that admission went by, however late it is told: the latest whose limits are those that it names."""
    versions = (version for version in reversed(record.quotas) if version.at <= event.at)
    limits = refusal.limited.items()
    return next((version for version in versions if all(version.hard.get(n) == limit for n, limit in limits)), None)


def has_entry(record: Record, version: QuotaVersion, migration: Track) -> bool:
    """Reports whether a version of the quota grants headroom for the migration's VM: by its name or its VMI's uid."""
    vmi = record.vmis.get(migration.vm)
    keys = (migrating_key(migration.vm), migrating_uid_key(vmi.uid if vmi else ""))
    return any(key in keys for key in version.entries)


@dataclass(frozen=True, slots=True)
class LateRefusal:
    """A target pod that was refused although quota had granted its room for a while."""

    full: bool
    """Reports whether other pods had taken it. Else there was room: quota had not noticed yet that a pod has ended."""
    detail: str


_MARGIN = 1.0
"""Seconds that a refusal may take to become known: it is told by an Event, written in the background."""


def late_refusals(record: Record, base: Amounts, since: float = 0.0) -> Iterator[LateRefusal]:
    """The first tries come before the room, and are none."""
    for event in (event for event in record.events if event.at >= since):
        migration = record.migrations[event.subject]
        is_over = migration.ended is not None and migration.ended.at <= event.at
        room_since = rooms(record, base, event.at)
        granted_at = max(room_since.get(migration.vm, event.at), migration.began.at)
        if event.reason != "FailedCreate" or is_over or event.at - granted_at <= _MARGIN:
            continue
        refusal = Refusal.of(event.message)
        if refusal is None or not refusal.requested.keys() == refusal.limited.keys() != set():
            yield LateRefusal(True, f"unreadable: {event.message}")
            continue
        version = admission_version(record, event, refusal)
        pods = [pod for pod in record.pods.values() if pod.counts_at(event.at)]
        if version is not None and not _has_room(version, pods, refusal.requested):
            continue  # the controller had yet to make it
        needed_amounts = sum((pod.usage for pod in pods), Amounts()) + refusal.requested
        full = any(needed_amounts[name] > limit for name, limit in refusal.limited.items())
        by_vm = Counter(pod.vm or "a tenant" for pod in pods)
        entries = ", ".join(f"{vm} {event.at - start:.1f} s" for vm, start in room_since.items())
        yield LateRefusal(full, f"{migration.vm}: {event.message}; pods: {dict(by_vm)}; room since: {entries}")


def rooms(record: Record, base: Amounts, moment: float) -> dict[str, float]:
    """Returns since when quota grants each VM's entry, as of a moment."""
    since: dict[tuple[str, str], float] = {}
    for version in record.quotas:
        if version.at <= moment:
            granted_entries = version.entries if version.status_hard.covers(needed(version, base)) else {}
            granted = [(vm_in_key(key), marshal(entry)) for key, entry in granted_entries.items()]
            since = {key: since.get(key, version.at) for key in granted}
    return {vm: began for (vm, _), began in since.items()}


def _has_room(version: QuotaVersion, pods: Iterable[Track], requested: ResourceList) -> bool:
    """Reports whether a version's entries cover each VM's pods beyond its largest one, and one more of `requested`."""
    by_vm: dict[str, list[Track]] = defaultdict(list)
    for pod in pods:
        if pod.vm:
            by_vm[pod.vm].append(pod)
    entries = total(version.entries.values())
    for name, amount in requested.items():
        for sides in by_vm.values():
            amounts = [pod.usage[name] for pod in sides]
            amount += sum(amounts, ZERO) - max(amounts)
        if entries.get(name, ZERO) < amount:
            return False
    return True


# ---- migrations and their pods


def state_of(record: Record, migration: str) -> str:
    """Returns phase and refusal in one phrase."""
    track = record.migrations.get(migration)
    if track is None:
        return "not there"
    return f"{track.phase or 'new'}, {'refused' if track.refused is not None else 'never refused'}"


def phases_of(record: Record, migration: str) -> str:
    track = record.migrations.get(migration)
    return " ".join(change.phase for change in track.phases if change.phase) if track else ""


def target_of(record: Record, migration: str) -> Track | None:
    """The pod that was made for the migration."""
    track = record.migrations.get(migration)
    return record.targets.get(track.uid) if track else None


def source_of(record: Record, migration: str) -> Track | None:
    """The pod that the migration moved the VM out of: the VM's newest one before the target."""
    target = target_of(record, migration)
    if target is None:
        return None
    older = (pod for pod in record.pods.values() if pod.vm == target.vm and pod.began.version < target.began.version)
    return max(older, key=lambda pod: pod.began.version, default=None)


def pending_by_quota(record: Record, migration: Track) -> float:
    """Returns the seconds from the refusal to the target pod; 0 for a migration that was not refused or has no pod."""
    target = target_of(record, migration.name)
    if migration.refused is None or target is None:
        return 0.0
    return max(0.0, target.began.at - migration.refused)


def held_until_the_end(record: Record, migration: str) -> str:
    """Returns "held" unless the limit was below the pods' usage between the migration's success and its source pod's
    end.

    The pods are asked, not status.used: that follows them only after a moment.
    """
    track, source = record.migrations.get(migration), source_of(record, migration)
    if track is None or track.ended is None or source is None or source.ended is None:
        return "not over"
    span = range(track.ended.version, source.ended.version)
    for version in (version for version in record.quotas if version.version in span):
        usage = counted_at(record, version.version)
        if not version.hard.covers(usage):
            return f"lowered to {version.hard} while pods took {usage}"
    return "held"


def counted_at(record: Record, version: int) -> Amounts:
    """Returns the usage of the pods that had not ended at a version."""
    alive = (
        pod.usage
        for pod in record.pods.values()
        if pod.began.version < version and (pod.ended is None or pod.ended.version > version)
    )
    return sum(alive, Amounts())


def admission_of(record: Record, migration: str, earlier: str) -> str:
    """Tells in a phrase if the migration's target pod was admitted while an earlier migration's source pod still
    counted."""
    target, source = target_of(record, migration), source_of(record, earlier)
    if target is None or source is None:
        return "not there"
    is_counted = source.ended is None or target.began.version < source.ended.version
    return f"admitted {'while' if is_counted else 'after'} {earlier}'s old pod count{'s' if is_counted else 'ed'}"
