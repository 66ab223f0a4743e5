"""The picture of a whole demo: charts, bars and checks; in a terminal at the end, and as SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from lab.demo import bars
from lab.demo.chart import BAD, DIM, GOOD, HARD, TITLE, USED, Canvas, Resource, Scale, chart, columns
from lab.demo.checks import Check, Report
from lab.record import Record

_GUTTER = 13
_ROOM_ABOVE = 6, 5
"""The scale ends this much above the highest limit: for labels."""
_CHARTS: tuple[tuple[str, Resource], ...] = (
    ("limits.cpu", lambda amounts: amounts.cpu),
    ("limits.memory", lambda amounts: amounts.memory),
)


def view(seen: Record, report: Report, *, now: float, width: int, rows: int) -> Group:
    """The whole demo, `width` columns wide; each chart has `rows` rows."""
    scale = Scale(now, width - _GUTTER - 1)
    title = Text("A namespace's quota while its VMs migrate, as the API server shows it", TITLE)
    title.append(f"   {report.last_line}", BAD if report.failed else GOOD)
    charts = [part for name, resource in _CHARTS for part in _chart(name, resource, seen, scale, now, rows)]
    bands = {
        "": bars.axis(scale),
        " ": bars.steps(seen, scale),
        "headroom": bars.bar(bars.runs_of_headroom(seen, now), scale),
        "Rancher": bars.rancher(seen, scale),
    }
    for track in list(seen.migrations.values()):
        bands[f"{track.name} of {track.vm}"] = bars.bar(bars.spans_of(seen, track, now), scale)
    drawn = [row for label, canvas in bands.items() for row in _rows(canvas, label)]
    checks = [_checked(check) for check in report.checks if check.headline or not check.ok]
    return Group(title, *charts, *drawn, Text(), *checks)


def _chart(
    name: str, resource: Resource, seen: Record, scale: Scale, now: float, rows: int
) -> Iterator[RenderableType]:
    quotas = list(seen.quotas)
    if not quotas:
        yield from (Text(name), *(Text() for _ in range(rows)))
        return
    base = resource(quotas[0].hard)
    highest = max([base + base, *(resource(version.hard) for version in quotas)])
    top = highest.milli_value() * _ROOM_ABOVE[0] // _ROOM_ABOVE[1]
    heading = Text(f"{name:<{_GUTTER}} ", TITLE)
    yield heading.append("─ allowed  ", HARD).append("█ used  ", USED).append(f"╌ base {base}", DIM)
    yield from _rows(chart(columns(quotas, resource, scale, now), base=base, top=top, height=rows))


def _checked(check: Check) -> Text:
    if not check.ok:
        return Text(str(check), BAD)
    return Text(f"✓ ({check.step}) ", GOOD).append(f"{check.name}: ", "").append(str(check.seen), DIM)


def _rows(canvas: Canvas, label: str = "") -> Iterator[Text]:
    for row in canvas.lines():
        yield Text(f"{label:<{_GUTTER}} ", DIM, no_wrap=True).append_text(row)


_WIDTH, _ROWS = 118, 14
_BACKGROUND, _FOREGROUND = (18, 22, 28), (201, 209, 217)
# Every colour in use is given as such: the theme's sixteen are not used.
_THEME = TerminalTheme(_BACKGROUND, _FOREGROUND, [_FOREGROUND] * 8)
# No web fonts: a picture in a README may not load any.
_FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" class="headroom" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def show(stream: TextIO, seen: Record, report: Report, now: float) -> None:
    console = Console(file=stream)
    console.print(view(seen, report, now=now, width=max(console.width, 60), rows=9))


def write(path: Path, seen: Record, report: Report, now: float) -> None:
    """The picture into a file. Raises OSError."""
    path.write_text(svg(seen, report, now), "utf-8")


def svg(seen: Record, report: Report, now: float) -> str:
    """The picture's text."""
    # NO_COLOR, COLUMNS and TERM are about the terminal, not about the picture.
    plain: dict[str, Any] = {"file": io.StringIO(), "_environ": {}, "force_terminal": True}
    console = Console(record=True, width=_WIDTH, color_system="truecolor", **plain)
    console.print(view(seen, report, now=now, width=_WIDTH, rows=_ROWS))
    return console.export_svg(title="headroom demo", theme=_THEME, code_format=_FORMAT, unique_id="headroom")
