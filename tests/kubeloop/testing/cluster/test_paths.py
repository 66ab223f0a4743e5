"""Locks between processes, and ports; what no run on a cluster shows: where the servers listen, whose configuration
they read, who can read the keys."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kubeloop.testing.cluster.binaries import Binaries
from kubeloop.testing.cluster.control_plane import STAGES, ControlPlane, prepare
from kubeloop.testing.cluster.paths import Paths, free_ports, locked
from kubeloop.testing.cluster.reporting import ClusterError

_HOLDER = """
import sys
from pathlib import Path
from kubeloop.testing.cluster.paths import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_free_once_its_holder_has_ended(tmp_path: Path) -> None:
    lock, waited = tmp_path / "lock", list[float]()
    command = [sys.executable, "-c", _HOLDER, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[4]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ClusterError, match="is held by another process"), locked(lock, timeout=0.3):
            pass

        def waiting(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                holder.kill()

        with pytest.raises(RuntimeError), locked(lock, timeout=60, waiting=waiting):
            raise RuntimeError
    assert len(waited) >= 3
    assert waited == sorted(waited)
    with locked(lock, timeout=0):
        pass


def test_no_port_is_given_twice_in_a_row_nor_to_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [*free_ports(20), *(free_ports(1)[0] for _ in range(30))]
    assert len(set(ports)) == 50
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw15")
    assert not {port % 16 for port in ports} & {port % 16 for port in free_ports(50)}


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        monkeypatch.setattr("kubeloop.testing.cluster.paths._PORTS", range(used, used + 1))
        with pytest.raises(ClusterError, match="fewer than 1 free ports"):
            free_ports(1)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    binaries = Binaries(Path("/b/etcd"), Path("/b/kube-apiserver"), Path("/b/kcm"), Path("/b/kwok"))
    return prepare(Paths(tmp_path_factory.mktemp("cluster")), binaries)


def test_every_listener_is_on_loopback_with_tls(plane: ControlPlane) -> None:
    etcd, api = plane.etcd().argv, plane.kube_apiserver().argv
    urls = [word.partition("=")[2] for word in etcd if word.startswith("--listen-")]
    assert [url.rpartition(":")[0] for url in urls] == ["https://127.0.0.1"] * 2
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(etcd)
    assert {"--bind-address=127.0.0.1", f"--secure-port={plane.api_port}"} <= set(api)
    assert "--secure-port=0" in plane.kube_controller_manager().argv


def test_kwok_reads_our_stages_alone(plane: ControlPlane) -> None:
    kwok = plane.kwok()
    configs = [word.removeprefix("--config=") for word in kwok.argv if word.startswith("--config=")]
    assert configs == [str(path) for path in sorted(STAGES.glob("*.yaml"))]
    assert not Path(kwok.env["KWOK_WORKDIR"]).exists()


def test_keys_are_private_and_the_cas_is_never_written(plane: ControlPlane) -> None:
    keys = [plane.paths.kubeconfig, *plane.paths.pki.glob("*.key"), *plane.paths.pki.glob("*.kubeconfig")]
    assert len(keys) == 8
    assert [path.name for path in keys if path.stat().st_mode & 0o077 or path.stem == "ca"] == []
