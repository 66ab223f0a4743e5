"""Progress for people: one line that is rewritten on a terminal, plain lines elsewhere.

Everything that takes long reports through a Progress: `step` for a fact that stays on the screen, `tick` for "still
at it". On a terminal a tick rewrites the last line; elsewhere it is printed at most once in `interval` seconds, so that
a log of a ten minute build stays short."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO


class Progress:
    """The receiver of reports. This class discards them."""

    def step(self, text: str) -> None: ...

    def tick(self, text: str) -> None: ...


class Lines(Progress):
    """Prints to `stream` (standard error by default). `interval` is in seconds."""

    def __init__(self, stream: TextIO | None = None, *, interval: float = 15.0) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval = interval
        self._rewrite = self._stream.isatty() and not os.environ.get("CI")
        self._unfinished = False
        self._last_tick = time.monotonic()

    def step(self, text: str) -> None:
        self._write(("\r\x1b[2K" if self._unfinished else "") + text + "\n")
        self._unfinished = False
        self._last_tick = time.monotonic()

    def tick(self, text: str) -> None:
        """Shows that work goes on: rewrites its own line on a terminal, is thinned out elsewhere."""
        if self._rewrite:
            self._write("\r\x1b[2K" + text)
            self._unfinished = True
        elif time.monotonic() - self._last_tick >= self._interval:
            self.step(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
