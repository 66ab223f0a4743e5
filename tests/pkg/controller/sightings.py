"""What a run of migrations looked like from outside: who was refused when, and what its quota said then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lab.questions import has_entry
from lab.record import QuotaVersion, Record, Track
from lab.scale.measurements import percentile
from pkg.util.constants import LIMITS_CPU
from pkg.util.quantity import ZERO, Quantity

SEEN_LATE = 0.1
"""Seconds from a refusal to its condition in the watch, at most, where the machine is not short of CPU."""


@dataclass
class Sightings:
    """Of one namespace. `base` is the CPU of its base, `lag` that of quota admission in seconds."""

    base: Quantity
    lag: float
    record: Record = field(default_factory=Record)

    def moved(self) -> Iterator[tuple[Track, float]]:
        """Each migration that got a target, and how long it waited for it after a refusal."""
        for track in self.record.migrations.values():
            moved = next((each.at for each in track.phases if each.phase not in ("", "Pending")), None)
            if moved is not None:
                yield track, moved - track.refused if track.refused is not None else 0.0

    def wanted(self, version: QuotaVersion) -> Quantity:
        return sum((each.readable().get(LIMITS_CPU, ZERO) for each in version.entries), self.base)

    def raised(self, track: Track) -> float | None:
        """When a migration's room was first seen in spec.hard."""
        since = (version for version in self.record.quotas if version.at >= track.began.at)
        return next((each.at for each in since if self._has_room(each, track)), None)

    def _has_room(self, version: QuotaVersion, track: Track) -> bool:
        return has_entry(self.record, version, track) and version.hard.cpu >= self.wanted(version)

    def is_after_room(self, track: Track) -> bool:
        """Whether it was refused although quota admission knew of its room."""
        shown: float | None = None
        for version in self.record.quotas:
            if track.refused is None or version.at > track.refused:
                break
            known = self._has_room(version, track) and version.shown.cpu >= self.wanted(version)
            shown = (version.at if shown is None else shown) if known else None
        return track.refused is not None and shown is not None and track.refused - shown > self.lag + SEEN_LATE

    def reverts(self) -> int:
        """How often the quota dropped below base and entries while these stayed."""
        return sum(
            {each.key for each in before.entries} == {each.key for each in after.entries}
            and before.hard.cpu >= self.wanted(before)
            and after.hard.cpu < self.wanted(after)
            for before, after in pairwise(self.record.quotas)
        )


def report(namespaces: Sequence[Sightings]) -> Mapping[str, Any]:
    """The figures, over every migration that got a target."""
    moved = [(seen, track, wait) for seen in namespaces for track, wait in seen.moved()]
    waits = [wait for _, _, wait in moved]
    raised = [(seen.raised(track), track.began.at) for seen, track, _ in moved]
    return {
        "reverts": sum(seen.reverts() for seen in namespaces),
        "refused": sum(track.refused is not None for _, track, _ in moved),
        "refused_after_room": sum(seen.is_after_room(track) for seen, track, _ in moved),
        "seconds_waited": spread(waits),
        "waited_over_half_a_second": sum(wait > 0.5 for wait in waits),
        "seconds_to_the_raise": spread([at - began for at, began in raised if at is not None]),
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Of several durations, in seconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(seconds, share), 3) for name, share in shares.items()} if seconds else {}
