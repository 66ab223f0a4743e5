"""`headroom controller` as a process of its own, beside the cluster's: it ends with the cluster, whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.cluster.processes import Process

WEBHOOK = "--webhook"
"""The flag with which it is given an address for webhooks, too."""
_NAME = "headroom"
_PROGRAM = "from pkg.cmd.main import main; main()"
_POLL = 0.05
_READY_TIMEOUT = 60.0
_DRAIN_TIMEOUT = 10.0
"""Seconds: what the contract gives a controller to drain."""
_TAIL = 15


class Headroom:
    """One run of the controller against the cluster in `directory`. Its log is a file there."""

    def __init__(self, process: Process, url: str) -> None:
        self.pid = process.pid
        self._process = process
        self._url = url
        self._status: int | None = None

    @classmethod
    async def start(cls, directory: Path, kubeconfig: Path, flags: tuple[str, ...]) -> Headroom:
        """Start `headroom controller FLAGS`; returns when it is ready or has ended. Raises StartError."""
        health, webhooks = (f"127.0.0.1:{port}" for port in free_ports(2))
        own = ["--kubeconfig", str(kubeconfig), "--health-bind-address", health]
        if WEBHOOK in flags:
            own += ["--bind-address", webhooks, "--webhook-url", f"https://{webhooks}"]
        argv = [sys.executable, "-c", _PROGRAM, "controller", *own, *flags]
        # What the caller's environment says of other clusters and choices is not for this one: empty means unset.
        environment = {name: "" for name in os.environ if name.startswith("HEADROOM_")}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        process = await asyncio.to_thread(processes.spawn, _NAME, argv, directory, environment)
        started = cls(process, f"http://{health}")
        await started._wait_until(lambda: _get(f"{started._url}/readyz") is not None, _READY_TIMEOUT)
        return started

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        if self._status is None:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    async def stop(self) -> int | None:
        """SIGTERM; its exit code, None when it does not end within 10 s."""
        if self.exit_code() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        await self._wait_until(lambda: False, _DRAIN_TIMEOUT)
        return self._status

    async def _wait_until(self, done: Callable[[], bool], timeout: float) -> None:
        """Until `done` (asked in a thread) or it has ended, `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.exit_code() is not None or await asyncio.to_thread(done):
                return
            await asyncio.sleep(_POLL)

    async def metrics(self) -> str:
        """Its /metrics; "" when it does not answer."""
        return await asyncio.to_thread(_get, f"{self._url}/metrics") or ""

    def last_log_line(self) -> str:
        """The last line of its log."""
        return processes.last_log_line(self._process.directory, _NAME)


def log_tail(directory: Path) -> list[str]:
    """The last lines of the log of headroom's last run in a cluster's directory."""
    try:
        text = processes.log_path(directory, _NAME).read_text("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-_TAIL:]


def _get(url: str) -> str | None:
    """The body of an answer of 200, None for any other and for none."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return str(answer.read().decode()) if answer.status == 200 else None
    except (urllib.error.URLError, OSError):
        return None
