"""How headroom's needs grow with the number of VMs: docs/scale.svg and the slopes, from several `headroom scale` runs.

`python -m tests.bench.growth REPORT.json...`, each of another size.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[2] / "docs" / "scale.svg"
NEEDS: dict[str, Callable[[dict[str, Any]], float]] = {
    "memory": lambda report: report["headroom"]["rss_peak_bytes"],
    "time to ready": lambda report: report["headroom"]["ready_seconds"],
    "CPU per migration": lambda report: report["headroom"]["cpu_seconds"] / report["migrations"],
    "n log n": lambda report: report["settings"]["vms"] * math.log(report["settings"]["vms"]),
}
_COLOURS = ("#1f77b4", "#2ca02c", "#d62728", "#9aa5b1")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 50, 30
_RANGE = 20.0
"""The largest value shown, as a multiple of that of the smallest size."""


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of n that fits best: least squares over the logarithms."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*points, strict=True))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def plot(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Both axes logarithmic; each line as a multiple of its first value."""
    sizes = sorted({size for line in lines.values() for size, _ in line})
    wide, high = _WIDTH - _LEFT - 40, _HEIGHT - _TOP - 40

    def place(size: float, value: float) -> tuple[float, float]:
        across = math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])
        up = math.log(max(1.0, value)) / math.log(_RANGE)
        return _LEFT + across * wide, _TOP + (1 - up) * high

    body = [f'<text x="{_LEFT}" y="16">times what {sizes[0]:,.0f} VMs need, by the number of VMs</text>']
    for multiple in (1, 2, 5, 10, 20):
        _, y = place(sizes[0], multiple)
        body.append(f'<path d="M{_LEFT} {y:.0f}h{wide}" stroke="#9aa5b1" stroke-opacity=".3"/>')
        body.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{multiple}</text>')
    body += [
        f'<text x="{place(size, 1)[0]:.0f}" y="{_HEIGHT - 20}" text-anchor="middle">{size:,.0f}</text>'
        for size in sizes
    ]
    for number, ((name, line), colour) in enumerate(zip(lines.items(), _COLOURS, strict=True)):
        first = line[0][1]
        points = " ".join("{:.1f},{:.1f}".format(*place(size, value / first)) for size, value in line)
        body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        body.append(
            f'<text x="{_LEFT + 150 * number}" y="{_HEIGHT - 4}" fill="{colour}">{escape(name)}</text>'
        )
    style = "text{font:12px sans-serif}text:not([fill]){fill:#6b7785}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">'
        f"<style>{style}</style>{''.join(body)}</svg>\n"
    )


def main(paths: Sequence[str]) -> None:
    """Write the picture, and print each slope."""
    reports = [json.loads(Path(path).read_text()) for path in paths]
    reports.sort(key=lambda report: int(report["settings"]["vms"]))
    lines = {
        name: [(report["settings"]["vms"], need(report)) for report in reports]
        for name, need in NEEDS.items()
    }
    PICTURE.write_text(plot(lines))
    for name, line in lines.items():
        print(f"{name}: n to the power of {slope(line):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
