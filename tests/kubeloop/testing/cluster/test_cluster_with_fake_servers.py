"""up and down where it goes wrong, with servers that are scripts: quick, and each can be made to fail at will."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kubeloop.client.client import Client
from kubeloop.testing.cluster import cluster, processes, readiness
from kubeloop.testing.cluster.cluster import guarded
from kubeloop.testing.cluster.reporting import ClusterError, StartError
from kubeloop.testing.cluster.versions import KUBERNETES, KUBERNETES_DEFAULT
from kubeloop.testing.polling import eventually

from .fakes import versioned, write_executable

ROOT = Path(__file__).parents[4]

# Listens where etcd would, as long as it is wanted.
_ETCD = f"""#!{sys.executable} -IS
import socket, sys, time
port = next(word for word in sys.argv if word.startswith("--listen-client-urls=")).rpartition(":")[2]
server = socket.create_server(("127.0.0.1", int(port)))
time.sleep(600)
"""
_VERSION = KUBERNETES[KUBERNETES_DEFAULT]
_SLEEPS = versioned(_VERSION, "exec sleep 600")
_FAILS = versioned(_VERSION, "echo 'starting' >&2\necho 'unknown flag: --frobnicate' >&2\nexit 1")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A cluster's directory, of which nothing runs any more after the test."""
    directory = tmp_path / "cluster"
    yield directory
    cluster.down(directory)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of servers for $KUBEBUILDER_ASSETS: etcd listens, the API server never gets ready."""
    assets = tmp_path / "assets"
    write_executable(assets / "etcd", _ETCD)
    for name in ("kube-apiserver", "kube-controller-manager", "kwok"):
        write_executable(assets / name, _SLEEPS)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.delenv("KUBELOOP_KUBERNETES", raising=False)
    return assets


def _start_up(directory: Path, code: str = "cluster.up(Path(sys.argv[1]))") -> subprocess.Popen[bytes]:
    """Another program that is about to wait for the API server of a cluster in `directory`."""
    # Of a test run in the background SIGINT is ignored, under nohup SIGHUP is, and children inherit that.
    heard = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); s.signal(s.SIGHUP, s.SIG_DFL)"
    program = f"{heard}; import sys; from pathlib import Path; from kubeloop.testing.cluster import cluster; {code}"
    command = [sys.executable, "-c", program, str(directory)]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    assert eventually(lambda: processes.find(directory, "kube-apiserver").alive())
    return running


def _recorded(directory: Path) -> list[processes.Process]:
    return [processes.find(directory, name) for name in processes.names(directory)]


@pytest.mark.parametrize("server", ["etcd", "kube-apiserver"])
def test_a_server_that_ends_at_once_is_one_clear_error(server: str, servers: Path, directory: Path) -> None:
    write_executable(servers / server, _FAILS)
    with pytest.raises(StartError) as caught:
        cluster.up(directory)
    message = str(caught.value)
    assert message.startswith(f"{server} ended unexpectedly: unknown flag: --frobnicate (whole log: ")
    assert "\n" not in message
    assert processes.names(directory) == []


@pytest.mark.usefixtures("servers")
def test_an_api_server_that_does_not_get_ready_is_given_up(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, ahead = readiness.server_ready, 0.0

    async def ask_late(client: Client) -> bool:
        nonlocal ahead
        ahead = readiness.START_TIMEOUT
        return await ask(client)

    monkeypatch.setattr(readiness, "server_ready", ask_late)
    monkeypatch.setattr(readiness, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    with pytest.raises(StartError, match=r"the API server is not ready after 300 s: see the logs in .*/logs"):
        cluster.up(directory)
    assert processes.names(directory) == []


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_up_that_is_ended_half_way_leaves_nothing_running(number: signal.Signals, directory: Path) -> None:
    running = _start_up(directory)
    started = _recorded(directory)
    assert [process.name for process in started] == ["etcd", "kube-apiserver"]
    os.killpg(running.pid, number)  # as a terminal does
    running.wait()
    assert eventually(lambda: not any(process.alive() for process in started))
    assert eventually(lambda: processes.names(directory) == [])


@pytest.mark.usefixtures("servers")
def test_down_ends_a_cluster_without_a_guard_and_no_other(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    bystander = processes.spawn("etcd", ["/bin/sleep", "600"], tmp_path / "other")
    running = _start_up(directory, "cluster._up(Path(sys.argv[1]), cluster.Options(), cluster.Progress())")
    started = _recorded(directory)
    running.kill()
    running.wait()
    assert all(process.alive() for process in started)
    assert cluster.status(directory).ready is False
    assert cluster.down(directory) == ["etcd", "kube-apiserver"]
    assert not any(process.alive() for process in started)
    assert cluster.down(directory) == []
    assert cluster.down(tmp_path / "other") == ["etcd"]
    assert not bystander.alive()


def test_up_where_a_cluster_runs_is_refused_and_that_one_runs_on(servers: Path, directory: Path) -> None:
    assert servers.is_dir()
    server = processes.spawn("kube-apiserver", ["/bin/sleep", "600"], directory)
    with pytest.raises(ClusterError, match="run `down` first"):
        cluster.up(directory)
    assert server.alive()


def test_up_clears_a_crashed_cluster_and_down_keeps_logs(servers: Path, directory: Path) -> None:
    write_executable(servers / "kube-apiserver", _FAILS)
    orphan = processes.spawn("kwok", ["/bin/sleep", "600"], directory)
    (directory / "etcd").mkdir()
    (directory / "etcd" / "old").touch()
    (directory / "mine").write_text("keep")
    with pytest.raises(StartError):
        cluster.up(directory)
    assert not orphan.alive()
    assert "unknown flag" in (directory / "logs" / "kube-apiserver.log").read_text()
    assert {path.name for path in directory.iterdir()} == {".lock", "logs", "mine", "processes"}


@pytest.mark.usefixtures("servers")
def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ensure_binaries", lambda *_, **__: pytest.fail("they were looked for"))
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot be used as the cluster's directory"):
        cluster.up(tmp_path / "file" / "cluster")


def test_a_directory_that_is_not_there_is_not_made(directory: Path) -> None:
    assert (cluster.status(directory).ready, cluster.status(directory).processes) == (False, {})
    assert cluster.down(directory) == []
    assert not directory.exists()


def test_status_tells_a_dead_process_from_a_running_one(directory: Path) -> None:
    alive = processes.spawn("etcd", ["/bin/sleep", "600"], directory)
    dead = processes.spawn("kwok", ["/bin/true"], directory)
    assert eventually(lambda: not dead.alive())
    assert cluster.status(directory).processes == {"etcd": alive.pid, "kwok": 0}


def test_a_guard_that_is_left_ends_and_the_cluster_runs_on(directory: Path) -> None:
    with guarded(directory) as guard:
        process = processes.spawn("etcd", ["/bin/sleep", "600"], directory)
        pid = guard.pid
    assert process.alive()
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.usefixtures("servers")
def test_a_killed_program_leaves_no_temporary_directory(tmp_path: Path) -> None:
    code = "import tempfile; tempfile.tempdir = sys.argv[1]; cluster.EmbeddedCluster().__enter__()"
    program = f"import sys; from pathlib import Path; from kubeloop.testing.cluster import cluster; {code}"
    folder = tmp_path / "temporary"
    folder.mkdir()

    def directories() -> list[Path]:
        """The cluster's: its client makes one, too, for the moment in which it reads its key."""
        return list(folder.glob("kubeloop-cluster-*"))

    running = subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=ROOT)
    assert eventually(lambda: any(processes.find(d, "kube-apiserver").alive() for d in directories()))
    started = _recorded(directories()[0])
    running.kill()
    running.wait()
    assert eventually(lambda: not any(process.alive() for process in started))
    assert eventually(lambda: directories() == [])
