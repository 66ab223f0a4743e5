"""What the tests of commands share: an API server in a thread, a kubeconfig for it, and `headroom` as it is called."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pkg.cmd.main import run
from tests.scripted_server import LIST, WATCH, Reply, ScriptedServer, Seen, body, status

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-c", "from pkg.cmd.main import main; main()"]


class _Server(ScriptedServer):
    """An API server of before 1.32: no streamed lists; and a kind without a list is not installed."""

    def _reply(self, seen: Seen) -> Reply:
        if seen.verb == LIST and seen.path in ("/apis", "/api/v1"):
            return self._discovery(seen.path)
        if seen.verb == WATCH and (LIST, seen.path) not in self._always:
            return status(404, "NotFound")
        if seen.verb == WATCH and "sendInitialEvents" in seen.query:
            return status(
                422, "Invalid", "sendInitialEvents is forbidden for watch unless WatchList is enabled"
            )
        return super()._reply(seen)

    def _discovery(self, path: str) -> Reply:
        """What is listed is served; a group is never asked about when its kinds are listed."""
        if path == "/apis":
            return body({"kind": "APIGroupList", "groups": []})
        served = [listed.removeprefix("/api/v1/") for verb, listed in self._always if verb == LIST]
        resources = [{"name": name} for name in served if "/" not in name]
        return body({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})


class ThreadedServer:
    """A ScriptedServer that answers while the test itself blocks. `server` is its script; script before use."""

    def __init__(self) -> None:
        self.server: ScriptedServer = _Server()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self.server.start())

    def seen(self, verb: str, path: str | None = None) -> list[Seen]:
        return list(self.server.seen(verb, path))

    def stop(self) -> None:
        """The port is closed; `start` opens it again."""
        self._call(self.server.stop())

    def start(self) -> None:
        self._call(self.server.start())

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


@contextmanager
def threaded_server() -> Iterator[ThreadedServer]:
    server = ThreadedServer()
    try:
        yield server
    finally:
        server.end()


def kubeconfig_for(url: str, folder: Path) -> str:
    """A kubeconfig file for an address, without credentials."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / f"kubeconfig-{url.rpartition(':')[2]}"
    path.write_text(json.dumps(config))
    return str(path)


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    code: int
    out: str
    err: str
    seconds: float

    def said_in_one_line(self) -> str:
        """The one line on stderr, without its beginning. AssertionError for more, for less, for a traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("headroom: "), self.err
        return lines[0].removeprefix("headroom: ")


@contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """A command installs its own log handler; the test run's come back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level


Call = Callable[..., Result]


def calls(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`headroom` in this process: `call("controller", "--workers", "0", HEADROOM_MODE="assist")`."""

    def call(*arguments: str, **env: str) -> Result:
        for name in [name for name in os.environ if name.startswith(("HEADROOM_", "KUBE"))]:
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        began = time.monotonic()
        with _logging_as_it_was():
            code = run(list(arguments))
        took = time.monotonic() - began
        said = capfd.readouterr()
        return Result(code, said.out, said.err, took)

    return call


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Running:
    """`headroom controller` as a process of its own."""

    def __init__(self, kubeconfig: str, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.log = folder / f"headroom-{self.port}.log"
        given = ["controller", "--kubeconfig", kubeconfig, "--health-bind-address", f"127.0.0.1:{self.port}"]
        env = {name: text for name, text in os.environ.items() if not name.startswith(("HEADROOM_", "KUBE"))}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, *given, *arguments],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=env | {"PYTHONPATH": str(ROOT)},
                cwd=ROOT,
            )

    def get(self, path: str) -> tuple[int, str]:
        """Status (0: no answer) and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait(self, look: Callable[[], object], timeout: float = 20.0) -> None:
        """Until `look` is true, and the program still runs."""
        deadline = time.monotonic() + timeout
        while not look():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def wait_ready(self) -> None:
        self.wait(lambda: self.get("/readyz")[0] == 200)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, timeout: float = 10.0) -> int:
        """Of a program that was told to end: within contract.md's ten seconds."""
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@contextmanager
def running(kubeconfig: str, folder: Path, *arguments: str) -> Iterator[Running]:
    program = Running(kubeconfig, folder, *arguments)
    try:
        yield program
    finally:
        program.kill()
