"""Properties that no run on a cluster shows: where the servers listen, whose configuration they read, who can read the
keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeloop.testing.cluster.binaries import Binaries
from kubeloop.testing.cluster.control_plane import STAGES, ControlPlane, prepare
from kubeloop.testing.cluster.paths import Paths


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
