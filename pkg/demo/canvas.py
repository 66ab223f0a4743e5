"""A grid of styled characters: what charts and bars are drawn on."""

from __future__ import annotations

from rich.text import Text

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
        """Set a run of cells."""
        for offset, char in enumerate(text):
            self.put(column + offset, row, char, style)

    def is_free(self, column: int, row: int, length: int) -> bool:
        """Whether a run of cells lies inside and shows no character yet."""
        if not (self._inside(column, row) and self._inside(column + length - 1, row)):
            return False
        return all(char == BLANK for char in self._chars[row][column : column + length])

    def is_painted(self, column: int, row: int, length: int, colour: str) -> bool:
        """Whether all of a run of cells has this colour behind it."""
        return self._inside(column, row) and all(
            back == colour for back in self._back[row][column : column + length]
        )

    def lines(self) -> list[Text]:
        """The rows, from the top."""
        return [self._line(row) for row in range(self.height)]

    def _line(self, row: int) -> Text:
        line = Text(no_wrap=True, end="")
        for char, fore, back in zip(self._chars[row], self._fore[row], self._back[row], strict=True):
            line.append(char, f"{fore} on {back}".strip() if back else fore)
        return line

    def _inside(self, column: int, row: int) -> bool:
        return 0 <= column < self.width and 0 <= row < self.height
