"""`headroom` processes that are forked from one that has imported everything: a start then takes a tenth of the CPU,
and the end-to-end tests make several hundred.

A server for each test process; it and all that it forked end with it.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[1]
_PR_SET_PDEATHSIG = 1
_LARGEST = 1 << 17
"""Bytes of a request."""


class ForkedProcess:
    """The part of subprocess.Popen that the tests use."""

    def __init__(self, arguments: Sequence[str], stdout: IO[Any], err: IO[Any], env: Mapping[str, str]) -> None:
        request = json.dumps({"arguments": arguments, "env": dict(env)}).encode()
        self._status, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            socket.send_fds(_server(), [request], [stdout.fileno(), err.fileno(), far_end.fileno()])
        self.pid = int(self._status.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The same when it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._status.recv(32))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("headroom", timeout or 0.0) from None
            self._status.close()
        return self.returncode

    def send_signal(self, number: int, /) -> None:
        """Nothing once it has ended: another process may have its pid."""
        if self.poll() is None:
            os.kill(self.pid, number)


@functools.cache
def _server() -> socket.socket:
    """The connection to this process' server; its end ends the server."""
    here, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far_end:
        command = [sys.executable, "-m", __name__, str(far_end.fileno())]
        subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[far_end.fileno()])
    return here


# ---- the server ----------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> list[str]:
    """Returns in each forked process, with its arguments; in the server never."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(requests, _LARGEST, 3)
        if not request:
            os._exit(0)
        stdout, err, status = files
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    requests.close()
    _fork_and_tell(socket.socket(fileno=status))
    job = json.loads(request)
    for file, standard in ((stdout, 1), (err, 2)):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(job["env"])
    return list(job["arguments"])


def _fork_and_tell(status: socket.socket) -> None:
    """Returns in the process that is to run headroom; its parent tells its pid and its end, and ends."""
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        status.close()
        _die_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return
    status.send(str(pid).encode())
    _, status_code = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the test does not want to know any more
        status.send(str(os.waitstatus_to_exitcode(status_code)).encode())
    os._exit(0)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_everything() -> None:
    for name in ("kubeloop", "pkg", "lab"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    importlib.import_module("kubernetes.config")
    gc.collect()
    gc.freeze()


def main() -> None:
    """The server, and each process that it forks."""
    _import_everything()
    sys.argv = ["headroom", *_serve(socket.socket(fileno=int(sys.argv[1])))]
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(write_through=True)
    from pkg.cmd.main import main as headroom

    headroom()


if __name__ == "__main__":
    main()
