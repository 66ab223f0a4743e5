"""docs/benchmarks.md: what was measured goes between two marks; what is around them is written by hand."""

from __future__ import annotations

import datetime
import os
import platform
from html import escape
from pathlib import Path

from tests.bench.peers.programs import Programs
from tests.bench.row import Comparison, Result, Row

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"
_BAR, _LINE, _LEFT, _WIDTH = 300, 18, 170, 560


def write(document: Path, results: list[Result], programs: Programs, rounds: int) -> None:
    """Replaces what stands between the marks, and the plot beside the document. Raises OSError, ValueError."""
    head, _, rest = document.read_text("utf-8").partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"{document} lacks {BEGIN} and {END}")
    picture = document.with_suffix(".svg")
    picture.write_text(plot([result for result in results if isinstance(result, Comparison)]), "utf-8")
    measured = _measured(results, programs, rounds, picture.name)
    document.write_text(f"{head}{BEGIN}\n{measured}\n{END}{tail}", "utf-8")


def _measured(results: list[Result], programs: Programs, rounds: int, picture: str) -> str:
    parts = [
        f"{_machine()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}. Median of {rounds} rounds "
        f"({(rounds + 1) // 2} for watches, migrations and admission), in which the programs alternate, and "
        "(smallest–largest).",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in programs.versions.items()) + ".",
        *programs.notes,
        f"![What the programs need]({picture})",
    ]
    for result in results:
        if isinstance(result, Comparison):
            parts += [f"### {result.title}", _table(result.columns, result.lines), result.note]
    rows = [result for result in results if isinstance(result, Row)]
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


def plot(comparisons: list[Comparison]) -> str:
    """Bars, a group for each comparison that has some; readable on light and dark ground."""
    body: list[str] = []
    y = 8
    for comparison in comparisons:
        if not comparison.bars:
            continue
        y += 24
        title = f"{comparison.title}: {comparison.plotted}"
        body.append(f'<text x="8" y="{y}" font-weight="bold">{escape(title)}</text>')
        most = max(value for _, value in comparison.bars) or 1.0
        for name, value in comparison.bars:
            y += _LINE
            width = max(1.0, _BAR * value / most)
            color = "#1f77b4" if name == "headroom" else "#9aa5b1"
            body.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{escape(name)}</text>')
            body.append(f'<rect x="{_LEFT}" y="{y - 10}" width="{width:.0f}" height="12" fill="{color}"/>')
            body.append(f'<text x="{_LEFT + width + 6:.0f}" y="{y}">{value:.3g}</text>')
    style = "text{font:12px sans-serif;fill:#6b7785}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 16}">'
        f"<style>{style}</style>{''.join(body)}</svg>\n"
    )
