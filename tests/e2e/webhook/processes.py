"""headroom as a process of its own, as users run it: started, waited for, killed."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pkg.testcluster.cluster import Cluster
from pkg.testcluster.paths import free_ports

_MAIN = "from pkg.cmd.main import main; main()"
_PR_SET_PDEATHSIG = 1
READY_SECONDS = 30.0


class Headroom:
    """One `headroom controller` or `headroom webhook`; `log` is its log file."""

    def __init__(self, cluster: Cluster, command: str, *arguments: str) -> None:
        self.port, health = free_ports(2)
        self.url = f"https://127.0.0.1:{self.port}"
        self._health = f"http://127.0.0.1:{health}"
        self.log = cluster.directory / f"headroom-{command}-{self.port}.log"
        self._argv = [
            *(sys.executable, "-c", _MAIN, command, "--kubeconfig", str(cluster.kubeconfig)),
            *("--health-bind-address", f"127.0.0.1:{health}"),
            *("--bind-address", f"127.0.0.1:{self.port}", "--webhook-url", self.url, *arguments),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, ready: bool = True) -> None:
        """Returns when /readyz says ok."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[3],
                preexec_fn=_die_with_parent,
            )
        if ready:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, f"it ended:\n{self.log.read_text()[-3000:]}"
            if self._is_ready():
                return
            time.sleep(0.1)
        raise AssertionError(f"not ready after {READY_SECONDS} s:\n{self.log.read_text()[-3000:]}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._health}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self._health}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def series(self, name: str) -> list[float]:
        """The values of a metric's series; of one of them, if the name ends in its labels."""
        lines = self.metrics().splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(timeout=15)


@contextlib.contextmanager
def headroom(cluster: Cluster, command: str, *arguments: str, ready: bool = True) -> Iterator[Headroom]:
    """Runs until the block ends; `ready`: which begins when /readyz says ok."""
    process = Headroom(cluster, command, *arguments)
    process.start(ready=ready)
    try:
        yield process
    finally:
        process.stop()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
