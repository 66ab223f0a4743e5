"""Colours, in one place; all of them can be told apart on a dark and on a light terminal."""

from __future__ import annotations

from typing import Final

USED: Final = "#2f6f9f"
HARD: Final = "#f0a040"
BASE: Final = "#8a94a0"
DIM: Final = "#8a94a0"
TITLE: Final = "bold"
GOOD: Final = "#57b36a"
BAD: Final = "#e5534b"

REFUSED: Final = "#b8403a"
PENDING: Final = "#a07d1c"
PREPARING: Final = "#3c7f8c"
MOVING: Final = "#3d64c4"
LINGERING: Final = "#6a5a8c"
HEADROOM: Final = ("#3b7d4b", "#4f8f3a")
"""One run, and the next."""
ON_BAR: Final = "#ffffff"
