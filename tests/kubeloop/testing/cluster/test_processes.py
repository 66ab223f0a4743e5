import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.launcher import identity
from kubeloop.testing.cluster.reporting import ClusterError, StartError
from kubeloop.testing.polling import eventually

from .fakes import write_executable

SLEEP = ["/bin/sleep", "600"]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A cluster's directory; whatever a test leaves running in it is ended."""
    yield tmp_path
    processes.stop(tmp_path)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no business of any cluster."""
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()


def _record(directory: Path, name: str, pid: int, token: str) -> None:
    (directory / "processes").mkdir(exist_ok=True)
    (directory / "processes" / f"{name}.json").write_text(json.dumps({"argv": SLEEP}))
    (directory / "processes" / f"{name}.pid").write_text(f"{pid} {token}\n")


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_spawned_process_is_found_by_its_name(directory: Path) -> None:
    process = processes.spawn("sleeper", SLEEP, directory)
    assert process.alive()
    assert eventually(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"/bin/sleep\x00600\x00")
    assert os.getsid(process.pid) == process.pid != os.getsid(0), "Ctrl-C does not reach it"
    assert processes.find(directory, "sleeper") == process
    assert processes.names(directory) == ["sleeper"]


def test_a_program_has_environment_and_log_and_no_input(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_CALLER", "1")
    command = ["/bin/sh", "-c", "cat; echo $FROM_CALLER $ADDED; echo err >&2"]
    process = processes.spawn("speaker", command, directory, {"ADDED": "2"})
    assert eventually(lambda: not process.alive())
    assert process.log.read_text() == "1 2\nerr\n"
    assert (directory / "processes" / "speaker.json").stat().st_mode & 0o077 == 0, "an environment may hold secrets"


@pytest.mark.parametrize("inheritable", [False, True], ids=["a file", "a lock of flock"])
def test_the_callers_open_files_are_not_inherited(directory: Path, inheritable: bool) -> None:
    with (directory / "open").open("w") as file:
        os.set_inheritable(file.fileno(), inheritable)
        process = processes.spawn("lister", ["/bin/sh", "-c", "ls -l /proc/$$/fd; echo listed"], directory)
        assert eventually(lambda: "listed" in process.log.read_text())
    assert str(process.log) in process.log.read_text()
    assert str(directory / "open") not in process.log.read_text()


def test_a_program_that_cannot_be_started_says_so_in_its_log(directory: Path) -> None:
    process = processes.spawn("nothing", ["/no/such/program"], directory)
    assert eventually(lambda: not process.alive())
    assert "/no/such/program cannot be started: No such file" in process.last_log_line()


def test_a_launcher_that_fails_is_a_start_error(directory: Path) -> None:
    (directory / "logs" / "sleeper.log").mkdir(parents=True)  # a folder where the log should be
    with pytest.raises(StartError, match="sleeper did not start"):
        processes.spawn("sleeper", SLEEP, directory)


def test_stop_ends_those_that_are_named_or_all_and_forgets_them(directory: Path) -> None:
    first_process, second_process, third_process = (
        processes.spawn(name, SLEEP, directory) for name in ("one", "two", "three")
    )
    assert processes.stop(directory, ["one", "unknown"]) == ["one"]
    assert (_exists(first_process.pid), second_process.alive(), third_process.alive()) == (False, True, True)
    assert processes.stop(directory) == ["three", "two"]
    assert not any(_exists(process.pid) for process in (second_process, third_process))
    assert processes.names(directory) == []


@pytest.mark.parametrize(
    ("trap", "grace", "least", "log"),
    [("'echo finished; exit 0'", 10.0, 0.0, "started\nfinished\n"), ("''", 0.2, 0.2, "started\n")],
    ids=["it may finish", "it is killed after that"],
)
def test_with_grace(trap: str, grace: float, least: float, log: str, directory: Path) -> None:
    script = f"trap {trap} TERM; echo started; while :; do sleep 0.01; done"
    process = processes.spawn("worker", ["/bin/sh", "-c", script], directory)
    assert eventually(lambda: "started" in process.log.read_text())
    began = time.monotonic()
    processes.stop(directory, grace=grace)
    assert (process.log.read_text(), _exists(process.pid)) == (log, False)
    assert least <= time.monotonic() - began < 15


@pytest.mark.parametrize("difference", ["start time", "boot"])
def test_a_stranger_with_the_same_pid_is_left_alone(
    directory: Path, stranger: subprocess.Popen[bytes], difference: str
) -> None:
    boot, ticks = identity(stranger.pid).split()
    earlier = (
        f"{boot} {int(ticks) - 1}" if difference == "start time" else f"00000000-0000-0000-0000-000000000000 {ticks}"
    )
    _record(directory, "etcd", stranger.pid, earlier)
    assert not processes.find(directory, "etcd").alive()
    assert processes.stop(directory, grace=0.1) == []
    assert stranger.poll() is None
    assert processes.names(directory) == []


def test_another_program_ends_the_recorded_process(directory: Path, stranger: subprocess.Popen[bytes]) -> None:
    _record(directory, "etcd", stranger.pid, identity(stranger.pid))
    assert processes.stop(directory) == ["etcd"]
    assert not _exists(stranger.pid)


@pytest.mark.parametrize("record", ["", "not a pid", "0 x 1", "4194304000 x 1", "-1 x 1"])
def test_no_process_is_signalled_by_a_broken_record(record: str, directory: Path) -> None:
    (directory / "processes").mkdir()
    (directory / "processes" / "etcd.pid").write_text(record)
    assert not processes.find(directory, "etcd").alive()
    assert processes.stop(directory, grace=0.1) == []


def test_a_zombie_has_ended(directory: Path) -> None:
    zombie = subprocess.Popen(["/bin/true"])
    token = identity(zombie.pid)
    assert eventually(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    # Not our child in the eyes of `alive`: a thread's waitpid would reap it otherwise.
    _record(directory, "etcd", zombie.pid, token)
    assert not processes.find(directory, "etcd").alive()
    zombie.wait()


def test_an_identity_survives_odd_command_names(directory: Path) -> None:
    odd = write_executable(directory / "a ) 1 2 (b", "#!/bin/sh\nsleep 600\n")
    process = processes.spawn("odd", [str(odd)], directory)
    assert eventually(lambda: ") 1 2 (" in Path(f"/proc/{process.pid}/stat").read_text())
    assert process.alive()


def test_a_launcher_without_its_spec_starts_nothing(directory: Path) -> None:
    """`down` came between the start of the launcher and its exec, after the program that wanted it was killed."""
    marker, spec = directory / "started", directory / "processes" / "late.json"
    spec.parent.mkdir()
    content = {"argv": ["/usr/bin/touch", str(marker)], "env": {}, "cwd": str(directory), "log": str(directory / "log")}
    os.mkfifo(spec)
    command = [sys.executable, "-I", "-S", str(processes._LAUNCHER), str(spec)]
    launcher = subprocess.Popen(command)
    with spec.open("w") as pipe:
        # The launcher has opened its spec and reads it; the name is gone before it gets to the end.
        spec.unlink()
        json.dump(content, pipe)
    assert launcher.wait(timeout=60) == 0
    assert not marker.exists()
    later = subprocess.run(command, capture_output=True, timeout=60)
    assert (later.returncode, later.stderr) == (0, b""), "it had not even read it"


def test_restart_starts_the_same_command_and_environment(directory: Path) -> None:
    command = ["/bin/sh", "-c", "echo $WORD; exec sleep 600"]
    first_process = processes.spawn("worker", command, directory, {"WORD": "hello"})
    assert eventually(lambda: first_process.log.exists() and first_process.log.read_text() == "hello\n")
    second_process = processes.find(directory, "worker").restart()
    assert (first_process.alive(), second_process.alive()) == (False, True)
    assert first_process.pid != second_process.pid
    assert eventually(lambda: second_process.log.read_text() == "hello\nhello\n")
    second_process.signal(signal.SIGKILL)
    assert eventually(lambda: not second_process.alive())
    assert processes.find(directory, "worker").restart().alive(), "one that died is started too"
    with pytest.raises(ClusterError, match="has no process unknown to restart"):
        processes.find(directory, "unknown").restart()
