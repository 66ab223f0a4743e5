"""Reports of the embedded cluster: errors, whose messages are one line that says what to do next, and progress.

Everything that takes long reports through a Progress: `step` for a fact, `tick` for "still at it", which is printed now
and then only: the log of a build of ten minutes stays short."""

import sys
import time
from typing import TextIO

from kubeloop.errors import ReportedError


class ClusterError(ReportedError):
    """The embedded cluster cannot be built, started or stopped."""


class UnknownRelease(ClusterError):
    """A Kubernetes release was asked for that the cluster does not have."""

    exit_code = 2


class DownloadError(ClusterError):
    """An official release could not be had: not reachable, not complete, or not what its checksum says."""


class StartError(ClusterError):
    """A process of the cluster ended or did not become ready in time."""


class Progress:
    """The receiver of reports. This class discards them."""

    def step(self, text: str) -> None: ...

    def tick(self, text: str) -> None: ...


class Lines(Progress):
    """Prints to `stream` (standard error by default), a tick at most once in `interval` seconds."""

    def __init__(self, stream: TextIO | None = None, *, interval: float = 15.0) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval = interval
        self._last_line = time.monotonic()

    def step(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._last_line = time.monotonic()

    def tick(self, text: str) -> None:
        if time.monotonic() - self._last_line >= self._interval:
            self.step(text)
