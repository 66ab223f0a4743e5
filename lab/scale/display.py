"""How far the run is, on standard error."""

from __future__ import annotations

import contextlib
import time

from kubeloop.testing.cluster.progress import Lines, Progress


class Display:
    """One stage at a time. A pipe that is closed does not end the run: there is something to clean up."""

    def __init__(self) -> None:
        self._progress: Progress = Lines(interval=5.0)
        self._stage, self._began = "scale", time.monotonic()

    def stage(self, text: str) -> None:
        """A new stage."""
        self._stage, self._began = f"scale: {text}", time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._progress.step(self._stage)

    def done(self, count: int, total: int) -> None:
        """So many of the stage's steps are done."""
        left = f", {(time.monotonic() - self._began) / count * (total - count):.0f} s left" if count else ""
        with contextlib.suppress(BrokenPipeError):
            self._progress.tick(f"{self._stage}: {count} of {total}{left}")
