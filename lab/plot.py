"""Pictures made of a terminal's cells, shown there or written as SVG: an amount and its limit over time, bars."""

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.table import Column as TableColumn
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from kubeloop.api.quantity import Quantity

# Colours, all of which can be told apart on a dark and on a light terminal.
USED, HARD, DIM, TITLE = "#2f6f9f", "#f0a040", "#8a94a0", "bold"
GOOD, BAD = "#57b36a", "#e5534b"
ON_BAR = "#ffffff"

GUTTER = 13
"""The columns left of a chart, for labels."""
_BLANK = " "
_TICKS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of `seconds` on `columns` columns."""

    seconds: float
    columns: int

    def column(self, moment: float) -> int:
        """The column in which a moment lies; the last one for what comes after."""
        return min(max(0, int(moment / self.seconds * self.columns)), self.columns - 1)


class Canvas:
    """A canvas of `width` × `height` cells; row 0 is the top. What falls outside is cut off."""

    def __init__(self, width: int, height: int = 1) -> None:
        self.width = width
        self.height = height
        # A cell is its character, the character's colour, and the colour behind it.
        self._cells = [[(_BLANK, "", "")] * width for _ in range(height)]

    def write(self, column: int, row: int, text: str, style: str = "") -> None:
        """Writes characters in a colour; the colour behind them stays."""
        for offset, char in enumerate(text, column):
            if self._inside(offset, row):
                self._cells[row][offset] = (char, style, self._cells[row][offset][2])

    def paint(self, column: int, row: int, colour: str) -> None:
        """Sets the colour behind a cell's character."""
        if self._inside(column, row):
            self._cells[row][column] = (*self._cells[row][column][:2], colour)

    def is_free(self, column: int, row: int, length: int = 1) -> bool:
        """Reports whether a run of cells lies inside and shows no character yet."""
        inside = self._inside(column, row) and self._inside(column + length - 1, row)
        return inside and all(char == _BLANK for char, _, _ in self._cells[row][column : column + length])

    def is_painted(self, column: int, row: int, length: int, colour: str) -> bool:
        """Reports whether all of a run of cells has this colour behind it."""
        cells = self._cells[row][column : column + length] if self._inside(column, row) else [("", "", "")]
        return all(back == colour for _, _, back in cells)

    def rows(self, label: str = "", ticks: Mapping[int, str] | None = None) -> Iterator[Text]:
        """Yields the lines of text; `label` stands left of each, and of some, by their number, a value of the axis."""
        for number, cells in enumerate(self._cells):
            line = Text(f"{label:<{GUTTER}} ", DIM, no_wrap=True)
            if ticks is not None:
                line = Text(f"{ticks.get(number, ''):>{GUTTER - 1}} ┤", DIM, no_wrap=True)
            for char, fore, back in cells:
                line.append(char, f"{fore} on {back}".strip() if back else fore)
            yield line

    def _inside(self, column: int, row: int) -> bool:
        return 0 <= column < self.width and 0 <= row < self.height


# ---- an amount and its limit over time


class Sample(NamedTuple):
    """The limit and the usage from a time on."""

    time: float
    hard: Quantity
    used: Quantity


class Column(NamedTuple):
    """A span of time: the least and the most that was allowed in it, and where it ended."""

    low: Quantity
    high: Quantity
    hard: Quantity
    used: Quantity


def columns(samples: Sequence[Sample], scale: Scale, now: float) -> list[Column | None]:
    """A Column for each of the scale's; None before the first sample and after `now`."""
    series: list[Column | None] = []
    for index in range(scale.columns):
        begin, end = (number * scale.seconds / scale.columns for number in (index, index + 1))
        samples_here = [sample for sample in samples if begin <= sample.time < end]
        samples_here = [sample for sample in samples if sample.time < begin][-1:] + samples_here
        hard = [sample.hard for sample in samples_here]
        is_outside = not hard or index > scale.column(now)
        series.append(None if is_outside else Column(min(hard), max(hard), hard[-1], samples_here[-1].used))
    return series


class _Plateau(NamedTuple):
    """A value that stood from column `first` on, for `length` columns."""

    start: int
    length: int
    value: Quantity


def _plateaus(values: Iterable[Quantity | None]) -> Iterator[_Plateau]:
    start = 0
    for value, run in groupby(values):
        length = len(list(run))
        if value is not None:
            yield _Plateau(start, length, value)
        start += length


_DASH = "╌"
_BOXES = " ───╵╯╰┴╷╮╭┬│┤├┼"
"""The characters of a line by where it leaves the cell: 1 left, 2 right, 4 up, 8 down."""


def chart(series: Sequence[Column | None], *, top: Quantity, height: int, base: Quantity | None = None) -> Canvas:
    """Draws `series` from 0 to `top`: the usage as an area, the limit as a line. With a `base`, that is a dashed line,
    and other values are labelled."""
    canvas = Canvas(len(series), height)
    levels = _Levels(max(top.nanos, 1), height)
    for index, column in enumerate(series):
        for above in range(levels.area(column) if column else 0):
            canvas.paint(index, height - 1 - above, USED)
        if base is not None and canvas.is_free(index, levels.row(base)):
            canvas.write(index, levels.row(base), _DASH, DIM)
    _line(canvas, series, levels)
    if base is not None:
        for plateau in _plateaus(column and column.hard for column in series):
            if plateau.value != base:
                _label_limit(canvas, plateau, levels.row(plateau.value))
        for plateau in _plateaus(column and column.used for column in series):
            _label_use(canvas, plateau, levels.row(plateau.value))
    return canvas


class _Levels(NamedTuple):
    """The heights of quantities."""

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
        """Returns the rows above the bottom."""
        return value.nanos / self.top * self.height


def _line(canvas: Canvas, series: Sequence[Column | None], levels: _Levels) -> None:
    """Draws the limit from column to column; a change within one column is a stroke down or up."""
    previous_row: int | None = None
    for index, column in enumerate(series):
        if column is None:
            previous_row = None
            continue
        current_row = levels.row(column.hard)
        start_row = current_row if previous_row is None else previous_row
        highest = min(start_row, current_row, levels.row(column.high))
        lowest = max(start_row, current_row, levels.row(column.low))
        for row in range(highest, lowest + 1):
            ways = (row == start_row) + 2 * (row == current_row) + 4 * (row > highest) + 8 * (row < lowest)
            canvas.write(index, row, _BOXES[ways], HARD)
        previous_row = current_row


def _label_limit(canvas: Canvas, plateau: _Plateau, row: int) -> None:
    """A limit that is not the base above its line, where there is room."""
    text = str(plateau.value)
    for shift, above in ((0, 1), (0, 2), (2, 1), (2, 2)):
        start = plateau.start + shift
        left = max(0, start - 1)
        if canvas.is_free(left, row - above, start + len(text) - left):
            canvas.write(start, row - above, text, f"bold {HARD}")
            return


def _label_use(canvas: Canvas, plateau: _Plateau, top: int) -> None:
    """Writes the usage inside the area, where there is room."""
    text = f" {plateau.value}"
    for row in (top, top + 1, top + 2) if len(text) < plateau.length else ():
        is_painted = canvas.is_painted(plateau.start, row, len(text), USED)
        if is_painted and canvas.is_free(plateau.start, row, len(text)):
            canvas.write(plateau.start, row, text, ON_BAR)
            return


def axis(scale: Scale, unit: str = "s") -> Canvas:
    canvas = Canvas(scale.columns)
    step = next((tick for tick in _TICKS if scale.seconds / tick <= 8), _TICKS[-1])
    for tick in range(0, int(scale.seconds) + 1, step):
        canvas.write(scale.column(tick), 0, f"│{tick}" if tick else f"│0 {unit}", DIM)
    return canvas


# ---- values side by side

BARS_WIDTH = 90
_LONGEST = 45
_LINE = "▆"


def bars(groups: Mapping[str, Sequence[tuple[str, float]]], own_names: Collection[str]) -> Table:
    """Returns each group's bars by name, as parts of its longest; those of `own_names` in a colour."""
    table = Table.grid(TableColumn(justify="right"), TableColumn(min_width=_LONGEST), TableColumn(), padding=(0, 1))
    for title, group in groups.items():
        table.add_row("", Text(title, TITLE))
        most = max(value for _, value in group) or 1.0
        for name, value in group:
            line = Text(_LINE * max(1, round(_LONGEST * value / most)), USED if name in own_names else DIM)
            table.add_row(name, line, f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
        table.add_row()
    return table


# ---- SVG

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


def svg(picture: RenderableType, title: str, width: int) -> str:
    """An SVG element that shows the picture in so many columns, and loads nothing."""
    # NO_COLOR, COLUMNS and TERM are about the terminal, not about the picture.
    plain: dict[str, Any] = {"file": io.StringIO(), "_environ": {}, "force_terminal": True}
    console = Console(record=True, width=width, color_system="truecolor", **plain)
    console.print(picture)
    return console.export_svg(title=title, theme=_THEME, code_format=_FORMAT, unique_id="headroom")
