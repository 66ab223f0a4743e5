"""`headroom` as a process of its own, started on free ports and ended by its pid: for the demo, scale runs, benches and
tests. Blocking; what has an event loop calls it in a thread. Prometheus metrics, its own and an API server's."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from prometheus_client.parser import text_string_to_metric_families

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.cluster.processes import Process
from kubeloop.testing.cluster.reporting import StartError
from kubeloop.testing.polling import PATIENCE

COMMAND = [sys.executable, "-c", "from pkg.cmd.main import main; main()"]
"""A start from nothing, as users make it."""
ROOT = Path(__file__).parents[1]
WEBHOOK = "--webhook"
"""The flag with which `in_cluster` gives it an address for webhooks, too."""
_NAME = "headroom"
_POLL = 0.02
_DRAIN_TIMEOUT = 20.0
"""Seconds: twice what the contract gives a controller to drain."""
_TAIL = 3000


class Handle(Protocol):
    """The part of subprocess.Popen that is used here."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


Launch = Callable[[Sequence[str], Path, Mapping[str, str]], Handle]
"""A function from arguments, log and environment to a process."""


def environment() -> dict[str, str]:
    """Returns the process's variables without those by which headroom would find another cluster or compile its sources
    again."""
    ignored_prefixes = ("HEADROOM_", "KUBE", "PYTHONDONTWRITEBYTECODE")
    inherited_variables = {name: text for name, text in os.environ.items() if not name.startswith(ignored_prefixes)}
    return inherited_variables | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def popen(arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> Handle:
    with log.open("ab") as stream:
        return subprocess.Popen([*COMMAND, *arguments], stdout=stream, stderr=stream, env=env, cwd=ROOT)


class Headroom:
    """A process `headroom ARGUMENTS`, which can be stopped and started again; it logs to `log`."""

    def __init__(
        self, log: Path, *arguments: str, port: int = 0, env: Mapping[str, str] | None = None, launch: Launch = popen
    ) -> None:
        self.log = log
        self.port = port or free_ports(1)[0]
        """The port of its own HTTP server."""
        self.url = ""
        """The URL of its webhooks, where it serves any."""
        self._arguments = [*arguments, "--health-bind-address", f"127.0.0.1:{self.port}"]
        self._launch = launch
        self._env = environment() | dict(env or {})
        self._process: Handle | None = None

    @property
    def process(self) -> Handle:
        """The process that was started last."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, *, ready: bool = True) -> Self:
        """Starts the process, and with `ready` waits until it is ready. Raises StartError."""
        self._process = self._launch(self._arguments, self.log, self._env)
        return self.wait_ready() if ready else self

    async def started(self) -> Self:
        """Starts the process and waits until it is ready, for callers with an event loop."""
        await asyncio.to_thread(self.start, ready=False)
        deadline = time.monotonic() + PATIENCE
        while (await asyncio.to_thread(self.get, "/readyz"))[0] != 200:
            self.check(deadline)
            await asyncio.sleep(_POLL)
        return self

    def wait_ready(self) -> Self:
        """Waits until its caches have synced and its workers run."""
        return self.until(lambda: self.get("/readyz")[0] == 200)

    def until(self, condition: Callable[[], object], timeout: float = PATIENCE) -> Self:
        """Waits until `condition` is true. Raises StartError when the process ends before, or it takes longer."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.check(deadline)
            time.sleep(_POLL)
        return self

    def check(self, deadline: float = float("inf")) -> None:
        """Raises StartError when it has ended, or after the deadline (monotonic)."""
        if self.process.poll() is not None:
            raise self._error(f"headroom exited unexpectedly: {self.last_log_line()}")
        if time.monotonic() > deadline:
            raise self._error(f"headroom does not do in time what was asked of it: {self.last_log_line()}")

    def get(self, path: str) -> tuple[int, str]:
        """Returns status and body of its own HTTP server; status 0 when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric's samples that have these labels."""
        metric_samples = samples(self.get("/metrics")[1], name)
        return sum(value for sample_labels, value in metric_samples if labels.items() <= sample_labels.items())

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def last_log_line(self) -> str:
        return (self.text().strip().splitlines() or [""])[-1].strip()[:300]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code. A process that does not end in time is killed; raises StartError
        then."""
        self.process.send_signal(number)
        try:
            return self.process.wait(_DRAIN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._error(f"headroom did not end within {_DRAIN_TIMEOUT:g} s") from None

    def kill(self) -> None:
        """Kills the process and waits for its end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(_DRAIN_TIMEOUT)

    def _error(self, message: str) -> StartError:
        error = StartError(message)
        error.add_note(self.text()[-_TAIL:])
        return error


def in_cluster(directory: Path, kubeconfig: Path, flags: Sequence[str]) -> Headroom:
    """Returns `headroom controller FLAGS`, not started, to run beside the processes of the cluster in `directory`: it
    ends with them, whatever happens."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    serves = ("--bind-address", address, "--webhook-url", f"https://{address}") if WEBHOOK in flags else ()
    arguments = ("controller", "--kubeconfig", str(kubeconfig), *serves, *flags)
    launch = functools.partial(_spawn_in_cluster, directory)
    return Headroom(processes.find(directory, _NAME).log, *arguments, launch=launch)


def _spawn_in_cluster(directory: Path, arguments: Sequence[str], _log: Path, env: Mapping[str, str]) -> Handle:
    # A cluster's processes have the caller's environment, too: what that says of other clusters is set to nothing.
    unset = {name: "" for name in os.environ if name not in env and name.startswith("HEADROOM_")}
    return _ClusterProcess(processes.spawn(_NAME, [*COMMAND, *arguments], directory, {**unset, **env}))


class _ClusterProcess:
    """A process of a cluster's as a Handle."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self._process = process
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or float("inf"))
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(_NAME, timeout or 0.0)
            time.sleep(_POLL)
        return status

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


# ---- metrics, and their growth

Counts = dict[str, float]


def samples(text: str, metric: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """Yields labels and value of each sample of a metric. An API server exports megabytes: the rest is not parsed."""
    lines = "\n".join(line for line in text.splitlines() if line.startswith(metric))
    for family in text_string_to_metric_families(f"{lines}\n"):
        yield from ((sample.labels, sample.value) for sample in family.samples if sample.name == metric)


def counts(text: str, metric: str, name: Callable[[Mapping[str, str]], str]) -> Counts:
    """The samples of a metric, added up by what `name` makes of their labels; "" leaves one out."""
    sums: Counts = {}
    for labels, value in samples(text, metric):
        if key := name(labels):
            sums[key] = sums.get(key, 0.0) + value
    return sums


def growth(start: Counts, end: Counts) -> Counts:
    """Returns the growth of each count, the largest first."""
    growths = {key: value - start.get(key, 0.0) for key, value in end.items()}
    return dict(sorted(((k, v) for k, v in growths.items() if v > 0), key=lambda pair: -pair[1]))


def requests_of_client(text: str) -> Counts:
    """The requests that headroom sent, by HTTP method."""
    return counts(text, "rest_client_requests_total", lambda labels: labels.get("method", ""))


def requests_of_server(text: str) -> Counts:
    """The requests that an API server answered, as `VERB resource`; watches and its own clients' included."""

    def name(labels: Mapping[str, str]) -> str:
        resource, sub = labels.get("resource", ""), labels.get("subresource", "")
        return f"{labels.get('verb', '')} {resource}{f'/{sub}' if sub else ''}" if resource else ""

    return counts(text, "apiserver_request_total", name)


def process_cpu(text: str) -> float:
    """Returns the CPU seconds of a process."""
    return counts(text, "process_cpu_seconds_total", lambda labels: "all").get("all", 0.0)


def process_memory(text: str) -> int:
    """Returns the resident bytes of a process."""
    return int(counts(text, "process_resident_memory_bytes", lambda labels: "all").get("all", 0.0))
