"""A lock between processes, on a file. The kernel frees it when its holder ends, however that happens."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kubeloop.testing.cluster.errors import ClusterError

_POLL = 0.1


@contextmanager
def locked(
    path: Path, *, timeout: float | None = None, waiting: Callable[[float], None] | None = None
) -> Iterator[None]:
    """Hold the lock at `path`, created if missing (its folder must exist).

    `waiting` is called with the seconds waited so far while another process holds it. ClusterError after `timeout`
    seconds; without a timeout it waits for ever, because a build may take ten minutes.
    """
    with path.open("a") as file:
        began = time.monotonic()
        while not _try_lock(file.fileno()):
            elapsed = time.monotonic() - began
            if timeout is not None and elapsed >= timeout:
                raise ClusterError(f"{path} is held by another process: wait for it to end, then try again")
            if waiting is not None:
                waiting(elapsed)
            time.sleep(_POLL)
        # Never unlinked: a waiter that already opened the old file would lock a different inode than the next comer.
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
