from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kubeloop.testing.cluster.download import REACHABILITY_TIMEOUT, artifacts_of, checksum_in, fetch, release_sources
from kubeloop.testing.cluster.errors import DownloadError
from kubeloop.testing.cluster.versions import (
    ETCD,
    ETCD_COMPONENT,
    HELM,
    HELM_COMPONENT,
    KUBERNETES_DEFAULT,
    KWOK,
    KWOK_COMPONENT,
    PROMETHEUS,
    PROMETHEUS_COMPONENT,
    kubernetes,
)
from kubeloop.testing.polling import PATIENCE

from .fakes import Answer, Notes, cut_short, kwok_site, serve, sha256, tarball, trickle

KUBERNETES_COMPONENT = kubernetes(KUBERNETES_DEFAULT)
KUBERNETES = KUBERNETES_COMPONENT.version
COMPONENTS = (ETCD_COMPONENT, KUBERNETES_COMPONENT, KWOK_COMPONENT)
DIGEST = "0123456789abcdef" * 4
PROGRAM = b"program" * 1000


@pytest.fixture(autouse=True)
def linux_on_amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")


GITHUB, ON = "https://github.com", "linux-amd64"
OFFICIAL = {
    # the binary -> its project, its address, and the file beside that which holds its checksum
    "kube-apiserver": (
        KUBERNETES_COMPONENT,
        f"https://dl.k8s.io/release/{KUBERNETES}/bin/linux/amd64/kube-apiserver",
        "kube-apiserver.sha256",
    ),
    "etcd": (ETCD_COMPONENT, f"{GITHUB}/etcd-io/etcd/releases/download/{ETCD}/etcd-{ETCD}-{ON}.tar.gz", "SHA256SUMS"),
    "kwok": (KWOK_COMPONENT, f"{GITHUB}/kubernetes-sigs/kwok/releases/download/{KWOK}/kwok-{ON}", f"kwok-{ON}.sha256"),
    "helm": (HELM_COMPONENT, f"https://get.helm.sh/helm-{HELM}-{ON}.tar.gz", f"helm-{HELM}-{ON}.tar.gz.sha256sum"),
    "promtool": (
        PROMETHEUS_COMPONENT,
        f"{GITHUB}/prometheus/prometheus/releases/download/{PROMETHEUS}/prometheus-{PROMETHEUS[1:]}.{ON}.tar.gz",
        "sha256sums.txt",
    ),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_addresses_of(name: str) -> None:
    component, url, checksums = OFFICIAL[name]
    artifact = artifacts_of(component, {})[name]
    assert (artifact.url, artifact.checksum_url) == (url, f"{url.rpartition('/')[0]}/{checksums}")


def test_the_address_follows_mirror_version_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    newer = dataclasses.replace(ETCD_COMPONENT, version="v9.9.9")
    artifact = artifacts_of(newer, {"KUBELOOP_DOWNLOAD_ETCD": "http://mirror.example/etcd/"})["etcd"]
    assert artifact.url == "http://mirror.example/etcd/v9.9.9/etcd-v9.9.9-linux-arm64.tar.gz"
    assert artifact.member == "etcd-v9.9.9-linux-arm64/etcd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(DIGEST, DIGEST, id="a bare digest"),
        pytest.param(DIGEST.upper() + "\n", DIGEST, id="a bare digest in capitals with a line end"),
        pytest.param(f"{DIGEST}  etcd.tar.gz\n", DIGEST, id="a line of sha256sum"),
        pytest.param(f"{DIGEST} *etcd.tar.gz\n", DIGEST, id="a line of sha256sum in binary mode"),
        pytest.param(f"{DIGEST}  ./release/etcd.tar.gz\n", DIGEST, id="a path that ends in the file"),
        pytest.param(f"{'f' * 64}  etcd-arm.tar.gz\n{DIGEST}  etcd.tar.gz\n", DIGEST, id="the second of two lines"),
        pytest.param(f"{DIGEST}  other.tar.gz\n", "", id="only another file"),
        pytest.param(f"{DIGEST}  not-etcd.tar.gz\n", "", id="a longer name with the same end"),
        pytest.param("<html>Not found</html>", "", id="a page instead of a checksum file"),
        pytest.param(DIGEST[:-1] + "  etcd.tar.gz", "", id="a digest that is too short"),
        pytest.param("g" * 64, "", id="sixty-four characters that are not hexadecimal"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_a_checksum_is_read_from(text: str, expected: str) -> None:
    assert checksum_in(text, "etcd.tar.gz") == expected


def _fetch_kwok(answers: Mapping[str, Answer], scratch: Path) -> Path:
    with serve(answers) as (address, _):
        sources = release_sources([KWOK_COMPONENT], {"KUBELOOP_DOWNLOAD_KWOK": address}, Notes())
        return fetch("kwok", sources["kwok"], scratch, Notes())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"tampered", f"its publisher names {sha256(PROGRAM)}", id="is not what its checksum says"),
        pytest.param(404, "HTTP 404", id="is not there"),
        pytest.param(503, "HTTP 503", id="is behind a server that is down"),
        pytest.param(cut_short(PROGRAM), "ended 3500 bytes early", id="ends half way"),
    ],
)
def test_a_download_fails_with_its_reason_when_the_file(answer: Answer, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=reason):
        _fetch_kwok(kwok_site(answer, sha256(PROGRAM).encode()), tmp_path)


def test_a_binary_without_a_published_checksum_is_not_downloaded(tmp_path: Path) -> None:
    folder, notes = f"/release/{KUBERNETES}/bin/linux/amd64", Notes()
    answers: dict[str, Answer] = {
        f"{folder}/kube-apiserver": b"api",
        f"{folder}/kube-apiserver.sha256": sha256(b"api").encode(),
        f"{folder}/kube-controller-manager": b"manager",
    }
    with serve(answers) as (address, _):
        environ = {"KUBELOOP_DOWNLOAD_KUBERNETES": address}
        sources = release_sources([KUBERNETES_COMPONENT], environ, notes)
        assert fetch("kube-apiserver", sources["kube-apiserver"], tmp_path, Notes()).read_bytes() == b"api"
    assert list(sources) == ["kube-apiserver"]
    assert notes.steps == ["kube-controller-manager: no verified release can be downloaded"]


def _fetch_etcd(archive: bytes, scratch: Path) -> Path:
    stem = f"etcd-{ETCD}-linux-amd64"
    sums = f"{'0' * 64}  etcd-{ETCD}-darwin-amd64.zip\n{sha256(archive)}  {stem}.tar.gz\n"
    answers: dict[str, Answer] = {f"/{ETCD}/{stem}.tar.gz": archive, f"/{ETCD}/SHA256SUMS": sums.encode()}
    with serve(answers) as (address, _):
        sources = release_sources([ETCD_COMPONENT], {"KUBELOOP_DOWNLOAD_ETCD": address}, Notes())
        return fetch("etcd", sources["etcd"], scratch, Notes())


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(tarball("elsewhere/etcd", b"x"), id="has it at another path"),
        pytest.param(b"this is no archive", id="is no tarball"),
        pytest.param(tarball(f"etcd-{ETCD}-linux-amd64/etcd", bytes(range(256)) * 9000)[:900], id="is cut off"),
    ],
)
def test_etcd_is_not_taken_from_an_archive_that(archive: bytes, tmp_path: Path) -> None:
    right = tarball(f"etcd-{ETCD}-linux-amd64/etcd", b"the server")
    assert _fetch_etcd(right, tmp_path).read_bytes() == b"the server"
    with pytest.raises(DownloadError, match="the archive holds no readable"):
        _fetch_etcd(archive, tmp_path)


def _bases(address: str) -> dict[str, str]:
    return {f"KUBELOOP_DOWNLOAD_{component.name.upper()}": address for component in COMPONENTS}


def test_sites_that_never_answer_are_given_up_together() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, serve(kwok_site(PROGRAM, trickle)) as (trickling, _):
        environ = _bases(f"http://127.0.0.1:{silent.getsockname()[1]}") | {"KUBELOOP_DOWNLOAD_KWOK": trickling}
        began = time.monotonic()
        assert release_sources(COMPONENTS, environ, Notes()) == {}
        elapsed = time.monotonic() - began
    assert elapsed < 3 * REACHABILITY_TIMEOUT, "four one after the other take four times as long; it trickles for 25 s"


def test_a_silent_site_does_not_hide_one_that_answers(tmp_path: Path) -> None:
    silent = socket.create_server(("127.0.0.1", 0))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        """The silent one is silent until now; what it accepted is reset."""
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(sha256(b"program").encode())
        silent.close()

    with silent, serve(kwok_site(b"program", answer)) as (address, _):
        environ = _bases(f"http://127.0.0.1:{silent.getsockname()[1]}") | {"KUBELOOP_DOWNLOAD_KWOK": address}
        sources = release_sources(COMPONENTS, environ, Notes(), timeout=PATIENCE)
        assert list(sources) == ["kwok"]
        assert fetch("kwok", sources["kwok"], tmp_path, Notes()).read_bytes() == b"program"


@pytest.mark.parametrize("base", ["http://127.0.0.1:9", "http://no-such-host.invalid", "not a url"])
def test_nothing_is_downloaded_from(base: str) -> None:
    assert release_sources(COMPONENTS, _bases(base), Notes()) == {}


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false", "no"])
def test_downloads_are_switched_off_by(value: str) -> None:
    with serve(kwok_site(PROGRAM)) as (address, requests):
        environ = {"KUBELOOP_DOWNLOAD": value, "KUBELOOP_DOWNLOAD_KWOK": address}
        assert release_sources([KWOK_COMPONENT], environ, Notes()) == {}
    assert requests == []
