"""Parts that the tests of commands share: an API server in a thread, a kubeconfig for it, and `headroom` as it is
called."""

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.testing.polling import PATIENCE
from kubeloop.testing.scripted_server import LIST, WATCH, Reply, ScriptedServer, Seen, body, listing, status
from pkg.cmd.main import run
from tests.program import Program

T = TypeVar("T")


class _Server(ScriptedServer):
    """An API server of before 1.32: no streamed lists; and a kind without a list is not installed."""

    def _reply(self, request: Seen) -> Reply:
        if request.verb == LIST and request.path in ("/apis", "/api/v1"):
            return self._discovery(request.path)
        if request.verb == WATCH and (LIST, request.path) not in self._always:
            return status(404, "NotFound")
        if request.verb == WATCH and "sendInitialEvents" in request.query:
            return status(422, "Invalid", "sendInitialEvents is forbidden for watch unless WatchList is enabled")
        return super()._reply(request)

    def _discovery(self, path: str) -> Reply:
        """Serves what is listed; a group is never asked about when its kinds are listed."""
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

    def lists(self, resource: Resource[Any], *objects: Object | Mapping[str, Any], namespace: str = "ns1") -> None:
        """These objects are there: in the cluster's list, and in that of their namespace."""
        for path in (resource.path(), resource.path(namespace)):
            self.server.always(LIST, path, listing([msgspec.to_builtins(obj) for obj in objects], "10"))

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
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)


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
    """The end of a call."""

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
def logging_as_it_was() -> Iterator[None]:
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
        with logging_as_it_was():
            code = run(list(arguments))
        took = time.monotonic() - began
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err, took)

    return call


@contextmanager
def running(kubeconfig: str, folder: Path, *arguments: str) -> Iterator[Program]:
    """`headroom controller` as a process of its own, for a block."""
    program = Program(folder / "headroom.log", "controller", "--kubeconfig", kubeconfig, *arguments)
    program.start(ready=False)
    try:
        yield program
    finally:
        program.kill()
