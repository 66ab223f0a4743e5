"""Lines over two axes, and bars, as SVG pictures that are readable on light and dark ground and load nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 60, 30
_WIDE, _HIGH = _WIDTH - _LEFT - 40, _HEIGHT - _TOP - 50
_BAR, _BAR_HIGH, _BAR_LEFT = 300, 18, 170
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9aa5b1")
_STYLE = "text{font:12px sans-serif}text:not([fill]){fill:#6b7785}"


@dataclass(frozen=True, slots=True)
class Axis:
    """From the first tick to the last, which differ; a logarithmic one has ticks above 0."""

    ticks: Sequence[float]
    log: bool = False

    @classmethod
    def to(cls, most: float) -> Axis:
        """From 0 to the largest value, 1 where there is none."""
        return cls((0.0, most or 1.0))

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the beginning, where what is below it lies too, 1 at the end."""
        first, last = self.ticks[0], self.ticks[-1]
        if self.log:
            return math.log(max(first, value) / first) / math.log(last / first)
        return (max(first, value) - first) / (last - first)


def plot(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis) -> str:
    """An SVG element."""
    body = [f'<text x="{_LEFT}" y="16">{escape(title)}</text>']
    for tick in y.ticks:
        level = _level(y, tick)
        body.append(f'<path d="M{_LEFT} {level:.0f}h{_WIDE}" stroke="#9aa5b1" stroke-opacity=".3"/>')
        body.append(f'<text x="{_LEFT - 8}" y="{level + 4:.0f}" text-anchor="end">{_figure(tick)}</text>')
    for tick in x.ticks:
        column = _LEFT + x.share(tick) * _WIDE
        body.append(f'<text x="{column:.0f}" y="{_HEIGHT - 30}" text-anchor="middle">{_figure(tick)}</text>')
    for number, ((name, line), colour) in enumerate(zip(lines.items(), _COLOURS, strict=False)):
        points = " ".join(f"{_LEFT + x.share(at) * _WIDE:.1f},{_level(y, value):.1f}" for at, value in line)
        body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        left = _LEFT + _WIDE / len(_COLOURS) * number
        body.append(f'<text x="{left:.0f}" y="{_HEIGHT - 6}" fill="{colour}">{escape(name)}</text>')
    return _svg(body, f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"')


def bars(groups: Mapping[str, Sequence[tuple[str, float]]], ours: str) -> str:
    """An SVG element: each group's bars by name, as parts of its longest; those named `ours` in a colour."""
    body: list[str] = []
    y = 8
    for title, group in groups.items():
        y += 24
        body.append(f'<text x="8" y="{y}" font-weight="bold">{escape(title)}</text>')
        most = max(value for _, value in group) or 1.0
        for name, value in group:
            y += _BAR_HIGH
            width = max(1.0, _BAR * value / most)
            colour = _COLOURS[0] if name == ours else _COLOURS[-1]
            body.append(f'<text x="{_BAR_LEFT - 6}" y="{y}" text-anchor="end">{escape(name)}</text>')
            body.append(f'<rect x="{_BAR_LEFT}" y="{y - 10}" width="{width:.0f}" height="12" fill="{colour}"/>')
            body.append(f'<text x="{_BAR_LEFT + width + 6:.0f}" y="{y}">{value:.3g}</text>')
    return _svg(body, f'width="560" height="{y + 16}"')


def _svg(body: Sequence[str], size: str) -> str:
    style = f"<style>{_STYLE}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(body)}</svg>\n'


def _level(axis: Axis, value: float) -> float:
    return _TOP + (1 - axis.share(value)) * _HIGH


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
