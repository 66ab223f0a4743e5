"""Finds or makes the four binaries of the embedded cluster, helm, and Prometheus.

In this order, binary by binary:

1. `$KUBEBUILDER_ASSETS`, the folder that setup-envtest fills (usually without kwok: that one goes on down the list);
2. the cache, `$XDG_CACHE_HOME/kubeloop/bin/<project>-<version>-<os>-<arch>/`;
3. the project's official release, checksum verified (download.py);
4. a build from the Go module proxy (build.py).

Which Kubernetes: the release that is asked for, else `$KUBELOOP_KUBERNETES`'s, else that of the API server in
`$KUBEBUILDER_ASSETS`, else KUBERNETES_DEFAULT. What `$KUBEBUILDER_ASSETS` hold of another release is left out, so that
both servers are of one.

Steps 3 and 4 run under a lock of that cache folder and put a binary into it by one rename: a second process waits and
then finds it, and no process ever sees half a file."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeloop.testing.cluster import versions
from kubeloop.testing.cluster.build import build
from kubeloop.testing.cluster.download import download
from kubeloop.testing.cluster.paths import locked
from kubeloop.testing.cluster.reporting import ClusterError, DownloadError, Progress, UnknownRelease
from kubeloop.testing.cluster.versions import Component, Environ

_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+\S*)")


@dataclass(frozen=True)
class Binaries:
    """Paths of executables."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kwok: Path


def ensure_binaries(progress: Progress | None = None, *, release: str = "", environ: Environ = os.environ) -> Binaries:
    """Returns all four binaries, made if need be (minutes, the first time). ClusterError says what to do otherwise.
    `release` is a Kubernetes release, "1.36" or "v1.36.3"; UnknownRelease if versions.py does not have it."""
    binaries = _ensure(progress or Progress(), environ, components_of(release, environ))
    return Binaries(binaries["etcd"], binaries["kube-apiserver"], binaries["kube-controller-manager"], binaries["kwok"])


def ensure_helm(progress: Progress | None = None, *, environ: Environ = os.environ) -> Path:
    """Returns helm, made if need be (a minute or two, the first time). ClusterError says what to do otherwise."""
    return _ensure(progress or Progress(), environ, (versions.HELM_COMPONENT,))["helm"]


def ensure_prometheus() -> Mapping[str, Path]:
    """Returns prometheus and promtool, made if need be (ten minutes, the first time). ClusterError says what to do."""
    return _ensure(Progress(), os.environ, (versions.PROMETHEUS_COMPONENT,))


def components_of(release: str = "", environ: Environ = os.environ) -> tuple[Component, ...]:
    """Returns the components of the cluster. Raises UnknownRelease."""
    return versions.ETCD_COMPONENT, _chosen_kubernetes(release, environ), versions.KWOK_COMPONENT


def _chosen_kubernetes(release: str, environ: Environ) -> Component:
    requested = release or environ.get("KUBELOOP_KUBERNETES", "")
    if not requested:
        assets = environ.get("KUBEBUILDER_ASSETS", "")
        version = reported_version(Path(assets) / "kube-apiserver") if assets else ""
        return versions.kubernetes(version or versions.KUBERNETES_DEFAULT)
    minor = versions.minor_release(requested)
    pinned = versions.KUBERNETES.get(minor, "")
    if not pinned or requested.removeprefix("v") not in (minor, pinned.removeprefix("v")):
        raise UnknownRelease(f"there is no Kubernetes {requested} here: choose one of {', '.join(versions.KUBERNETES)}")
    return versions.kubernetes(requested)


def _ensure(progress: Progress, environ: Environ, components: Iterable[Component]) -> dict[str, Path]:
    binaries: dict[str, Path] = {}
    for component in components:
        existing = _find(component, environ)
        binaries |= existing
        if missing := component.packages.keys() - existing:
            binaries |= _make(component, missing, environ, progress)
    return binaries


def _find(component: Component, environ: Environ) -> dict[str, Path]:
    """The component's binaries that exist already, by file name: steps 1 and 2, without waiting for anything."""
    assets, cache = environ.get("KUBEBUILDER_ASSETS", ""), cache_folder(component, environ)
    binaries: dict[str, Path] = {}
    for name in component.packages:
        if assets and _fits(Path(assets) / name, component):
            binaries[name] = (Path(assets) / name).absolute()
        elif _is_executable(cache / name):
            binaries[name] = cache / name
    return binaries


def _fits(binary: Path, component: Component) -> bool:
    """Reports whether this binary of `$KUBEBUILDER_ASSETS` may run: one of Kubernetes has to be of the same release."""
    if component.name != "kubernetes":
        return _is_executable(binary)
    return versions.minor_release(reported_version(binary)) == versions.minor_release(component.version)


def reported_version(binary: Path) -> str:
    """Returns the version that `binary --version` prints, as "v1.36.3"; "" if it prints something else or can't run."""
    try:
        command = [str(binary), "--version"]
        output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    match = _VERSION.search(output)
    return f"v{match[1]}" if match else ""


def cache_directory(environ: Environ = os.environ) -> Path:
    """Returns `$XDG_CACHE_HOME/kubeloop`; a relative XDG_CACHE_HOME is ignored, as its specification asks."""
    base, home = Path(environ.get("XDG_CACHE_HOME", "")), environ.get("HOME")
    if not base.is_absolute():
        if not home:
            raise ClusterError("neither HOME nor XDG_CACHE_HOME is set: set XDG_CACHE_HOME to a folder for binaries")
        base = Path(home) / ".cache"
    return base / "kubeloop"


def cache_folder(component: Component, environ: Environ = os.environ) -> Path:
    name = f"{component.name}-{component.version}-linux-{versions.go_architecture()}"
    return cache_directory(environ) / "bin" / name


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _make(component: Component, names: Iterable[str], environ: Environ, progress: Progress) -> dict[str, Path]:
    """Steps 3 and 4 for these binaries of `component`; their paths in the cache."""
    folder = cache_folder(component, environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"{folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to another") from error

    def waiting(seconds: float) -> None:
        progress.tick(f"{component.name} {component.version}: another process builds it, waiting {seconds:.0f} s")

    paths = {name: folder / name for name in sorted(names)}
    scratch = folder / ".unfinished"  # on the cache's own file system, so that the last step can be a rename
    with locked(folder / ".lock", waiting=waiting):
        # Asked again under the lock: the process that held it may have made them.
        for name in [name for name, path in paths.items() if not _is_executable(path)]:
            shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
            scratch.mkdir()
            try:
                binary = _download_or_build(component, name, scratch, environ, progress)
                binary.chmod(0o755)
                binary.replace(paths[name])
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return paths


def _download_or_build(component: Component, name: str, scratch: Path, environ: Environ, progress: Progress) -> Path:
    try:
        return download(component, name, scratch, environ, progress)
    except DownloadError as error:
        progress.step(f"{name}: {error}; building it instead")
        return build(component, name, scratch, cache_directory(environ), environ, progress)
