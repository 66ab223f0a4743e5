"""Processes that outlive the command that started them, and are ended by another one.

Promised: a process is known by a record in its cluster's folder from before it does anything until it has ended, and
only the process that was recorded is ever signalled: a stranger that got the same pid later has another start time.

D/processes/<name>.json  what to run (argv, environment, folder, log): also what `restart` needs
D/processes/<name>.pid   written by the process itself (launcher.py): "<pid> <boot id> <start time>"
D/logs/<name>.log        its standard output and error"""

from __future__ import annotations

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

from kubeloop.testing.cluster.errors import ClusterError, StartError
from kubeloop.testing.cluster.launcher import identity

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
        return log_path(self.directory, self.name)

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

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal, if it still runs."""
        if not self.alive():
            return
        try:
            # Held open, the pid cannot pass to a stranger between the look at it and the signal.
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def spawn(name: str, argv: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> Process:
    """Starts `argv` (an absolute path first) as process `name` of the cluster in `directory`.

    `env` is added to the caller's environment. The process leads its own session, so that neither a Ctrl-C nor the end
    of the caller's terminal reaches it. StartError when it does not come up at all."""
    folder = directory / "processes"
    for needed in (folder, directory / "logs"):
        needed.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [str(word) for word in argv],
        "env": {**os.environ, **(env or {})},
        "cwd": str(directory.absolute()),
        "log": str(log_path(directory, name).absolute()),
    }
    (folder / f"{name}.pid").unlink(missing_ok=True)
    path = (folder / f"{name}.json").absolute()
    write_private(path, json.dumps(spec).encode())
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(path)]
    # Not subprocess: a Popen that is dropped while its process runs complains, and these are meant to be dropped.
    pid = os.posix_spawn(sys.executable, launcher, os.environ)
    return _await_record(name, directory, pid)


def find(directory: Path, name: str) -> Process:
    """The recorded process `name` of the cluster in `directory`, running or not."""
    try:
        pid, _, token = (directory / "processes" / f"{name}.pid").read_text("ascii").strip().partition(" ")
        return Process(name, directory, int(pid), token)
    except (OSError, ValueError):
        return Process(name, directory)


def names(directory: Path) -> list[str]:
    """Returns the names of all processes that the cluster in `directory` has, or had and did not stop; in alphabetical
    order."""
    files = (directory / "processes").glob("*.*")
    return sorted({file.stem for file in files if file.suffix in (".json", ".pid")})


def check(directory: Path, required: Iterable[str]) -> None:
    """Raises ClusterError if one of the processes does not run."""
    for name in required:
        if not find(directory, name).alive():
            last_line = last_log_line(directory, name) or "no message"
            raise ClusterError(f"{name} exited unexpectedly: {last_line}")


def restart(directory: Path, name: str, argv: Sequence[str] = ()) -> Process:
    """Kills process `name` (SIGKILL: a crash, as far as it knows) and starts it again as it was started, or as
    `argv`."""
    spec = _spec(directory, name)
    _end([find(directory, name)], signal.SIGKILL, _KILL_TIMEOUT)
    return spawn(name, argv or spec["argv"], directory, spec["env"])


def argv(directory: Path, name: str) -> list[str]:
    """Returns the command line of process `name`."""
    words: list[str] = _spec(directory, name)["argv"]
    return words


def _spec(directory: Path, name: str) -> dict[str, Any]:
    try:
        spec: dict[str, Any] = json.loads((directory / "processes" / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ClusterError(f"{directory} has no process {name} to restart") from error
    return spec


def stop(directory: Path, only: Iterable[str] | None = None, *, grace: float = 0.0) -> list[str]:
    """Ends the recorded processes (all, or `only` these), forgets them, and returns the names of those that ran.
    SIGTERM and up to `grace` seconds, then SIGKILL. ClusterError when one survives even that."""
    folder = directory / "processes"
    chosen_names = names(directory) if only is None else list(only)
    for name in chosen_names:
        (folder / f"{name}.json").unlink(missing_ok=True)
    running = [process for name in chosen_names if (process := find(directory, name)).alive()]
    survivors = _end(running, signal.SIGTERM, grace) if grace else running
    survivors = _end(survivors, signal.SIGKILL, _KILL_TIMEOUT)
    if survivors:
        listing = ", ".join(f"{process.name} ({process.pid})" for process in survivors)
        raise ClusterError(f"these processes do not exit: {listing}")
    for name in chosen_names:
        (folder / f"{name}.pid").unlink(missing_ok=True)
    _wait_reaped(running)
    return [process.name for process in running]


def log_path(directory: Path, name: str) -> Path:
    return directory / "logs" / f"{name}.log"


def last_log_line(directory: Path, name: str) -> str:
    """The last line that process `name` logged, shortened; "" when there is none."""
    try:
        lines = log_path(directory, name).read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:300] if lines else ""


def _await_record(name: str, directory: Path, pid: int) -> Process:
    """Waits until launcher `pid` has recorded itself."""
    deadline = time.monotonic() + _LAUNCH_TIMEOUT
    while time.monotonic() < deadline:
        process = find(directory, name)
        if process.pid == pid:
            return process
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                break
        time.sleep(_POLL)
    raise StartError(f"{name} did not start: {last_log_line(directory, name) or 'no message'}")


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
