"""Whom the play is shown to: a terminal, where a picture moves, or a pipe, where lines go by."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TextIO

from rich.console import Console
from rich.live import Live

from pkg.demo.checks import Report
from pkg.demo.chronicle import Chronicle, Happening
from pkg.demo.lines import Lines
from pkg.demo.view import Size, view

_FRAME = 0.15
"""Seconds from frame to frame."""


class Audience:
    """Reads along on `stream`. `gone` says that nobody does any more: the pipe is closed."""

    def __init__(self, stream: TextIO, chronicle: Chronicle, report: Report) -> None:
        self._chronicle = chronicle
        self._report = report
        self._lines = Lines(stream)
        self._moving = is_terminal(stream)
        self._console = Console(file=stream)
        if not self._moving:
            chronicle.listener = self._happened
            report.listener = self._lines.checked

    @property
    def gone(self) -> bool:
        return self._lines.broken

    def say(self, text: str) -> None:
        """A line of its own, before or after the play."""
        self._lines.say(text)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """While the play goes on."""
        if not self._moving:
            yield
            return
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
            drawing = asyncio.create_task(self._draw(live))
            try:
                yield
            finally:
                drawing.cancel()
                self._frame(live)

    def sum_up(self) -> None:
        """What a moving picture could not keep: the checks that failed; then the last line."""
        if self._moving:
            self.say("")
            for check in self._report.checks:
                if not check.ok:
                    self._lines.checked(check)
        self.say(self._report.last_line)

    def _happened(self, happening: Happening) -> None:
        self._lines.happened(self._chronicle, happening)

    async def _draw(self, live: Live) -> None:
        while True:
            self._frame(live)
            await asyncio.sleep(_FRAME)

    def _frame(self, live: Live) -> None:
        size = Size.fitting(self._console.width, self._console.height)
        now = self._chronicle.clock()
        live.update(view(self._chronicle, self._report, now=now, size=size), refresh=True)


def is_terminal(stream: TextIO) -> bool:
    """Whether cursor tricks are welcome: never in CI."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
