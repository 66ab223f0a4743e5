"""Official releases: where they are, whether they can be reached, and what their checksums say.

A binary is used only when it is what a checksum file *next to it* names: `<file>.sha256` for Kubernetes, `SHA256SUMS`
for etcd, `sha256sums.txt` for Prometheus, `<file>.sha256sum` for helm. kwok's releases carry none today: kwok comes
from a mirror that adds `<file>.sha256`, or is built.

| variable | |
|---|---|
| KUBELOOP_DOWNLOAD | `off`: do not even try |
| KUBELOOP_DOWNLOAD_KUBERNETES | base address instead of https://dl.k8s.io |
| KUBELOOP_DOWNLOAD_ETCD | instead of https://github.com/etcd-io/etcd/releases/download |
| KUBELOOP_DOWNLOAD_KWOK | instead of https://github.com/kubernetes-sigs/kwok/releases/download |
| KUBELOOP_DOWNLOAD_HELM | instead of https://get.helm.sh |
| KUBELOOP_DOWNLOAD_PROMETHEUS | instead of https://github.com/prometheus/prometheus/releases/download |
"""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeloop.testing.cluster.errors import ChecksumMismatch, DownloadError
from kubeloop.testing.cluster.progress import Progress
from kubeloop.testing.cluster.versions import Component, go_architecture, go_operating_system

#: Seconds, for all projects together, in which reachability is found out.
REACHABILITY_TIMEOUT = 3.0
#: Seconds without a byte after which a running download is given up.
STALL_TIMEOUT = 30.0

_BASES = {
    "kubernetes": "https://dl.k8s.io",
    "etcd": "https://github.com/etcd-io/etcd/releases/download",
    "kwok": "https://github.com/kubernetes-sigs/kwok/releases/download",
    "helm": "https://get.helm.sh",
    "prometheus": "https://github.com/prometheus/prometheus/releases/download",
}
_OFF = {"off", "0", "false", "no"}
_CHUNK = 1 << 20
_CHECKSUM_FILE_LIMIT = 1 << 16


@dataclass(frozen=True)
class Artifact:
    """One file to download. `member` is the path inside the archive, when `url` is a tarball."""

    url: str
    checksum_url: str
    member: str = ""

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Sources:
    """What may be downloaded of one component: the artifact of each binary and the checksum its publisher names."""

    artifacts: Mapping[str, Artifact]
    checksums: Mapping[str, str]


def artifacts_of(component: Component, environ: Mapping[str, str]) -> dict[str, Artifact]:
    """The official addresses of `component`'s binaries for this machine, by file name."""
    base = environ.get(f"KUBELOOP_DOWNLOAD_{component.name.upper()}") or _BASES[component.name]
    base = base.rstrip("/")
    version, system, arch = component.version, go_operating_system(), go_architecture()
    if component.name == "kubernetes":
        folder = f"{base}/release/{version}/bin/{system}/{arch}"
        return {n: Artifact(f"{folder}/{n}", f"{folder}/{n}.sha256") for n in component.packages}
    if component.name == "etcd":
        stem = f"etcd-{version}-{system}-{arch}"
        folder = f"{base}/{version}"
        return {"etcd": Artifact(f"{folder}/{stem}.tar.gz", f"{folder}/SHA256SUMS", f"{stem}/etcd")}
    if component.name == "prometheus":
        stem = f"prometheus-{version.removeprefix('v')}.{system}-{arch}"
        folder = f"{base}/{version}"
        return {
            name: Artifact(f"{folder}/{stem}.tar.gz", f"{folder}/sha256sums.txt", f"{stem}/{name}")
            for name in component.packages
        }
    if component.name == "helm":
        url = f"{base}/helm-{version}-{system}-{arch}.tar.gz"
        return {"helm": Artifact(url, url + ".sha256sum", f"{system}-{arch}/helm")}
    url = f"{base}/{version}/{component.name}-{system}-{arch}"
    return {component.name: Artifact(url, url + ".sha256")}


def release_sources(
    components: Iterable[Component],
    environ: Mapping[str, str],
    progress: Progress,
    *,
    timeout: float = REACHABILITY_TIMEOUT,
) -> dict[str, Sources]:
    """The components whose releases can be reached, by name, found out within `timeout` seconds in total.

    Asking for the checksum files answers both questions at once: is the site there, and is there a checksum.
    """
    if environ.get("KUBELOOP_DOWNLOAD", "").strip().lower() in _OFF:
        return {}
    artifacts = {c.name: artifacts_of(c, environ) for c in components}
    answers = _ask({a.checksum_url for group in artifacts.values() for a in group.values()}, timeout)
    sources = {}
    for name, group in artifacts.items():
        named = {n: checksum_in(answers.get(a.checksum_url, ""), a.file_name) for n, a in group.items()}
        known = {n: checksum for n, checksum in named.items() if checksum}
        if known:
            sources[name] = Sources(group, known)
        else:
            progress.step(f"{name}: no verified release can be downloaded")
    return sources


def checksum_in(text: str, file_name: str) -> str:
    """The SHA-256 (64 hex digits) that a checksum file names for `file_name`, or "" when it names none.

    Understands a bare digest and the lines of sha256sum ("<digest>  <name>", "<digest> *<name>").
    """
    for line in text.splitlines():
        words = line.split()
        if not words or len(words[0]) != 64 or set(words[0].lower()) - set("0123456789abcdef"):
            continue
        if len(words) == 1 or words[-1].lstrip("*").rsplit("/", 1)[-1] == file_name:
            return words[0].lower()
    return ""


def fetch(component: Component, name: str, sources: Sources, scratch: Path, progress: Progress) -> Path:
    """Download binary `name` into `scratch` and return its path. DownloadError or ChecksumMismatch otherwise."""
    artifact, checksum = sources.artifacts[name], sources.checksums.get(name, "")
    if not checksum:
        raise DownloadError(f"{artifact.checksum_url} names no checksum of it")
    progress.step(f"{name}: downloading {artifact.url}")
    archive = scratch / (name + ".download")
    digest = _save(artifact.url, archive, lambda done: progress.tick(f"{name}: {done / 1e6:.0f} MB"))
    if digest != checksum:
        archive.unlink()
        raise ChecksumMismatch(f"{artifact.url} has SHA-256 {digest}, its publisher names {checksum}")
    if not artifact.member:
        return archive
    return _extract(archive, artifact.member, scratch / name)


def _ask(urls: set[str], timeout: float) -> dict[str, str]:
    """The texts behind `urls`; those that do not answer within `timeout` seconds in total are left out.

    Daemon threads, because resolving a name can hang far beyond any socket timeout: such a thread is left behind and
    may not hold up the end of the program (as a pool's threads would).
    """
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
    """Stream `url` into `target`; the SHA-256 of what arrived."""
    digest, done = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=STALL_TIMEOUT) as response, target.open("wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(done)
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
    """Take one regular file out of a tarball, by content only: no path or mode of the archive is followed."""
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
