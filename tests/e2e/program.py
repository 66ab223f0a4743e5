"""`headroom` as a real process: started on free ports, ended by its pid."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

COMMAND = [sys.executable, "-c", "from pkg.cmd.main import main; main()"]
ROOT = Path(__file__).parents[2]


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
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment() | env,
        check=False,
        cwd=ROOT,
    )


def free_port() -> int:
    """A port of 127.0.0.1 that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """`headroom <arguments>` that runs until it is told to stop; what it logs goes to `log`."""

    def __init__(
        self, log: Path, *arguments: str, port: int = 0, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self.port = port or free_port()
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments, "--health-bind-address", f"127.0.0.1:{self.port}"],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=environment() | dict(env or {}),
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, timeout: float = 30.0) -> Program:
        """Until its caches have synced and its workers run."""
        deadline = time.monotonic() + timeout
        while True:
            if self.process.poll() is not None:
                raise AssertionError(f"headroom ended with {self.process.returncode}:\n{self.text()[-3000:]}")
            if self._get("/readyz")[0] == 200:
                return self
            if time.monotonic() > deadline:
                raise AssertionError(f"headroom is not ready:\n{self.text()[-3000:]}")
            time.sleep(0.02)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of its own HTTP server; status 0 when it does not answer."""
        return self._get(path)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self._get("/metrics")[1].splitlines():
            sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if sample and sample[1] == name:
                found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2] or ""))
                if all(found.get(label) == value for label, value in labels.items()):
                    total += float(sample[3])
        return total

    def text(self) -> str:
        """All that it has logged."""
        return self.log.read_text(errors="replace")

    def stop(self, timeout: float = 15.0) -> int:
        """SIGTERM; its exit code. A process that does not end is killed and an AssertionError."""
        if self.process.poll() is None:
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
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def _get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""
