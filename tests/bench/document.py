"""Results of a measurement, lines of the table of targets and tables that compare, and docs/dev/benchmarks.md, where
they go between two marks; what is around them is written by hand."""

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from lab.plot import BARS_WIDTH, bars, svg
from tests.bench.peers.programs import OURS, MeasuredPrograms


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


BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"


def write(document: Path, results: list[Result], programs: MeasuredPrograms, rounds: int) -> None:
    """Replaces what stands between the marks, and the plot beside the document. Raises OSError, ValueError."""
    head, _, remainder = document.read_text("utf-8").partition(BEGIN)
    _, end_mark, tail = remainder.partition(END)
    if not end_mark:
        raise ValueError(f"{document} lacks {BEGIN} and {END}")
    picture = document.with_suffix(".svg")
    compared = [result for result in results if isinstance(result, Comparison) and result.bars]
    groups = {f"{result.title}: {result.plotted}": result.bars for result in compared}
    picture.write_text(svg(bars(groups, {OURS}), "what the programs need", BARS_WIDTH), "utf-8")
    measured = "\n\n".join([*_circumstances(programs, rounds, picture.name), tables(results)])
    document.write_text(f"{head}{BEGIN}\n{measured}\n{END}{tail}", "utf-8")


def _circumstances(programs: MeasuredPrograms, rounds: int, picture: str) -> list[str]:
    return [
        f"{_machine()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}. Median of {rounds} rounds "
        f"({(rounds + 1) // 2} for watches, migrations and admission), in which the programs alternate, and "
        "(smallest–largest).",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in programs.versions.items()) + ".",
        *programs.notes,
        f"![What the programs need]({picture})",
    ]


def tables(results: list[Result]) -> str:
    """Renders tables in Markdown: each comparison's, and one of targets."""
    parts: list[str] = []
    for result in results:
        if isinstance(result, Comparison):
            parts += [f"### {result.title}", _table(result.columns, result.lines), result.note]
    rows = [result for result in results if isinstance(result, Row)]
    if rows:
        lines = tuple((row.what, row.measured, row.to_reach, row.upstream, _verdict(row)) for row in rows)
        parts += ["### Targets", _table(("", "measured", "to reach", "upstream (Go)", "reached"), lines)]
    return "\n\n".join(part for part in parts if part)


def _verdict(row: Row) -> str:
    if row.limit is None:
        return ""
    return "yes" if row.reached else "**no**"


def _machine() -> str:
    cpus = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in _lines(cpus) if line.startswith("model name")]
    memory = next((line.split()[1] for line in _lines(Path("/proc/meminfo")) if line.startswith("MemTotal")), "0")
    name = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores ({name}), {int(memory) / 2**20:.0f} GiB of memory, {platform.system()}"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _table(columns: tuple[str, ...], lines: tuple[tuple[str, ...], ...]) -> str:
    rule = ["---" if column in ("", "version", "upstream (Go)") else "---:" for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, tuple(rule), *lines))
