"""What a run of migrations looked like from outside: who was refused when, and what its quota said then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawResourceList
from lab.scale.measurements import percentile
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.constants import LIMITS_CPU
from pkg.util.kubevirt.migration import is_refused
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota.entries import Entries
from pkg.util.resourcequota.touch import last_touch

SEEN_LATE = 0.1
"""Seconds from a refusal to its condition in the watch, at most, where the machine is not short of CPU."""


@dataclass
class Sighting:
    """One migration; moments are seconds of one clock, None: not yet."""

    namespace: str
    key: str
    """Of its entry."""
    began: float
    raised: float | None = None
    """Its room was seen in spec.hard."""
    refused: float | None = None
    after_room: bool = False
    """Refused although quota admission knew of its room."""
    moved: float | None = None
    phase: str = ""

    @property
    def waited(self) -> float:
        """Seconds from the refusal to the target pod; 0 without a refusal."""
        return self.moved - self.refused if self.moved is not None and self.refused is not None else 0.0


@dataclass
class Room:
    """What a quota has room for: the keys of entries that are in spec.hard, and since when each is in status.hard too,
    from which quota admission decides."""

    entries: frozenset[str] = frozenset()
    raised: bool = False
    shown: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Sightings:
    """What the watches brought. `base` is the CPU of a namespace's base, `lag` that of quota admission in seconds."""

    base: Quantity
    lag: float
    migrations: dict[str, Sighting] = field(default_factory=dict)
    rooms: dict[str, Room] = field(default_factory=dict)
    reverts: int = 0
    clock: Callable[[], float] = time.monotonic
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    """(moment, namespace, what was seen), in the order in which it came."""

    def see_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        """An event of a migration."""
        now, refused = self.clock(), is_refused(migration)
        said = f"{migration.name} {migration.phase or 'new'}{' refused' if refused else ''}"
        self.trace.append((now, migration.namespace, said))
        key = migrating_key(migration.spec.vmi_name)
        seen = self.migrations.setdefault(migration.uid, Sighting(migration.namespace, key, now))
        seen.phase = migration.phase
        if refused and seen.refused is None:
            seen.refused = now
            shown = self.rooms.get(migration.namespace, Room()).shown.get(key)
            seen.after_room = shown is not None and now - shown > self.lag + SEEN_LATE
        if migration.phase not in ("", "Pending") and seen.moved is None:
            seen.moved = now

    def see_quota(self, quota: ResourceQuota) -> None:
        """An event of a quota."""
        now, before = self.clock(), self.rooms.get(quota.namespace, Room())
        hard, status, used = (_cpu(each) for each in (quota.hard, quota.status.hard or {}, quota.used))
        entries = list(Entries(quota.annotations))
        wanted = sum((entry.readable().get(LIMITS_CPU, ZERO) for entry in entries), self.base)
        keys = frozenset(entry.key for entry in entries)
        shown = {key: before.shown.get(key, now) for key in keys} if min(hard, status) >= wanted else {}
        self.rooms[quota.namespace] = room = Room(keys, hard >= wanted, shown)
        self.reverts += before.raised and not room.raised and before.entries == keys
        touch = last_touch(quota.annotations)
        touched = f", touched {touch.at[14:]}" if touch else ""
        said = f"quota {hard} shown {status} used {used}, {len(keys)} entries{touched}"
        self.trace.append((now, quota.namespace, said))
        for seen in self.migrations.values() if room.raised else ():
            if seen.raised is None and seen.namespace == quota.namespace and seen.key in keys:
                seen.raised = now

    def report(self) -> Mapping[str, Any]:
        """The figures, over every migration that got a target."""
        moved = [seen for seen in self.migrations.values() if seen.moved is not None]
        waits = [seen.waited for seen in moved]
        return {
            "reverts": self.reverts,
            "refused": sum(seen.refused is not None for seen in moved),
            "refused_after_room": sum(seen.after_room for seen in moved),
            "seconds_waited": spread(waits),
            "waited_over_half_a_second": sum(wait > 0.5 for wait in waits),
            "seconds_to_the_raise": spread([m.raised - m.began for m in moved if m.raised is not None]),
        }


def _cpu(resources: RawResourceList) -> Quantity:
    return Quantity.parse(resources.get(LIMITS_CPU, "0"))


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Of several durations, in seconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return (
        {name: round(percentile(list(seconds), share), 3) for name, share in shares.items()}
        if seconds
        else {}
    )
