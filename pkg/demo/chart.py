"""One resource over time: what is used as an area, what is allowed as a line, the base as a dashed one."""

from __future__ import annotations

from collections.abc import Sequence

from pkg.demo import palette
from pkg.demo.canvas import Canvas
from pkg.demo.timeline import Column, Plateau, plateaus
from pkg.util.quantity import Quantity

_EIGHTHS = " ▁▂▃▄▅▆▇"
_DASH = "╌"
# By where a line leaves the cell: left, right, up, down.
_BOXES = {
    "lr": "─",
    "lu": "╯",
    "ld": "╮",
    "ru": "╰",
    "rd": "╭",
    "ud": "│",
    "lud": "┤",
    "rud": "├",
    "lru": "┴",
    "lrd": "┬",
    "lrud": "┼",
    "l": "─",
    "r": "─",
    "u": "╵",
    "d": "╷",
}


def chart(
    found: Sequence[Column | None], *, base: Quantity, top: int, height: int, smooth: bool = True
) -> Canvas:
    """The chart of `found`, a column each, from 0 to `top` (in thousandths, as `Quantity.milli_value`).

    `smooth`: heights to an eighth of a row, where block characters meet without a gap (on terminals).
    """
    canvas = Canvas(len(found), height)
    levels = _Levels(top, height)
    for index, column in enumerate(found):
        if column is not None:
            _fill(canvas, index, _area(column, levels, smooth=smooth))
    for index in range(len(found)):
        if canvas.is_free(index, levels.row(base), 1):
            canvas.put(index, levels.row(base), _DASH, palette.BASE)
    _line(canvas, found, levels)
    _label(canvas, found, levels, base)
    return canvas


class _Levels:
    """Quantities as heights."""

    def __init__(self, top: int, height: int) -> None:
        self._top = max(top, 1)
        self._height = height

    def exact(self, value: Quantity) -> float:
        """Rows above the bottom."""
        return value.milli_value() / self._top * self._height

    def rows_below(self, value: Quantity) -> int:
        """How many rows lie below the one that a value lies in."""
        return min(int(self.exact(value)), self._height - 1)

    def row(self, value: Quantity) -> int:
        """The canvas row in which a value lies."""
        return self._height - 1 - self.rows_below(value)


def _area(column: Column, levels: _Levels, *, smooth: bool) -> float:
    """The area's height in rows. It reaches into the line's row only where more is used than allowed."""
    level = levels.exact(column.used)
    if column.used <= column.hard:
        level = min(level, float(levels.rows_below(column.hard)))
    return level if smooth else float(round(level))


def _fill(canvas: Canvas, column: int, level: float) -> None:
    full = int(level)
    for above in range(full):
        canvas.paint(column, canvas.height - 1 - above, palette.USED)
    eighths = int((level - full) * len(_EIGHTHS))
    if eighths:
        canvas.put(column, canvas.height - 1 - full, _EIGHTHS[eighths], palette.USED)


def _line(canvas: Canvas, found: Sequence[Column | None], levels: _Levels) -> None:
    """From column to column; what happened within one is drawn as a stroke down or up."""
    before: int | None = None
    for index, column in enumerate(found):
        if column is None:
            before = None
            continue
        after = levels.row(column.hard)
        came = after if before is None else before
        highest = min(came, after, levels.row(column.high))
        lowest = max(came, after, levels.row(column.low))
        for row in range(highest, lowest + 1):
            canvas.put(index, row, _box(row, came, after, highest, lowest), palette.HARD)
        before = after


def _box(row: int, came: int, after: int, highest: int, lowest: int) -> str:
    ways = [(row == came, "l"), (row == after, "r"), (row > highest, "u"), (row < lowest, "d")]
    return _BOXES["".join(way for open_, way in ways if open_)]


def _label(canvas: Canvas, found: Sequence[Column | None], levels: _Levels, base: Quantity) -> None:
    """The limits that are not the base above their line, what is used inside the area: where there is room."""
    for plateau in plateaus(found, lambda column: column.hard):
        if plateau.value != base:
            _label_limit(canvas, plateau, levels.row(plateau.value))
    for plateau in plateaus(found, lambda column: column.used):
        _label_use(canvas, plateau, levels.row(plateau.value))


def _label_use(canvas: Canvas, plateau: Plateau, top: int) -> None:
    text = f" {plateau.value}"
    for row in (top, top + 1, top + 2) if len(text) < plateau.length else ():
        painted = canvas.is_painted(plateau.first, row, len(text), palette.USED)
        if painted and canvas.is_free(plateau.first, row, len(text)):
            canvas.write(plateau.first, row, text, palette.ON_BAR)
            return


def _label_limit(canvas: Canvas, plateau: Plateau, row: int) -> None:
    text = str(plateau.value)
    for shift, above in ((0, 1), (0, 2), (2, 1), (2, 2)):
        start = plateau.first + shift
        before = max(0, start - 1)
        if canvas.is_free(before, row - above, start + len(text) - before):
            canvas.write(start, row - above, text, f"bold {palette.HARD}")
            return
