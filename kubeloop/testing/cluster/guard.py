"""Nothing is left behind: a small process that ends a cluster when the process that started it has ended, however.

It waits on a pipe whose other end its parent holds and the kernel closes. (The kernel's own "signal when the parent
dies", PR_SET_PDEATHSIG, is about the *thread* that started the process: a cluster started from a worker thread would
die with the thread.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

CALLED_OFF = b"."
"""The byte that the guard's process reads when it is to end without doing anything (`cluster.py`)."""


class Guard:
    """Guards the cluster in `directory` while it is entered; leaving it ends the guard and nothing else. With `remove`
    the directory itself goes too, when the guard has to act."""

    def __init__(self, directory: Path, *, remove: bool = False) -> None:
        self._directory = directory
        self._remove = remove
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        remove = "remove" if self._remove else "keep"
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.cluster", str(self._directory.absolute()), remove],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate(CALLED_OFF)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does: through every `finally`."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    old_handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)
