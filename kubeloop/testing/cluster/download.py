"""Official releases: where they are, whether they can be reached, and what their checksums say.

A binary is used only when it is what a checksum file *next to it* names. kwok's releases carry none today: kwok comes
from a mirror that adds `<file>.sha256`, or is built.

`$KUBELOOP_DOWNLOAD` = `off`: do not even try. `$KUBELOOP_DOWNLOAD_<PROJECT>` (KUBERNETES, ETCD, KWOK, HELM,
PROMETHEUS): the base address of a mirror, instead of that in _RELEASES."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kubeloop.testing.cluster.errors import DownloadError
from kubeloop.testing.cluster.progress import Progress
from kubeloop.testing.cluster.versions import Component, go_architecture, go_operating_system

#: Seconds, for all projects together, in which reachability is found out.
REACHABILITY_TIMEOUT = 3.0
#: Seconds without a byte after which a running download is given up.
STALL_TIMEOUT = 30.0

_GITHUB = "https://github.com"


class _Release(NamedTuple):
    """The location of a project's files: the address of one below the base address, the checksum file beside it, and
    the path in the archive, where it is one."""

    base: str
    file: str
    checksums: str
    member: str = ""


_RELEASES = {
    "kubernetes": _Release("https://dl.k8s.io", "release/{version}/bin/{os}/{arch}/{name}", "{name}.sha256"),
    "etcd": _Release(
        f"{_GITHUB}/etcd-io/etcd/releases/download",
        "{version}/etcd-{version}-{os}-{arch}.tar.gz",
        "SHA256SUMS",
        "etcd-{version}-{os}-{arch}/etcd",
    ),
    "kwok": _Release(
        f"{_GITHUB}/kubernetes-sigs/kwok/releases/download", "{version}/kwok-{os}-{arch}", "kwok-{os}-{arch}.sha256"
    ),
    "helm": _Release(
        "https://get.helm.sh",
        "helm-{version}-{os}-{arch}.tar.gz",
        "helm-{version}-{os}-{arch}.tar.gz.sha256sum",
        "{os}-{arch}/helm",
    ),
    "prometheus": _Release(
        f"{_GITHUB}/prometheus/prometheus/releases/download",
        "{version}/prometheus-{number}.{os}-{arch}.tar.gz",
        "sha256sums.txt",
        "prometheus-{number}.{os}-{arch}/{name}",
    ),
}
_OFF = {"off", "0", "false", "no"}
_CHUNK = 1 << 20
_CHECKSUM_FILE_LIMIT = 1 << 16


class Artifact(NamedTuple):
    """A file to download. `member` is the path inside the archive, when `url` is a tarball; `checksum` what its
    publisher names, SHA-256 in hexadecimal digits."""

    url: str
    checksum_url: str
    member: str = ""
    checksum: str = ""


def artifacts_of(component: Component, environ: Mapping[str, str]) -> dict[str, Artifact]:
    """The official addresses of `component`'s binaries for this machine, by file name."""
    release, version = _RELEASES[component.name], component.version
    base = (environ.get(f"KUBELOOP_DOWNLOAD_{component.name.upper()}") or release.base).rstrip("/")
    words = {"version": version, "number": version.removeprefix("v"), "os": go_operating_system()}
    artifacts = {}
    for name in component.packages:
        file, checksums, member = (part.format(name=name, arch=go_architecture(), **words) for part in release[1:])
        url = f"{base}/{file}"
        artifacts[name] = Artifact(url, f"{url.rpartition('/')[0]}/{checksums}", member)
    return artifacts


def release_sources(
    components: Iterable[Component],
    environ: Mapping[str, str],
    progress: Progress,
    *,
    timeout: float = REACHABILITY_TIMEOUT,
) -> dict[str, Artifact]:
    """The binaries whose releases can be reached and name their checksum, found out within `timeout` seconds in total.
    Asking for the checksum files answers both questions at once: is the site there, and is there a checksum."""
    if environ.get("KUBELOOP_DOWNLOAD", "").strip().lower() in _OFF:
        return {}
    artifacts = {name: artifact for c in components for name, artifact in artifacts_of(c, environ).items()}
    answers = _ask({artifact.checksum_url for artifact in artifacts.values()}, timeout)
    sources = {}
    for name, artifact in artifacts.items():
        file_name = artifact.url.rpartition("/")[2]
        if checksum := checksum_in(answers.get(artifact.checksum_url, ""), file_name):
            sources[name] = artifact._replace(checksum=checksum)
        else:
            progress.step(f"{name}: no verified release can be downloaded")
    return sources


def checksum_in(text: str, file_name: str) -> str:
    """The SHA-256 (64 hex digits) that a checksum file names for `file_name`, or "" when it names none. Understands a
    bare digest and the lines of sha256sum ("<digest> <name>", "<digest> *<name>")."""
    for line in text.splitlines():
        words = line.split()
        if not words or len(words[0]) != 64 or set(words[0].lower()) - set("0123456789abcdef"):
            continue
        if len(words) == 1 or words[-1].lstrip("*").rsplit("/", 1)[-1] == file_name:
            return words[0].lower()
    return ""


def fetch(name: str, artifact: Artifact, scratch: Path, progress: Progress) -> Path:
    """Downloads binary `name` into `scratch` and returns its path. DownloadError otherwise."""
    progress.step(f"{name}: downloading {artifact.url}")
    archive = scratch / (name + ".download")
    digest = _save(artifact.url, archive, lambda size: progress.tick(f"{name}: {size / 1e6:.0f} MB"))
    if digest != artifact.checksum:
        raise DownloadError(f"{artifact.url} has SHA-256 {digest}, its publisher names {artifact.checksum}")
    if not artifact.member:
        return archive
    return _extract(archive, artifact.member, scratch / name)


def _ask(urls: set[str], timeout: float) -> dict[str, str]:
    """The texts behind `urls`; those that do not answer within `timeout` seconds in total are left out.

    Daemon threads, because resolving a name can hang far beyond any socket timeout: such a thread is left behind and
    may not hold up the end of the program (as a pool's threads would)."""
    answers: dict[str, str] = {}

    def ask(url: str) -> None:
        try:
            with urllib.request.urlopen(url, timeout=timeout) as response:
                answers[url] = response.read(_CHECKSUM_FILE_LIMIT).decode("ascii", "replace")
        except (OSError, http.client.HTTPException, ValueError):
            pass

    deadline = time.monotonic() + timeout
    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in sorted(urls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)


def _save(url: str, target: Path, report: Callable[[int], None]) -> str:
    """Streams `url` into `target`, and returns the SHA-256 of what arrived."""
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=STALL_TIMEOUT) as response, target.open("wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                report(size)
            if response.length:
                raise DownloadError(f"{url} ended {response.length} bytes early")
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{url} could not be downloaded ({_reason(error)})") from error
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return str(getattr(error, "reason", error)) or type(error).__name__


def _extract(archive: Path, member: str, target: Path) -> Path:
    """Takes one regular file out of a tarball, by content only: no path or mode of the archive is followed."""
    try:
        with tarfile.open(archive) as tar:
            source = tar.extractfile(member)
            if source is None:
                raise DownloadError(f"{member} in the archive is not a file")
            with source, target.open("wb") as file:
                while chunk := source.read(_CHUNK):
                    file.write(chunk)
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise DownloadError(f"the archive holds no readable {member}") from error
    return target
