"""Results of a measurement: lines of the table of targets, and tables that compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median


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
    values: tuple[float, ...] = ()
    """Of each round; `value` is their median."""

    @property
    def measured(self) -> str:
        return f"{spread(self.values or [self.value])} {self.unit}".strip()

    @property
    def to_reach(self) -> str:
        return "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}".strip()

    @property
    def reached(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of programs, and a note under it."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""
    bars: tuple[tuple[str, float], ...] = ()
    """What a plot of it shows: names and values."""
    plotted: str = ""
    """What the values are."""


Result = Row | Comparison


def figure(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def combined(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """The same rows of several rounds as one each."""
    value_rounds = [tuple(row.value for row in rows) for rows in zip(*rounds, strict=True)]
    return [
        replace(row, value=median(values), values=values) for row, values in zip(rounds[0], value_rounds, strict=True)
    ]


def spread(values: Sequence[float]) -> str:
    """The median, and the smallest and largest of several."""
    if len(values) < 2:
        return figure(median(values))
    return f"{figure(median(values))} ({figure(min(values))}–{figure(max(values))})"
