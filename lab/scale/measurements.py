"""The figures of a run, from the records of its namespaces. Pure."""

from collections.abc import Collection, Iterator, Sequence
from math import ceil

from lab import questions
from lab.record import Amounts, Record, Track
from pkg.util import constants


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank); 0 for none."""
    ranking = sorted(values)
    return ranking[max(0, ceil(share * len(ranking)) - 1)] if ranking else 0.0


class Measurements:
    """The records of a run's namespaces; figures count from `begin` on."""

    def __init__(self, namespaces: Collection[str] = ()) -> None:
        self.records = {name: Record() for name in namespaces}
        self._bases: dict[str, Amounts] = {}
        self._began = 0.0
        self._end = 0.0

    def begin(self, time: float) -> None:
        """Starts the figures; from now on the quotas allow the pods' present usage."""
        self._began, self._bases = time, self.usage()

    def end(self, time: float) -> None:
        self._end = time

    def usage(self) -> dict[str, Amounts]:
        return {name: record.usage for name, record in self.records.items()}

    @property
    def tracks(self) -> list[Track]:
        return [track for _, track in self._migrations()]

    def nodes(self) -> dict[str, str]:
        """Returns the node of each running VM, by the VM's key."""
        return {
            f"{namespace}/{name}": vmi.status.node_name
            for namespace, record in self.records.items()
            for name, vmi in record.vmis.items()
            if vmi.status.phase == constants.PHASE_RUNNING and vmi.status.node_name
        }

    def memory(self) -> tuple[int, int]:
        """Returns the bytes that quotas allow, and those that pods use, in all namespaces together."""
        limits = [record.quota.hard for record in self.records.values() if record.quota]
        return sum(limits, Amounts()).memory.value(), sum(self.usage().values(), Amounts()).memory.value()

    def waits(self) -> list[float]:
        """Returns each migration's wait for quota, in seconds."""
        return [questions.pending_by_quota(record, track) for record, track in self._migrations()]

    def pending_count(self) -> int:
        """Counts the migrations that were refused and have no target pod."""
        return sum(
            track.refused is not None and track.uid not in record.targets for record, track in self._migrations()
        )

    def is_settled(self) -> bool:
        """Reports whether every migration has ended and every quota allows what it did before."""
        return all(track.ended is not None for track in self.tracks) and all(
            record.quota is not None and record.quota.hard == self._bases[name] for name, record in self.records.items()
        )

    def quota_writes(self) -> int:
        return sum(len(questions.writes(record, self._began, self._end)) for record in self.records.values())

    def refusals(self) -> tuple[int, int]:
        """Returns the number of target pods that quota refused, and of those that it refused after the raise."""
        records = self.records.values()
        every = sum(event.count for record in records for event, _ in questions.refusals(record, self._began))
        return every, sum(questions.refused_after_raise(record, self._began) for record in records)

    def overshoot(self) -> tuple[float, float]:
        """Returns the core seconds and byte seconds of unused headroom."""
        overshoots = [
            questions.overshoot(record, self._bases[name], self._began, self._end)
            for name, record in self.records.items()
        ]
        return sum(cores for cores, _ in overshoots), sum(size for _, size in overshoots)

    def _migrations(self) -> Iterator[tuple[Record, Track]]:
        return ((record, track) for record in self.records.values() for track in record.migrations.values())
