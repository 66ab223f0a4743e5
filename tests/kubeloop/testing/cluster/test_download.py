import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from kubeloop.testing.cluster.download import artifact_of, checksum_in, download
from kubeloop.testing.cluster.reporting import DownloadError
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
    Component,
    kubernetes,
)

from .fakes import Answer, Notes, cut_short, kwok_site, serve, sha256, tarball

KUBERNETES_COMPONENT = kubernetes(KUBERNETES_DEFAULT)
KUBERNETES = KUBERNETES_COMPONENT.version
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
    assert artifact_of(component, name, {})[:2] == (url, f"{url.rpartition('/')[0]}/{checksums}")


def test_the_address_follows_mirror_version_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    newer = dataclasses.replace(ETCD_COMPONENT, version="v9.9.9")
    url, _, member = artifact_of(newer, "etcd", {"KUBELOOP_DOWNLOAD_ETCD": "http://mirror.example/etcd/"})
    assert url == "http://mirror.example/etcd/v9.9.9/etcd-v9.9.9-linux-arm64.tar.gz"
    assert member == "etcd-v9.9.9-linux-arm64/etcd"


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


def _fetch(component: Component, name: str, answers: Mapping[str, Answer], scratch: Path) -> Path:
    with serve(answers) as (address, _):
        environ = {f"KUBELOOP_DOWNLOAD_{component.name.upper()}": address}
        return download(component, name, scratch, environ, Notes())


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
        _fetch(KWOK_COMPONENT, "kwok", kwok_site(answer, sha256(PROGRAM).encode()), tmp_path)


def test_a_binary_without_a_published_checksum_is_not_downloaded(tmp_path: Path) -> None:
    folder = f"/release/{KUBERNETES}/bin/linux/amd64"
    answers: dict[str, Answer] = {
        f"{folder}/kube-apiserver": b"api",
        f"{folder}/kube-apiserver.sha256": sha256(b"api").encode(),
        f"{folder}/kube-controller-manager": b"manager",
        f"{folder}/kubectl.sha256": b"<html>",
    }
    assert _fetch(KUBERNETES_COMPONENT, "kube-apiserver", answers, tmp_path).read_bytes() == b"api"
    with pytest.raises(DownloadError, match="HTTP 404"):
        _fetch(KUBERNETES_COMPONENT, "kube-controller-manager", answers, tmp_path)
    with pytest.raises(DownloadError, match="names no checksum"):
        _fetch(KUBERNETES_COMPONENT, "kubectl", answers, tmp_path)


def _fetch_etcd(archive: bytes, scratch: Path) -> Path:
    stem = f"etcd-{ETCD}-linux-amd64"
    sums = f"{'0' * 64}  etcd-{ETCD}-darwin-amd64.zip\n{sha256(archive)}  {stem}.tar.gz\n"
    answers: dict[str, Answer] = {f"/{ETCD}/{stem}.tar.gz": archive, f"/{ETCD}/SHA256SUMS": sums.encode()}
    return _fetch(ETCD_COMPONENT, "etcd", answers, scratch)


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


@pytest.mark.parametrize("base", ["http://127.0.0.1:9", "http://no-such-host.invalid", "not a url"])
def test_nothing_is_downloaded_from(base: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="could not be downloaded"):
        download(ETCD_COMPONENT, "etcd", tmp_path, {"KUBELOOP_DOWNLOAD_ETCD": base}, Notes())


def test_a_site_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeloop.testing.cluster.download.ANSWER_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = {"KUBELOOP_DOWNLOAD_KWOK": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(DownloadError, match="timed out"):
            download(KWOK_COMPONENT, "kwok", tmp_path, environ, Notes())


def test_a_site_that_trickles_its_checksums_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeloop.testing.cluster.download.ANSWER_TIMEOUT", 0.5)

    def trickle(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n")
            for _ in range(40):
                connection.sendall(b"0")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=trickle, args=[listening], daemon=True).start()
        environ = {"KUBELOOP_DOWNLOAD_KWOK": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        with pytest.raises(DownloadError, match="timed out"):
            download(KWOK_COMPONENT, "kwok", tmp_path, environ, Notes())


@pytest.mark.parametrize("value", ["off", "OFF"])
def test_downloads_are_switched_off_by(value: str, tmp_path: Path) -> None:
    with serve(kwok_site(PROGRAM)) as (address, requests):
        environ = {"KUBELOOP_DOWNLOAD": value, "KUBELOOP_DOWNLOAD_KWOK": address}
        with pytest.raises(DownloadError, match="downloads are off"):
            download(KWOK_COMPONENT, "kwok", tmp_path, environ, Notes())
    assert requests == []
