"""What pictures are drawn on, and one resource over time: what is used as an area, what is allowed as a line, the base
as a dashed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rich.text import Text

from kubeloop.api.quantity import Quantity
from lab.record import Amounts, QuotaVersion

# Colours, all of which can be told apart on a dark and on a light terminal.
USED, HARD, DIM, TITLE = "#2f6f9f", "#f0a040", "#8a94a0", "bold"
GOOD, BAD = "#57b36a", "#e5534b"
ON_BAR = "#ffffff"

Resource = Callable[[Amounts], Quantity]
"""Which of the two a chart is about."""
BLANK = " "


class Column(NamedTuple):
    """A span of time: the least and the most that was allowed in it, and where it ended."""

    low: Quantity
    high: Quantity
    hard: Quantity
    used: Quantity


@dataclass(frozen=True, slots=True)
class Scale:
    """`seconds` of time on `columns` columns."""

    seconds: float
    columns: int

    def column(self, at: float) -> int:
        """The column in which a moment lies; the last one for what comes after."""
        return min(max(0, int(at / self.seconds * self.columns)), self.columns - 1)


class Canvas:
    """`width` × `height` cells; row 0 is the top. What falls outside is cut off."""

    def __init__(self, width: int, height: int = 1) -> None:
        self.width = width
        self.height = height
        # Of each cell: its character, that one's colour, and what is behind it.
        self._cells = [[(BLANK, "", "")] * width for _ in range(height)]

    def write(self, column: int, row: int, text: str, style: str = "") -> None:
        """Characters and their colour; what is painted behind them stays."""
        for offset, char in enumerate(text, column):
            if self._inside(offset, row):
                self._cells[row][offset] = (char, style, self._cells[row][offset][2])

    def paint(self, column: int, row: int, colour: str) -> None:
        """What is behind a cell's character."""
        if self._inside(column, row):
            self._cells[row][column] = (*self._cells[row][column][:2], colour)

    def is_free(self, column: int, row: int, length: int = 1) -> bool:
        """Whether a run of cells lies inside and shows no character yet."""
        inside = self._inside(column, row) and self._inside(column + length - 1, row)
        return inside and all(char == BLANK for char, _, _ in self._cells[row][column : column + length])

    def is_painted(self, column: int, row: int, length: int, colour: str) -> bool:
        """Whether all of a run of cells has this colour behind it."""
        cells = self._cells[row][column : column + length] if self._inside(column, row) else [("", "", "")]
        return all(back == colour for _, _, back in cells)

    def lines(self) -> Iterator[Text]:
        for cells in self._cells:
            line = Text(no_wrap=True, end="")
            for char, fore, back in cells:
                line.append(char, f"{fore} on {back}".strip() if back else fore)
            yield line

    def _inside(self, column: int, row: int) -> bool:
        return 0 <= column < self.width and 0 <= row < self.height


def columns(versions: Sequence[QuotaVersion], resource: Resource, scale: Scale, now: float) -> list[Column | None]:
    """A Column for each of the scale's; None before the first version and after `now`."""
    found: list[Column | None] = []
    for index in range(scale.columns):
        begin, end = (number * scale.seconds / scale.columns for number in (index, index + 1))
        here = [version for version in versions if begin <= version.at < end]
        here = [version for version in versions if version.at < begin][-1:] + here
        hard = [resource(version.hard) for version in here]
        over = not hard or index > scale.column(now)
        found.append(None if over else Column(min(hard), max(hard), hard[-1], resource(here[-1].used)))
    return found


class Plateau(NamedTuple):
    """A value that stood from column `first` on, for `length` columns."""

    first: int
    length: int
    value: Quantity


def plateaus(values: Iterable[Quantity | None]) -> Iterator[Plateau]:
    first = 0
    for value, run in groupby(values):
        length = len(list(run))
        if value is not None:
            yield Plateau(first, length, value)
        first += length


_DASH = "╌"
_BOXES = " ───╵╯╰┴╷╮╭┬│┤├┼"
"""By where a line leaves the cell: 1 left, 2 right, 4 up, 8 down."""


def chart(found: Sequence[Column | None], *, base: Quantity, top: int, height: int) -> Canvas:
    """The chart of `found`, a column each, from 0 to `top` (in thousandths, as `Quantity.milli_value`)."""
    canvas = Canvas(len(found), height)
    levels = _Levels(max(top, 1), height)
    for index, column in enumerate(found):
        for above in range(levels.area(column) if column else 0):
            canvas.paint(index, height - 1 - above, USED)
        if canvas.is_free(index, levels.row(base)):
            canvas.write(index, levels.row(base), _DASH, DIM)
    _line(canvas, found, levels)
    for plateau in plateaus(column and column.hard for column in found):
        if plateau.value != base:
            _label_limit(canvas, plateau, levels.row(plateau.value))
    for plateau in plateaus(column and column.used for column in found):
        _label_use(canvas, plateau, levels.row(plateau.value))
    return canvas


class _Levels(NamedTuple):
    """Quantities as heights."""

    top: int
    height: int

    def row(self, value: Quantity) -> int:
        """The canvas row in which a value lies."""
        return self.height - 1 - min(int(self._exact(value)), self.height - 1)

    def area(self, column: Column) -> int:
        """The area's height in rows. It reaches into the line's row only where more is used than allowed."""
        level = self._exact(column.used)
        if column.used <= column.hard:
            level = min(level, self.height - 1 - self.row(column.hard))
        return round(level)

    def _exact(self, value: Quantity) -> float:
        """Rows above the bottom."""
        return value.milli_value() / self.top * self.height


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
            ways = (row == came) + 2 * (row == after) + 4 * (row > highest) + 8 * (row < lowest)
            canvas.write(index, row, _BOXES[ways], HARD)
        before = after


def _label_limit(canvas: Canvas, plateau: Plateau, row: int) -> None:
    """A limit that is not the base above its line, where there is room."""
    text = str(plateau.value)
    for shift, above in ((0, 1), (0, 2), (2, 1), (2, 2)):
        start = plateau.first + shift
        before = max(0, start - 1)
        if canvas.is_free(before, row - above, start + len(text) - before):
            canvas.write(start, row - above, text, f"bold {HARD}")
            return


def _label_use(canvas: Canvas, plateau: Plateau, top: int) -> None:
    """What is used inside the area, likewise."""
    text = f" {plateau.value}"
    for row in (top, top + 1, top + 2) if len(text) < plateau.length else ():
        painted = canvas.is_painted(plateau.first, row, len(text), USED)
        if painted and canvas.is_free(plateau.first, row, len(text)):
            canvas.write(plateau.first, row, text, ON_BAR)
            return
