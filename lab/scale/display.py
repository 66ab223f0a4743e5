"""How far the run is: a progress bar with the time left on a terminal, plain lines in a pipe and with CI=true."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_INTERVAL = 5.0
"""Seconds between two plain lines of one stage."""


class Display:
    """One stage at a time; `stream` is standard error unless told."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._bar: Progress | None = None
        if self._stream.isatty() and not os.environ.get("CI"):
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        self._stage = ""
        self._began = self._told = time.monotonic()

    def stage(self, text: str, total: int | None = None) -> None:
        """A new stage, of so many steps."""
        self._stage, self._began = text, time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._task, description=text, total=total)
        else:
            self._say(text)

    def done(self, count: int, total: int) -> None:
        """So many of the stage's steps are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=count, total=total)
        elif time.monotonic() - self._told >= _INTERVAL:
            self._say(f"{self._stage}: {count} of {total}{self._left(count, total)}")

    def close(self) -> None:
        """Takes the bar off the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _left(self, count: int, total: int) -> str:
        if not count:
            return ""
        return f", {(time.monotonic() - self._began) / count * (total - count):.0f} s left"

    def _say(self, text: str) -> None:
        self._told = time.monotonic()
        try:
            print(f"scale: {text}", file=self._stream, flush=True)
        except BrokenPipeError:
            pass  # The run goes on: there is something to clean up and a report to write.
