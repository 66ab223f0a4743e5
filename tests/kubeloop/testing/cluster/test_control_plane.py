from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kubeloop.testing.cluster.binaries import Binaries
from kubeloop.testing.cluster.control_plane import STAGES, Command, ControlPlane, prepare
from kubeloop.testing.cluster.paths import Paths, free_ports


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    binaries = Binaries(Path("/b/etcd"), Path("/b/kube-apiserver"), Path("/b/kcm"), Path("/b/kwok"))
    return prepare(Paths(tmp_path_factory.mktemp("cluster")), binaries)


def _flag(command: Command, name: str) -> str:
    values = [word.partition("=")[2] for word in command.argv if word.startswith(f"--{name}=")]
    assert len(values) == 1, (name, values)
    return values[0]


def test_every_listener_is_on_loopback_with_tls(plane: ControlPlane) -> None:
    etcd, server = plane.etcd(), plane.kube_apiserver()
    for flag in ("listen-client-urls", "listen-peer-urls"):
        assert _flag(etcd, flag).startswith("https://127.0.0.1:")
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(etcd.argv)
    assert _flag(server, "bind-address") == "127.0.0.1"
    assert _flag(server, "secure-port") == str(plane.api_port)
    assert _flag(plane.kube_controller_manager(), "secure-port") == "0"


def test_kwok_reads_our_stages_and_not_a_persons_own_configuration(plane: ControlPlane) -> None:
    kwok = plane.kwok()
    given = [word.removeprefix("--config=") for word in kwok.argv if word.startswith("--config=")]
    assert given == [str(path) for path in sorted(STAGES.glob("*.yaml"))]
    assert not Path(kwok.env["KWOK_WORKDIR"]).exists()


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_no_port_is_given_twice_in_a_row_nor_to_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [free_ports(1)[0] for _ in range(50)]
    assert len(set(given)) == 50
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw15")
    assert not {port % 16 for port in given} & {port % 16 for port in free_ports(50)}


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        monkeypatch.setattr("kubeloop.testing.cluster.paths._PORTS", range(used, used + 1))
        with pytest.raises(Exception, match="fewer than 1 free ports"):
            free_ports(1)
