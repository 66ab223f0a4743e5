"""Official releases: where they are, and what their checksums say.

A binary is used only when it is what a checksum file *next to it* names. kwok's releases carry none today: kwok comes
from a mirror that adds `<file>.sha256`, or is built.

`$KUBELOOP_DOWNLOAD` = `off`: do not even try. `$KUBELOOP_DOWNLOAD_<PROJECT>` (KUBERNETES, ETCD, KWOK, HELM,
PROMETHEUS): the base address of a mirror, instead of that in _RELEASES."""

import contextlib
import hashlib
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from kubeloop.testing.cluster.reporting import DownloadError, Progress
from kubeloop.testing.cluster.versions import Component, Environ, go_architecture

ANSWER_TIMEOUT = 3.0
"""Seconds in which a site has to begin its answer, and to say its checksums: what follows otherwise is a build."""
_STALL_TIMEOUT = 30.0
"""Seconds without a byte after which a running download is given up."""

_GITHUB = "https://github.com/{}/releases/download"
_RELEASES = {
    "kubernetes": ("https://dl.k8s.io", "release/{version}/bin/{os}/{arch}/{name}", "{name}.sha256", ""),
    "etcd": (_GITHUB.format("etcd-io/etcd"), "{version}/etcd-{version}-{os}-{arch}.tar.gz", "SHA256SUMS",
             "etcd-{version}-{os}-{arch}/etcd"),
    "kwok": (_GITHUB.format("kubernetes-sigs/kwok"), "{version}/kwok-{os}-{arch}", "kwok-{os}-{arch}.sha256", ""),
    "helm": ("https://get.helm.sh", "helm-{version}-{os}-{arch}.tar.gz", "helm-{version}-{os}-{arch}.tar.gz.sha256sum",
             "{os}-{arch}/helm"),
    "prometheus": (_GITHUB.format("prometheus/prometheus"), "{version}/prometheus-{number}.{os}-{arch}.tar.gz",
                   "sha256sums.txt", "prometheus-{number}.{os}-{arch}/{name}"),
}  # fmt: skip
"""By project: the base address, a file's address below it, its checksum file, and the path in the archive."""
_CHUNK = 1 << 20
_CHECKSUM_FILE_LIMIT = 1 << 16


def artifact_of(component: Component, name: str, environ: Environ) -> tuple[str, str, str]:
    """Returns the official addresses of a binary for this machine and its checksums, and its path in an archive."""
    version, (official, *parts) = component.version, _RELEASES[component.name]
    base = (environ.get(f"KUBELOOP_DOWNLOAD_{component.name.upper()}") or official).rstrip("/")
    words = {"name": name, "version": version, "number": version.removeprefix("v")}
    words |= {"os": "linux", "arch": go_architecture()}
    file, checksums, member = (part.format(**words) for part in parts)
    url = f"{base}/{file}"
    return url, f"{url.rpartition('/')[0]}/{checksums}", member


def download(component: Component, name: str, scratch: Path, environ: Environ, progress: Progress) -> Path:
    """Downloads binary `name` into `scratch`, returns its path. DownloadError: no verified release is in reach."""
    if environ.get("KUBELOOP_DOWNLOAD", "").strip().lower() == "off":
        raise DownloadError("downloads are off")
    url, checksum_url, member = artifact_of(component, name, environ)
    checksum = checksum_in(_read_text(checksum_url), url.rpartition("/")[2])
    if not checksum:
        raise DownloadError(f"{checksum_url} names no checksum of it")
    progress.step(f"{name}: downloading {url}")
    archive = scratch / (name + ".download")
    digest = _save(url, archive, lambda size: progress.tick(f"{name}: {size / 1e6:.0f} MB"))
    if digest != checksum:
        raise DownloadError(f"{url} has SHA-256 {digest}, its publisher names {checksum}")
    return _extract(archive, member, scratch / name) if member else archive


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


@contextlib.contextmanager
def _opened(url: str, timeout: float) -> Iterator[HTTPResponse]:
    """The answer of a site, to be read within the block. Raises DownloadError."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            yield response
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url} could not be downloaded (HTTP {error.code})") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise DownloadError(f"{url} could not be downloaded ({reason})") from error


def _read_text(url: str) -> str:
    """The beginning of a small file."""
    text = b""
    with _opened(url, ANSWER_TIMEOUT) as response:
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while piece := response.read1(_CHECKSUM_FILE_LIMIT - len(text)):
            text += piece
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
    return text.decode("ascii", "replace")


def _save(url: str, target: Path, report: Callable[[int], None]) -> str:
    """Streams `url` into `target`, and returns the SHA-256 of what arrived."""
    digest, size = hashlib.sha256(), 0
    with _opened(url, _STALL_TIMEOUT) as response, target.open("wb") as file:
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            report(size)
        if response.length:
            raise DownloadError(f"{url} ended {response.length} bytes early")
    return digest.hexdigest()


def _extract(archive: Path, member: str, target: Path) -> Path:
    """Takes one regular file out of a tarball, by content only: no path or mode of the archive is followed."""
    try:
        with tarfile.open(archive) as tar:
            source = tar.extractfile(member)
            if source is None:
                raise DownloadError(f"{member} in the archive is not a file")
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise DownloadError(f"the archive holds no readable {member}") from error
    return target
