"""The run's figures as report.json, as a table and as a page with plots. docs/scale.md says what each one is."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Column, Table

from lab.counters import Counts
from lab.plot import Axis, plot
from lab.scale.measurements import Figures, Measurements, percentile
from lab.scale.plan import Settings
from pkg.util import constants

GIB = 1024.0**3


@dataclass(frozen=True, slots=True)
class Moment:
    """A sample, one a second. Amounts are of all namespaces, `rss` is headroom's in bytes."""

    at: float
    succeeded: int
    pending: int
    allowed: Figures
    used: Figures
    cpu: float
    rss: int


_OWN = ("cpu_seconds", "rss_peak_bytes", "ready_seconds", "idle_cpu_percent")


@dataclass(slots=True)
class Costs:
    """What was measured beside the watches. None: not known, as with --external."""

    headroom: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(_OWN))
    """Of its process, as the report has it."""
    requests: Counts | None = None
    """It sent, by HTTP method."""
    api_cpu: float = 0.0
    api_peak: int = 0
    api_requests: Counts = field(default_factory=dict)


_SETTINGS = ("nodes", "vms", "namespaces", "evacuate", "rate", "strategy", "external", "seed")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


def build(settings: Settings, found: Measurements, costs: Costs, *, wall: float, restored: bool) -> dict[str, Any]:
    """The content of report.json. `wall`: seconds from the first VMIM until everything had ended."""
    tracks = found.tracks
    count = max(1, len(tracks))
    succeeded = [track for track in tracks if track.phase == constants.PHASE_SUCCEEDED]
    began = min((track.began.at for track in tracks), default=0.0)
    last = max((track.phases[-1].at for track in succeeded), default=0.0)
    waits, over, quota_writes = found.waits(), found.overshoot(), found.quota_writes()
    refused, after = found.refusals()
    writes = sum(n for name, n in costs.api_requests.items() if name.split()[0] in _WRITES)
    return {
        "migrations": len(tracks),
        "succeeded": len(succeeded),
        "failed": sum(track.phase == constants.PHASE_FAILED for track in tracks),
        "refused_before_raise": refused - after,
        "refused_after_raise": after,
        "pending_quota_seconds": {
            "p50": round(percentile(waits, 0.5), 4),
            "p99": round(percentile(waits, 0.99), 4),
            "max": round(max(waits, default=0.0), 4),
        },
        "migrations_per_minute": round(60 * len(succeeded) / (last - began), 2) if last > began else 0.0,
        "quota_writes": quota_writes,
        "quota_writes_per_migration": round(quota_writes / count, 4),
        "requests_per_migration": _each(costs.requests, count),
        "api_server_requests_per_migration": _each(costs.api_requests, count),
        "overshoot": {"cpu_core_seconds": round(over[0], 3), "memory_gib_seconds": round(over[1] / GIB, 3)},
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


def _each(requests: Counts | None, count: int) -> dict[str, float] | None:
    return None if requests is None else {name: round(n / count, 4) for name, n in requests.items()}


def table(report: dict[str, Any]) -> Table:
    made = Table("measured", Column("value", justify="right"), title="headroom scale", title_justify="left")
    for name, value in rows(report):
        made.add_row(name, value)
    return made


def rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    waits, over, own, api = (report[name] for name in ("pending_quota_seconds", "overshoot", "headroom", "api_server"))
    lines = [
        ("migrations", f"{report['migrations']}"),
        ("succeeded", f"{report['succeeded']}"),
        ("migrations a minute", f"{report['migrations_per_minute']:g}"),
        ("target pods refused before the raise", f"{report['refused_before_raise']}"),
        ("target pods refused after the raise", f"{report['refused_after_raise']}"),
        ("Pending because of quota, median", f"{waits['p50']:.3f} s"),
        ("… 99th percentile", f"{waits['p99']:.3f} s"),
        ("… max", f"{waits['max']:.3f} s"),
        ("overshoot, CPU", f"{over['cpu_core_seconds']:.1f} core·s"),
        ("overshoot, memory", f"{over['memory_gib_seconds']:.1f} GiB·s"),
        ("quota writes per migration", f"{report['quota_writes_per_migration']:.3f}"),
    ]
    requests = report["requests_per_migration"] or {}
    lines += [(f"headroom's requests per migration, {name}", f"{n:.3f}") for name, n in requests.items()]
    if own["cpu_seconds"] is not None:
        lines += [
            ("headroom's CPU", f"{own['cpu_seconds']:.2f} s"),
            ("headroom's memory, peak", f"{own['rss_peak_bytes'] / 1e6:.0f} MB"),
            ("headroom ready after", f"{own['ready_seconds']:.2f} s"),
            ("headroom's CPU when idle", f"{own['idle_cpu_percent']:.1f} % of a core"),
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
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:700px}td{padding:2px 1em 2px 0}"
    "td+td{text-align:right}svg{display:block;margin:1em 0}"
)


def page(report: dict[str, Any], moments: Sequence[Moment], waits: Sequence[float]) -> str:
    """One HTML file; nothing is loaded from anywhere."""
    began = moments[0].at if moments else 0.0
    ranked = sorted(waits)

    def over_time(read: Callable[[Moment], float]) -> list[tuple[float, float]]:
        return [(moment.at - began, read(moment)) for moment in moments]

    plots = {
        "Migrations over time (s)": {
            "succeeded": over_time(lambda m: m.succeeded),
            "refused, no target pod yet": over_time(lambda m: m.pending),
        },
        "Seconds in Pending because of quota, by percentile": {
            "seconds": [(100 * (rank + 1) / len(ranked), wait) for rank, wait in enumerate(ranked)]
        },
        "Memory of all quotas (GiB) over time (s)": {
            "allowed": over_time(lambda m: m.allowed[1] / GIB),
            "counted": over_time(lambda m: m.used[1] / GIB),
        },
    }
    if report["headroom"]["cpu_seconds"] is not None:
        plots["headroom: CPU seconds over time (s)"] = {"CPU": over_time(lambda m: m.cpu)}
        plots["headroom: resident memory (MB) over time (s)"] = {"resident": over_time(lambda m: m.rss / 1e6)}
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows(report)
    )
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>headroom scale</title>'
        f"<style>{_STYLE}</style><h1>headroom scale</h1><p>{html.escape(settings)}</p>"
        f"<table>{cells}</table>{''.join(_plot(title, lines) for title, lines in plots.items())}</html>\n"
    )


def _plot(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    points = [point for line in lines.values() for point in line]
    x, y = (Axis.to(max((point[axis] for point in points), default=0.0)) for axis in (0, 1))
    return plot(title, lines, x, y)
