"""The layout of a cluster's directory D, locks between processes, and the free ports it listens on."""

import fcntl
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kubeloop.testing.cluster.reporting import ClusterError

# Below the range that the kernel hands out to outgoing connections: none of them can take a port between the moment
# it was found free and the moment the server listens on it.
_PORTS = range(20000, 32000)
_GIVEN: deque[int] = deque(maxlen=100)
"""Given a moment ago: their servers may not listen yet."""
_WORKERS = 16
_POLL = 0.1


class Paths:
    """Paths in a cluster's directory (absolute)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.pki = directory / "pki"
        self.authority = self.pki / "ca.crt"
        self.etcd_data = directory / "etcd"
        self.description = directory / "cluster.json"
        self.audit_log = directory / "audit.log"
        # JSON lines of audit.k8s.io/v1: what the audit policy asks for.
        self.lock = directory / ".lock"
        self.scratch = [self.etcd_data, self.pki, self.kubeconfig, self.description]
        # The files of one run, which go with it: everything but the logs.


def free_ports(count: int) -> list[int]:
    """Returns `count` free TCP ports of 127.0.0.1, none again soon; pytest-xdist's workers never get the same."""
    ports: list[int] = []
    # Not the module's generator: test runners seed that one alike in processes that start servers at the same time.
    own_ports = _PORTS[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS :: _WORKERS]
    for port in random.SystemRandom().sample(own_ports, len(own_ports)):
        if len(ports) == count:
            break
        if port not in _GIVEN:
            with suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    _GIVEN.extend(ports)
    if len(ports) < count:
        raise ClusterError(f"fewer than {count} free ports between {_PORTS.start} and {_PORTS.stop}")
    return ports


@contextmanager
def locked(path: Path, timeout: float | None = None, waiting: Callable[[float], None] | None = None) -> Iterator[None]:
    """Holds the lock on the file `path`, created if missing (its folder must exist); the kernel frees it when its
    holder ends, however that happens.

    `waiting` is called with the seconds waited so far while another process holds it. ClusterError after `timeout`
    seconds; without a timeout it waits for ever, because a build may take ten minutes."""
    with path.open("a") as file:
        start = time.monotonic()
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            elapsed = time.monotonic() - start
            if timeout is not None and elapsed >= timeout:
                raise ClusterError(f"{path} is held by another process: wait for it to end, then try again")
            if waiting is not None:
                waiting(elapsed)
            time.sleep(_POLL)
        # Never unlinked: a waiter that already opened the old file would lock a different inode than the next comer.
        yield
