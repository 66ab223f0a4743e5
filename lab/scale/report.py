"""The run's figures as report.json, as a table and as a page with plots. docs/scale.md says what each one is."""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from kubeloop.api.quantity import NANOS, ZERO, Quantity
from lab import plot
from lab.headroom import Counts
from lab.plot import Sample, Scale
from lab.scale.measurements import Measurements, percentile
from lab.scale.plan import Settings
from pkg.util import constants

GIB = 1024.0**3


@dataclass(frozen=True, slots=True)
class Moment:
    """A sample, one a second. Memory is in bytes: of all namespaces together, `rss` is headroom's."""

    time: float
    succeeded: int
    pending: int
    allowed: int
    used: int
    cpu: float
    rss: int


_PROCESS_FIGURES = ("cpu_seconds", "rss_peak_bytes", "ready_seconds", "idle_cpu_percent")


@dataclass(slots=True)
class Costs:
    """The measurements beside the watches. None: not known, as with --external."""

    headroom: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(_PROCESS_FIGURES))
    """The figures of its process, as the report has them."""
    requests: Counts | None = None
    """The requests that it sent, by HTTP method."""
    api_cpu: float = 0.0
    api_peak: int = 0
    api_requests: Counts = field(default_factory=dict)


_SETTINGS = ("nodes", "vms", "namespaces", "evacuate", "rate", "strategy", "external", "seed")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


def build(settings: Settings, figures: Measurements, costs: Costs, *, wall: float, restored: bool) -> dict[str, Any]:
    """The content of report.json. `wall`: seconds from the first VMIM until everything had ended."""
    tracks = figures.tracks
    count = max(1, len(tracks))
    succeeded = [track for track in tracks if track.phase == constants.PHASE_SUCCEEDED]
    began = min((track.began.at for track in tracks), default=0.0)
    end = max((track.phases[-1].at for track in succeeded), default=0.0)
    waits, overshoot, quota_writes = figures.waits(), figures.overshoot(), figures.quota_writes()
    refusals, after_raise = figures.refusals()
    writes = sum(n for name, n in costs.api_requests.items() if name.split()[0] in _WRITES)
    return {
        "migrations": len(tracks),
        "succeeded": len(succeeded),
        "failed": sum(track.phase == constants.PHASE_FAILED for track in tracks),
        "refused_before_raise": refusals - after_raise,
        "refused_after_raise": after_raise,
        "pending_quota_seconds": {
            "p50": round(percentile(waits, 0.5), 4),
            "p99": round(percentile(waits, 0.99), 4),
            "max": round(max(waits, default=0.0), 4),
        },
        "migrations_per_minute": round(60 * len(succeeded) / (end - began), 2) if end > began else 0.0,
        "quota_writes": quota_writes,
        "quota_writes_per_migration": round(quota_writes / count, 4),
        "requests_per_migration": _per_migration(costs.requests, count),
        "api_server_requests_per_migration": _per_migration(costs.api_requests, count),
        "overshoot": {"cpu_core_seconds": round(overshoot[0], 3), "memory_gib_seconds": round(overshoot[1] / GIB, 3)},
        "restored": restored,
        "headroom": costs.headroom,
        "api_server": {
            "cpu_seconds": round(costs.api_cpu, 2),
            "rss_peak_bytes": costs.api_peak,
            "writes_per_migration": round(writes / count, 4),
            "writes_per_second": round(writes / wall, 2) if wall else 0.0,
        },
        "wall_seconds": round(wall, 2),
        "settings": {name: getattr(settings, name) for name in _SETTINGS} | {"rate": settings.per_second},
    }


def _per_migration(requests: Counts | None, count: int) -> dict[str, float] | None:
    return None if requests is None else {name: round(n / count, 4) for name, n in requests.items()}


def table(report: dict[str, Any]) -> Table:
    grid = Table("measured", Column("value", justify="right"), title="headroom scale", title_justify="left")
    for name, value in rows(report):
        grid.add_row(name, value)
    return grid


def rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    waits, excess, process, api = (
        report[name] for name in ("pending_quota_seconds", "overshoot", "headroom", "api_server")
    )
    lines = [
        ("migrations", f"{report['migrations']}"),
        ("succeeded", f"{report['succeeded']}"),
        ("migrations a minute", f"{report['migrations_per_minute']:g}"),
        ("target pods refused before the raise", f"{report['refused_before_raise']}"),
        ("target pods refused after the raise", f"{report['refused_after_raise']}"),
        ("Pending because of quota, median", f"{waits['p50']:.3f} s"),
        ("… 99th percentile", f"{waits['p99']:.3f} s"),
        ("… max", f"{waits['max']:.3f} s"),
        ("overshoot, CPU", f"{excess['cpu_core_seconds']:.1f} core·s"),
        ("overshoot, memory", f"{excess['memory_gib_seconds']:.1f} GiB·s"),
        ("quota writes per migration", f"{report['quota_writes_per_migration']:.3f}"),
    ]
    requests = report["requests_per_migration"] or {}
    lines += [(f"headroom's requests per migration, {name}", f"{n:.3f}") for name, n in requests.items()]
    if process["cpu_seconds"] is not None:
        lines += [
            ("headroom's CPU", f"{process['cpu_seconds']:.2f} s"),
            ("headroom's memory, peak", f"{process['rss_peak_bytes'] / 1e6:.0f} MB"),
            ("headroom ready after", f"{process['ready_seconds']:.2f} s"),
            ("headroom's CPU when idle", f"{process['idle_cpu_percent']:.1f} % of a core"),
        ]
    lines += [
        ("API server's CPU", f"{api['cpu_seconds']:.1f} s"),
        ("API server's memory, peak", f"{api['rss_peak_bytes'] / 1e6:.0f} MB"),
        ("API server's writes per migration", f"{api['writes_per_migration']:.1f}"),
        ("API server's writes per second", f"{api['writes_per_second']:.0f}"),
        ("first VMIM → all ended", f"{report['wall_seconds']:.1f} s"),
    ]
    return lines


# The page

_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:1000px}td{padding:2px 1em 2px 0}"
    "td+td{text-align:right}svg{display:block;margin:1em 0}"
)
_WIDTH, _ROWS = 100, 10


def page(report: dict[str, Any], moments: Sequence[Moment], waits: Sequence[float]) -> str:
    """Returns one HTML file; nothing is loaded from anywhere."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows(report)
    )
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    charts = plot.svg(Group(*_charts(report, moments, waits)), "headroom scale", _WIDTH)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>headroom scale</title>'
        f"<style>{_STYLE}</style><h1>headroom scale</h1><p>{html.escape(settings)}</p>"
        f"<table>{cells}</table>{charts}</html>\n"
    )


def _charts(report: dict[str, Any], moments: Sequence[Moment], waits: Sequence[float]) -> Iterator[Text]:
    points = [(100 * (rank + 1) / len(waits), wait, wait) for rank, wait in enumerate(sorted(waits))]
    yield from _over_time("migrations that succeeded", moments, lambda m: (m.succeeded, m.succeeded))
    yield from _over_time(
        "migrations that are refused and have no target pod", moments, lambda m: (m.pending, m.pending)
    )
    yield from _chart("seconds in Pending because of quota, by percentile", points, unit="%")
    yield from _over_time("GiB that all quotas allow", moments, lambda m: (m.allowed / GIB, m.used / GIB), "used")
    if report["headroom"]["cpu_seconds"] is not None:
        yield from _over_time("headroom: CPU seconds", moments, lambda m: (m.cpu, m.cpu))
        yield from _over_time("headroom: resident memory, MB", moments, lambda m: (m.rss / 1e6, m.rss / 1e6))


def _over_time(
    line: str, moments: Sequence[Moment], read: Callable[[Moment], tuple[float, float]], area: str = ""
) -> Iterator[Text]:
    return _chart(line, [(moment.time - moments[0].time, *read(moment)) for moment in moments], area)


def _chart(line: str, points: Sequence[tuple[float, float, float]], area: str = "", unit: str = "s") -> Iterator[Text]:
    """Yields two values over time: the first as a line, the second as an area, which has a name unless it is the
    line's."""
    samples = [Sample(position, *(Quantity(round(NANOS * value)) for value in values)) for position, *values in points]
    most = max((sample.hard for sample in samples), default=ZERO)
    scale = Scale(max((sample.time for sample in samples), default=0.0) or 1.0, _WIDTH - plot.GUTTER - 1)
    series = plot.columns(samples, scale, scale.seconds)
    yield Text(f"{'':<{plot.GUTTER}} ─ {line}", plot.HARD).append(f"  █ {area}" if area else "", plot.USED)
    ticks = {0: most.nanos, _ROWS // 2: most.nanos / 2, _ROWS - 1: 0}
    values = {row: f"{value / NANOS:,.4g}" for row, value in ticks.items()}
    yield from plot.chart(series, top=Quantity(most.nanos * 11 // 10), height=_ROWS).rows(ticks=values)
    yield from plot.axis(scale, unit).rows()
    yield Text()
