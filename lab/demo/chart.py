"""One resource over time: what is used as an area, what is allowed as a line, the base as a dashed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from kubeloop.api.quantity import Quantity
from lab.demo import palette
from lab.record import Amounts, QuotaVersion

Resource = Callable[[Amounts], Quantity]
"""Which of the two a chart is about."""


@dataclass(frozen=True, slots=True)
class Column:
    """A span of time: the least and the most that was allowed in it, and where it ended."""

    low: Quantity
    high: Quantity
    hard: Quantity
    used: Quantity


@dataclass(frozen=True, slots=True)
class Plateau:
    """A limit that stood from column `first` on, for `length` columns."""

    first: int
    length: int
    value: Quantity


@dataclass(frozen=True, slots=True)
class Scale:
    """`seconds` of time on `columns` columns."""

    seconds: float
    columns: int

    def column(self, at: float) -> int:
        """The column in which a moment lies; the last one for what comes after."""
        return min(max(0, int(at / self.seconds * self.columns)), self.columns - 1)

    def end(self, column: int) -> float:
        return (column + 1) * self.seconds / self.columns


def columns(versions: Sequence[QuotaVersion], resource: Resource, scale: Scale, now: float) -> list[Column | None]:
    """A Column for each of the scale's; None before the first version and after `now`."""
    found: list[Column | None] = []
    next_version = 0
    last: QuotaVersion | None = None
    for index in range(scale.columns):
        here = [last] if last is not None else []
        while next_version < len(versions) and versions[next_version].at < scale.end(index):
            here.append(versions[next_version])
            next_version += 1
        last = here[-1] if here else None
        over = index > scale.column(now)
        found.append(None if over or not here else _column(here, resource))
    return found


def _column(versions: Sequence[QuotaVersion], resource: Resource) -> Column:
    hard = [resource(version.hard) for version in versions]
    return Column(min(hard), max(hard), hard[-1], resource(versions[-1].used))


def plateaus(found: Sequence[Column | None], value: Callable[[Column], Quantity]) -> list[Plateau]:
    """The runs of columns in which the value ends the same."""
    runs: list[Plateau] = []
    for index, column in enumerate(found):
        if column is None:
            continue
        here = value(column)
        if runs and runs[-1].value == here:
            runs[-1] = Plateau(runs[-1].first, index - runs[-1].first + 1, here)
        else:
            runs.append(Plateau(index, 1, here))
    return runs


BLANK = " "


class Canvas:
    """`width` × `height` cells; row 0 is the top. What falls outside is cut off."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._chars = [[BLANK] * width for _ in range(height)]
        self._fore = [[""] * width for _ in range(height)]
        self._back = [[""] * width for _ in range(height)]

    def put(self, column: int, row: int, char: str, style: str = "") -> None:
        """Set a cell's character and its colour; what is painted behind it stays."""
        if self._inside(column, row):
            self._chars[row][column] = char
            self._fore[row][column] = style

    def paint(self, column: int, row: int, colour: str) -> None:
        """Set what is behind a cell's character."""
        if self._inside(column, row):
            self._back[row][column] = colour

    def write(self, column: int, row: int, text: str, style: str = "") -> None:
        for offset, char in enumerate(text):
            self.put(column + offset, row, char, style)

    def is_free(self, column: int, row: int, length: int) -> bool:
        """Whether a run of cells lies inside and shows no character yet."""
        if not (self._inside(column, row) and self._inside(column + length - 1, row)):
            return False
        return all(char == BLANK for char in self._chars[row][column : column + length])

    def is_painted(self, column: int, row: int, length: int, colour: str) -> bool:
        """Whether all of a run of cells has this colour behind it."""
        return self._inside(column, row) and all(back == colour for back in self._back[row][column : column + length])

    def lines(self) -> list[Text]:
        return [self._line(row) for row in range(self.height)]

    def _line(self, row: int) -> Text:
        line = Text(no_wrap=True, end="")
        for char, fore, back in zip(self._chars[row], self._fore[row], self._back[row], strict=True):
            line.append(char, f"{fore} on {back}".strip() if back else fore)
        return line

    def _inside(self, column: int, row: int) -> bool:
        return 0 <= column < self.width and 0 <= row < self.height


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


def chart(found: Sequence[Column | None], *, base: Quantity, top: int, height: int) -> Canvas:
    """The chart of `found`, a column each, from 0 to `top` (in thousandths, as `Quantity.milli_value`)."""
    canvas = Canvas(len(found), height)
    levels = _Levels(top, height)
    for index, column in enumerate(found):
        if column is not None:
            for above in range(_area(column, levels)):
                canvas.paint(index, height - 1 - above, palette.USED)
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


def _area(column: Column, levels: _Levels) -> int:
    """The area's height in rows. It reaches into the line's row only where more is used than allowed."""
    level = levels.exact(column.used)
    if column.used <= column.hard:
        level = min(level, float(levels.rows_below(column.hard)))
    return round(level)


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
