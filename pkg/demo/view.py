"""The whole play at one moment: charts, migrations, what was said. The same for the live view and the picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from pkg.demo import bars, palette
from pkg.demo.canvas import Canvas
from pkg.demo.chart import chart
from pkg.demo.checks import Check, Report
from pkg.demo.chronicle import Chronicle, QuotaVersion
from pkg.demo.timeline import Resource, Scale, columns
from pkg.util.quantity import Quantity

_GUTTER = 13
_LEAST_SECONDS = 30.0
_ROOM_ABOVE = 6, 5
"""The scale ends this much above the highest limit: for labels."""
_CHARTS: tuple[tuple[str, Resource], ...] = (
    ("limits.cpu", lambda amounts: amounts.cpu),
    ("limits.memory", lambda amounts: amounts.memory),
)


@dataclass(frozen=True, slots=True)
class Size:
    """What there is room for: columns, rows of a chart, lines of talk."""

    width: int
    chart: int
    talk: int

    @classmethod
    def fitting(cls, width: int, height: int) -> Size:
        """For a terminal."""
        others = 16
        chart = min(max(3, (height - others) // 2), 9)
        return cls(max(width, 60), chart, min(max(2, height - others - 2 * chart), 6))


def view(
    chronicle: Chronicle, report: Report, *, now: float, size: Size, live: bool = True
) -> RenderableType:
    """`live`: with the quota as it is now, and the last things said. Otherwise the whole story."""
    scale = Scale(max(now, _LEAST_SECONDS) if live else now, size.width - _GUTTER - 1)
    parts: list[RenderableType] = [_title(chronicle, report, live=live)]
    for name, resource in _CHARTS:
        parts += _chart(name, resource, chronicle, scale, now, size, live=live)
    parts += _time(chronicle, scale, now)
    parts += _talk(chronicle, report, size, live=live)
    return Group(*parts)


def _title(chronicle: Chronicle, report: Report, *, live: bool) -> Text:
    if not live:
        title = Text("A namespace's quota while its VMs migrate, as the API server shows it", palette.TITLE)
        return title.append(f"   {report.last_line}", palette.BAD if report.failed else palette.GOOD)
    act = next((mark.text for mark in reversed(chronicle.marks) if mark.kind == "act"), "")
    return Text(act, palette.TITLE)


def _chart(
    name: str, resource: Resource, chronicle: Chronicle, scale: Scale, now: float, size: Size, *, live: bool
) -> list[RenderableType]:
    quotas = list(chronicle.quotas)
    if not quotas:
        return [Text(name), *(Text() for _ in range(size.chart))]
    base = resource(quotas[0].hard)
    highest = max([base + base, *(resource(version.hard) for version in quotas)])
    top = highest.milli_value() * _ROOM_ABOVE[0] // _ROOM_ABOVE[1]
    found = columns(quotas, resource, scale, now)
    drawn = chart(found, base=base, top=top, height=size.chart, smooth=live)
    return [_heading(name, resource, quotas[-1], base, live=live), *_rows(drawn)]


def _heading(name: str, resource: Resource, quota: QuotaVersion, base: Quantity, *, live: bool) -> Text:
    line = Text(f"{name:<{_GUTTER}} ", palette.TITLE)
    line.append("─ allowed  ", palette.HARD).append("█ used  ", palette.USED)
    line.append(f"╌ base {base}", palette.BASE)
    if live:
        line.append(f"    now {resource(quota.used)} of {resource(quota.hard)}", palette.TITLE)
    return line


def _time(chronicle: Chronicle, scale: Scale, now: float) -> list[RenderableType]:
    rows = [("", bars.axis(scale)), ("", bars.acts(chronicle, scale))]
    rows.append(("headroom", bars.bar(bars.runs_of_headroom(chronicle, now), scale)))
    rows.append(("Rancher", bars.rancher(chronicle, scale)))
    rows += [
        (f"{track.name} of {track.vm}", bars.bar(bars.spans_of(chronicle, track, now), scale))
        for track in list(chronicle.migrations.values())
    ]
    return [line for label, canvas in rows for line in _rows(canvas, label)]


def _talk(chronicle: Chronicle, report: Report, size: Size, *, live: bool) -> list[RenderableType]:
    if not live:
        return [Text(), *(_headline(check) for check in report.checks if check.headline or not check.ok)]
    lines = [Text(f"{t.about}: {t.message}", palette.DIM, no_wrap=True) for t in chronicle.told[-2:]]
    lines += [_checked(check) for check in report.checks[-max(1, size.talk - len(lines)) :]]
    for line in lines:
        line.truncate(size.width - 1, overflow="ellipsis")
    return list(lines)


def _checked(check: Check) -> Text:
    return Text(str(check), palette.GOOD if check.ok else palette.BAD)


def _headline(check: Check) -> Text:
    if not check.ok:
        return _checked(check)
    return (
        Text(f"✓ ({check.act}) ", palette.GOOD)
        .append(f"{check.name}: ", "")
        .append(str(check.seen), palette.DIM)
    )


def _rows(canvas: Canvas, label: str = "") -> Iterable[RenderableType]:
    for row in canvas.lines():
        yield Text(f"{label:<{_GUTTER}} ", palette.DIM, no_wrap=True).append_text(row)
