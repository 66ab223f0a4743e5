"""Text that others wrote, in what a terminal shows.

Promises: nothing that is printed moves the cursor, changes colours or the direction of what follows."""

from __future__ import annotations

_LONGEST = 500
"""Characters of a quotation."""


def printable(text: str) -> str:
    """The text, with an escape in place of each control and format character, line ends too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(text: str) -> str:
    """The text in quotation marks, which it can't end, escaped and cut: as words of somebody else."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
