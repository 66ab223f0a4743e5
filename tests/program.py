"""`headroom` for tests: forked from a process that has imported everything (tests.fork_server)."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from lab.headroom import COMMAND, ROOT, Handle, Headroom, environment
from tests.fork_server import ForkedProcess

__all__ = ["COMMAND", "ROOT", "Program", "environment", "headroom", "of_a_soak", "program", "run"]


def of_a_soak(whole: int) -> int:
    """A fifth of a soak's repetitions; all of them in `make soak`."""
    return whole if os.environ.get("HEADROOM_SOAK") else whole // 5


def run(*arguments: str, timeout: float = 300.0, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs one call of headroom that ends by itself."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as err:
        process = ForkedProcess(arguments, stdout, err, environment() | env)
        try:
            code = process.wait(timeout)
        finally:
            process.send_signal(signal.SIGKILL)
        for file in (stdout, err):
            file.seek(0)
        return subprocess.CompletedProcess(["headroom", *arguments], code, stdout.read(), err.read())


class Program(Headroom):
    """A program that is forked: what is measured is a Headroom, which starts from nothing."""

    skew = 0.0
    """Seconds by which its clock is ahead, from the next start on."""

    def __init__(self, log: Path, *arguments: str, **environ: Any) -> None:
        super().__init__(log, *arguments, launch=self._fork, **environ)

    def _fork(self, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> Handle:
        with log.open("ab") as stdout:
            if not self.skew:
                return ForkedProcess(arguments, stdout, stdout, env)
            skewed = [sys.executable, "-m", "tests.bench.skewed", str(self.skew)]  # a fork has its clock already
            return subprocess.Popen([*skewed, *arguments], stdout=stdout, stderr=stdout, env=env, cwd=ROOT)


def program(cluster: Cluster, command: str, *arguments: str) -> Program:
    """`headroom controller` or `headroom webhook`, not started; a cluster administrator's unless `arguments` name
    another kubeconfig."""
    (port,) = free_ports(1)
    url = f"https://127.0.0.1:{port}"
    serves = ("--bind-address", f"127.0.0.1:{port}", "--webhook-url", url)
    words = ("--kubeconfig", str(cluster.kubeconfig), *serves, *arguments)
    started = Program(cluster.directory / f"headroom-{command}-{port}.log", command, *words)
    started.url = url
    return started


@contextlib.contextmanager
def headroom(cluster: Cluster, command: str, *arguments: str, ready: bool = True) -> Iterator[Program]:
    """The same, running until the block ends; `ready`: which begins when /readyz says ok."""
    started = program(cluster, command, *arguments)
    try:
        yield started.start(ready=ready)
    finally:
        started.stop()
