"""The quota's history, cut into the columns of a chart. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pkg.demo.amounts import Amounts
from pkg.demo.chronicle import QuotaVersion
from pkg.util.quantity import Quantity

Resource = Callable[[Amounts], Quantity]
"""Which of the two a chart is about."""


@dataclass(frozen=True, slots=True)
class Column:
    """A span of time: the least and the most that was allowed in it, and where it ended."""

    low: Quantity
    high: Quantity
    hard: Quantity
    used: Quantity


@dataclass(frozen=True, slots=True)
class Plateau:
    """A limit that stood from column `first` on, for `length` columns."""

    first: int
    length: int
    value: Quantity


@dataclass(frozen=True, slots=True)
class Scale:
    """`seconds` of time on `columns` columns."""

    seconds: float
    columns: int

    def column(self, at: float) -> int:
        """The column in which a moment lies; the last one for what comes after."""
        return min(max(0, int(at / self.seconds * self.columns)), self.columns - 1)

    def end(self, column: int) -> float:
        """The moment at which a column ends."""
        return (column + 1) * self.seconds / self.columns


def columns(
    versions: Sequence[QuotaVersion], resource: Resource, scale: Scale, now: float
) -> list[Column | None]:
    """A Column for each of the scale's; None before the first version and after `now`."""
    found: list[Column | None] = []
    next_version = 0
    last: QuotaVersion | None = None
    for index in range(scale.columns):
        here = [last] if last is not None else []
        while next_version < len(versions) and versions[next_version].at < scale.end(index):
            here.append(versions[next_version])
            next_version += 1
        last = here[-1] if here else None
        over = index > scale.column(now)
        found.append(None if over or not here else _column(here, resource))
    return found


def _column(versions: Sequence[QuotaVersion], resource: Resource) -> Column:
    hard = [resource(version.hard) for version in versions]
    return Column(min(hard), max(hard), hard[-1], resource(versions[-1].used))


def plateaus(found: Sequence[Column | None], value: Callable[[Column], Quantity]) -> list[Plateau]:
    """The runs of columns in which the value ends the same."""
    runs: list[Plateau] = []
    for index, column in enumerate(found):
        if column is None:
            continue
        here = value(column)
        if runs and runs[-1].value == here:
            runs[-1] = Plateau(runs[-1].first, index - runs[-1].first + 1, here)
        else:
            runs.append(Plateau(index, 1, here))
    return runs
