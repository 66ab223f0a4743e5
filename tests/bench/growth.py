"""Measures how headroom's needs grow with the number of VMs: docs/scale.svg and the slopes, from several reports.

`python -m tests.bench.growth REPORT.json...`, each of another size.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.plot import BARS_WIDTH, bars, svg

TARGET = "n log n"
PICTURE = Path(__file__).parents[2] / "docs" / "scale.svg"
NEEDS: dict[str, Callable[[dict[str, Any]], float]] = {
    "memory": lambda report: report["headroom"]["rss_peak_bytes"],
    "time to ready": lambda report: report["headroom"]["ready_seconds"],
    "CPU per migration": lambda report: report["headroom"]["cpu_seconds"] / report["migrations"],
    TARGET: lambda report: report["settings"]["vms"] * math.log(report["settings"]["vms"]),
}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of n that fits best: least squares over the logarithms."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*points, strict=True))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def picture(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draws by the number of VMs each need as a multiple of what it is for the fewest."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for name, (smallest, *larger) in lines.items():
        for size, value in larger:
            groups.setdefault(f"{size:,.0f} VMs", []).append((name, value / smallest[1]))
    fewest = next(iter(lines.values()))[0][0]
    return svg(bars(groups, NEEDS.keys() - {TARGET}), f"times what {fewest:,.0f} VMs need", BARS_WIDTH)


def main(paths: Sequence[str]) -> None:
    """Write the picture, and print each slope."""
    reports = [json.loads(Path(path).read_text()) for path in paths]
    reports.sort(key=lambda report: int(report["settings"]["vms"]))
    lines = {name: [(report["settings"]["vms"], need(report)) for report in reports] for name, need in NEEDS.items()}
    PICTURE.write_text(picture(lines))
    for name, line in lines.items():
        print(f"{name}: n to the power of {slope(line):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
