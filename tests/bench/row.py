"""A line of the benchmark table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """`measured` in `unit`; `limit` is what is to be reached, None where there is nothing to reach."""

    what: str
    value: float
    unit: str
    limit: float | None = None
    upstream: str = ""
    at_least: bool = False
    """`limit` is to be exceeded."""

    @property
    def measured(self) -> str:
        return f"{self.value:.3g} {self.unit}" if self.value < 1000 else f"{self.value:.0f} {self.unit}"

    @property
    def to_reach(self) -> str:
        return "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"

    @property
    def reached(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0–1) of the values lie, the nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, round(share * len(ranked) + 0.5) - 1))]
