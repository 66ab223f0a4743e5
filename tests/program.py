"""`headroom` as a real process: started on free ports, ended by its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from lab.scale.counters import samples
from tests.fork_server import ForkedProcess

COMMAND = [sys.executable, "-c", "from pkg.cmd.main import main; main()"]
"""A start from nothing, as users make it."""
ROOT = Path(__file__).parents[1]


def of_a_soak(whole: int) -> int:
    """A fifth of a soak's repetitions; all of them in `make soak`."""
    return whole if os.environ.get("HEADROOM_SOAK") else whole // 5


def environment() -> dict[str, str]:
    """This one, without what would change how headroom finds its cluster or make it compile its sources again."""
    left_out = ("HEADROOM_", "KUBE", "PYTHONDONTWRITEBYTECODE")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(left_out)}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run(*arguments: str, timeout: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    """One call of headroom that ends by itself."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = ForkedProcess(arguments, out, err, environment() | env)
        try:
            code = process.wait(timeout)
        finally:
            process.send_signal(signal.SIGKILL)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(["headroom", *arguments], code, out.read(), err.read())


class Program:
    """`headroom <arguments>` that runs until it is told to stop, and can be started again; it logs to `log`."""

    def __init__(
        self,
        log: Path,
        *arguments: str,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> None:
        """`port` is the one of its own HTTP server (0: any that is free). What is measured is not `forked`: it starts
        from nothing, as users start it."""
        self.skew = 0.0
        """Seconds by which its clock is ahead, from the next start on."""
        self.log = log
        self.port = port or free_ports(1)[0]
        self.url = ""
        """Of its webhooks, where it serves any."""
        self._forked = forked
        self._arguments = [*arguments, "--health-bind-address", f"127.0.0.1:{self.port}"]
        self._env = environment() | dict(env or {})
        self._process: ForkedProcess | subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> ForkedProcess | subprocess.Popen[bytes]:
        """The one that was started last."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, *, ready: bool = True) -> Program:
        """`ready`: and wait until it is."""
        with self.log.open("ab") as out:
            if self.skew or not self._forked:  # one that is forked has its clock already
                skewed = [sys.executable, "-m", "tests.bench.skewed", str(self.skew)]
                command = [*(skewed if self.skew else COMMAND), *self._arguments]
                self._process = subprocess.Popen(command, stdout=out, stderr=out, env=self._env, cwd=ROOT)
            else:
                self._process = ForkedProcess(self._arguments, out, out, self._env)
        return self.wait_ready() if ready else self

    def wait_ready(self, timeout: float = 30.0) -> Program:
        """Until its caches have synced and its workers run."""
        return self.until(lambda: self.get("/readyz")[0] == 200, timeout)

    def until(self, condition: Callable[[], object], timeout: float = 20.0) -> Program:
        """Until `condition` is true; an AssertionError when the process ends before."""
        deadline = time.monotonic() + timeout
        while not condition():
            code = self.process.poll()
            assert code is None, f"headroom ended with {code}:\n{self.text()[-3000:]}"
            assert time.monotonic() < deadline, f"not within {timeout:g} s:\n{self.text()[-3000:]}"
            time.sleep(0.02)
        return self

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of its own HTTP server; status 0 when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        found = samples(self.get("/metrics")[1], name)
        return sum(value for given, value in found if labels.items() <= given.items())

    def text(self) -> str:
        """All that it has logged."""
        return self.log.read_text(errors="replace")

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM; its exit code. A process that does not end is killed and an AssertionError."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"headroom did not end within {timeout:g} s:\n{self.text()[-3000:]}"
            ) from None

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


def program(cluster: Cluster, command: str, *arguments: str) -> Program:
    """`headroom controller` or `headroom webhook`, not started; a cluster administrator's unless `arguments` name
    another kubeconfig."""
    (port,) = free_ports(1)
    url = f"https://127.0.0.1:{port}"
    serves = ("--bind-address", f"127.0.0.1:{port}", "--webhook-url", url)
    own = ("--kubeconfig", str(cluster.kubeconfig), *serves, *arguments)
    made = Program(cluster.directory / f"headroom-{command}-{port}.log", command, *own)
    made.url = url
    return made


@contextlib.contextmanager
def headroom(cluster: Cluster, command: str, *arguments: str, ready: bool = True) -> Iterator[Program]:
    """The same, running until the block ends; `ready`: which begins when /readyz says ok."""
    made = program(cluster, command, *arguments)
    try:
        yield made.start(ready=ready)
    finally:
        made.stop()
