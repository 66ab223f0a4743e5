"""Processes that outlive the command that started them, and are ended by another one.

Promised: a process is known by a record in its cluster's folder from before it does anything until it has ended, and
only the process that was recorded is ever signalled: a stranger that got the same pid later has another start time.

D/processes/<name>.json  what to run (argv, environment, folder, log): also what `restart` needs
D/processes/<name>.pid   written by the process itself (launcher.py): "<pid> <boot id> <start time>"
D/logs/<name>.log        its standard output and error"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubeloop.testing.cluster.launcher import identity
from kubeloop.testing.cluster.reporting import ClusterError, StartError

_LAUNCHER = Path(__file__).parent / "launcher.py"
_POLL = 0.01
_LAUNCH_TIMEOUT = 20.0
_KILL_TIMEOUT = 10.0
_REAP_TIMEOUT = 5.0
# Zombie, dead.
_ENDED = "ZX"


@dataclass(frozen=True)
class Process:
    """A recorded process. `pid` is 0 if it has not recorded itself."""

    name: str
    directory: Path
    pid: int = 0
    identity: str = ""

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.name}.log"

    def last_log_line(self) -> str:
        """The last line that it logged, shortened; "no message" when there is none."""
        try:
            lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip()[:300] if lines else "no message"

    @property
    def argv(self) -> list[str]:
        """Its command line. Raises ClusterError where no such process was started."""
        words: list[str] = self._spec()["argv"]
        return words

    def _spec(self) -> dict[str, Any]:
        try:
            spec: dict[str, Any] = json.loads(_file(self.directory, self.name, "json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ClusterError(f"{self.directory} has no process {self.name} to restart") from error
        return spec

    def alive(self) -> bool:
        """Does exactly this process still run? A zombie has ended, a stranger with its pid is not it."""
        running, identity = _look_at(self.pid)
        if not identity or identity != self.identity:
            return False
        if running:
            return True
        # Our own child, perhaps: only its parent can reap it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return False

    def check(self) -> None:
        """Raises StartError if it does not run."""
        if not self.alive():
            raise StartError(f"{self.name} ended unexpectedly: {self.last_log_line()} (whole log: {self.log})")

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal, if it still runs."""
        if not self.alive():
            return
        with contextlib.suppress(OSError):
            # Held open, the pid cannot pass to a stranger between the look at it and the signal.
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def restart(self, argv: Sequence[str] = ()) -> "Process":
        """Kills the process (SIGKILL: as a crash) and starts it again as it was started, or as `argv`."""
        spec = self._spec()
        _end([self], signal.SIGKILL, _KILL_TIMEOUT)
        return spawn(self.name, argv or spec["argv"], self.directory, spec["env"])


def spawn(name: str, argv: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> Process:
    """Starts `argv` (an absolute path first) as process `name` of the cluster in `directory`.

    `env` is added to the caller's environment. The process leads its own session, so that neither a Ctrl-C nor the end
    of the caller's terminal reaches it. StartError when it does not come up at all."""
    directory = directory.absolute()
    for folder in ("processes", "logs"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [str(word) for word in argv],
        "env": {**os.environ, **(env or {})},
        "cwd": str(directory),
        "log": str(Process(name, directory).log),
    }
    _file(directory, name, "pid").unlink(missing_ok=True)
    path = _file(directory, name, "json")
    write_private(path, json.dumps(spec).encode())
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(path)]
    # Not subprocess: a Popen that is dropped while its process runs complains, and these are meant to be dropped.
    pid = os.posix_spawn(sys.executable, launcher, os.environ)
    deadline = time.monotonic() + _LAUNCH_TIMEOUT
    while True:
        has_failed = time.monotonic() > deadline or not _look_at(pid)[0]  # before the record: one may end at once
        process = find(directory, name)
        if process.pid == pid:
            return process
        if has_failed:
            raise StartError(f"{name} did not start: {process.last_log_line()}")
        time.sleep(_POLL)


def find(directory: Path, name: str) -> Process:
    """The recorded process `name` of the cluster in `directory`, running or not."""
    try:
        pid, _, token = _file(directory, name, "pid").read_text("ascii").strip().partition(" ")
        return Process(name, directory, int(pid), token)
    except (OSError, ValueError):
        return Process(name, directory)


def names(directory: Path) -> list[str]:
    """Returns the names of all processes that the cluster in `directory` has, or had and did not stop; sorted."""
    files = (directory / "processes").glob("*.*")
    return sorted({file.stem for file in files if file.suffix in (".json", ".pid")})


def stop(directory: Path, only: Iterable[str] | None = None, *, grace: float = 0.0) -> list[str]:
    """Ends the recorded processes (all, or `only` these) and returns the names of those that ran: SIGTERM, after
    `grace` seconds SIGKILL. ClusterError when one survives even that."""
    chosen_names = names(directory) if only is None else list(only)
    for name in chosen_names:
        _file(directory, name, "json").unlink(missing_ok=True)
    running = [process for name in chosen_names if (process := find(directory, name)).alive()]
    survivors = _end(running, signal.SIGTERM, grace) if grace else running
    survivors = _end(survivors, signal.SIGKILL, _KILL_TIMEOUT)
    if survivors:
        listing = ", ".join(f"{process.name} ({process.pid})" for process in survivors)
        raise ClusterError(f"these processes do not exit: {listing}")
    for name in chosen_names:
        _file(directory, name, "pid").unlink(missing_ok=True)
    _wait_reaped(running)
    return [process.name for process in running]


def _file(directory: Path, name: str, suffix: str) -> Path:
    return directory / "processes" / f"{name}.{suffix}"


def _look_at(pid: int) -> tuple[bool, str]:
    """Returns whether process `pid` still runs, and its identity; (False, "") if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        # A killed server is a zombie already while its other threads still hold its ports.
        state, threads = fields[0], int(fields[17])
        return state not in _ENDED or threads > 1, identity(pid)
    except (OSError, IndexError):
        return False, ""


def _end(processes: Sequence[Process], number: signal.Signals, timeout: float) -> list[Process]:
    """Signals all, waits for all, and returns those that still run after `timeout` seconds."""
    for process in processes:
        process.signal(number)
    deadline = time.monotonic() + timeout
    remaining = [process for process in processes if process.alive()]
    while remaining and time.monotonic() < deadline:
        time.sleep(_POLL)
        remaining = [process for process in remaining if process.alive()]
    return remaining


def _wait_reaped(processes: Sequence[Process]) -> None:
    """Gives pid 1, which adopts ended processes, a moment to reap them: `ps` then shows none."""
    deadline = time.monotonic() + _REAP_TIMEOUT
    while time.monotonic() < deadline and any(p.alive() or _look_at(p.pid)[1] == p.identity for p in processes):
        time.sleep(_POLL)


def write_private(path: Path, content: bytes) -> None:
    """Writes at once or not at all, readable by the owner only: an environment may hold secrets, as a key is one."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)
