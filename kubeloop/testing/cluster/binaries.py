"""Finds or makes the four binaries of the embedded cluster, helm, and Prometheus.

In this order, binary by binary:

1. `$KUBEBUILDER_ASSETS`, the folder that setup-envtest fills (usually without kwok: that one goes on down the list);
2. the cache, `$XDG_CACHE_HOME/kubeloop/bin/<project>-<version>-<os>-<arch>/`;
3. the project's official release, checksum verified (download.py);
4. a build from the Go module proxy (build.py).

Steps 3 and 4 run under a lock of that cache folder and put a binary into it by one rename: a second process waits and
then finds it, and no process ever sees half a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubeloop.testing.cluster.build import build
from kubeloop.testing.cluster.download import Sources, fetch, release_sources
from kubeloop.testing.cluster.errors import ClusterError, DownloadError
from kubeloop.testing.cluster.locks import locked
from kubeloop.testing.cluster.progress import Progress, Silent
from kubeloop.testing.cluster.versions import (
    COMPONENTS,
    HELM_COMPONENT,
    PROMETHEUS_COMPONENT,
    Component,
    go_architecture,
    go_operating_system,
)

_SCRATCH_PREFIX = ".unfinished-"


@dataclass(frozen=True)
class Binaries:
    """Paths of executables."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kwok: Path


def ensure_binaries(
    progress: Progress | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    components: tuple[Component, ...] = COMPONENTS,
) -> Binaries:
    """All four binaries, made if need be (minutes, the first time). ClusterError says what to do otherwise."""
    found = _ensure(progress or Silent(), environ, components)
    return Binaries(found["etcd"], found["kube-apiserver"], found["kube-controller-manager"], found["kwok"])


def ensure_helm(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Path:
    """helm, made if need be (a minute or two, the first time). ClusterError says what to do otherwise."""
    return _ensure(progress or Silent(), environ, (HELM_COMPONENT,))["helm"]


def ensure_prometheus(
    progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Path]:
    """prometheus and promtool, made if need be (ten minutes, the first time). ClusterError says what to do."""
    return _ensure(progress or Silent(), environ, (PROMETHEUS_COMPONENT,))


def _ensure(
    progress: Progress, environ: Mapping[str, str], components: tuple[Component, ...]
) -> dict[str, Path]:
    found = find_binaries(environ, components)
    unfinished = [c for c in components if any(name not in found for name in c.packages)]
    sources = release_sources(unfinished, environ, progress) if unfinished else {}
    for component in unfinished:
        found |= _complete(component, found, sources.get(component.name), environ, progress)
    return found


def find_binaries(
    environ: Mapping[str, str] = os.environ, components: tuple[Component, ...] = COMPONENTS
) -> dict[str, Path]:
    """The binaries that exist already, by file name: steps 1 and 2, without waiting for anything."""
    found: dict[str, Path] = {}
    assets = environ.get("KUBEBUILDER_ASSETS", "")
    for component in components:
        for name in component.packages:
            candidates = [cache_folder(component, environ) / name]
            if assets:
                candidates.insert(0, Path(assets) / name)
            for candidate in candidates:
                if is_executable(candidate):
                    found[name] = candidate.absolute()
                    break
    return found


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/kubeloop`; a relative XDG_CACHE_HOME is ignored, as its specification asks."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "kubeloop"
    home = environ.get("HOME")
    if not home:
        raise ClusterError(
            "neither HOME nor XDG_CACHE_HOME is set: set XDG_CACHE_HOME to a folder for the binaries"
        )
    return Path(home) / ".cache" / "kubeloop"


def cache_folder(component: Component, environ: Mapping[str, str] = os.environ) -> Path:
    platform = f"{go_operating_system()}-{go_architecture()}"
    return cache_directory(environ) / "bin" / f"{component.name}-{component.version}-{platform}"


def is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _complete(
    component: Component,
    found: Mapping[str, Path],
    sources: Sources | None,
    environ: Mapping[str, str],
    progress: Progress,
) -> dict[str, Path]:
    """Steps 3 and 4 for what `component` still lacks; the paths in the cache."""
    folder = cache_folder(component, environ)
    _make_folder(folder)

    def waiting(seconds: float) -> None:
        progress.tick(
            f"{component.name} {component.version}: another process builds it, waiting {seconds:.0f} s"
        )

    with locked(folder / ".lock", waiting=waiting):
        # Asked again under the lock: the process that held it may have made them.
        missing = [n for n in component.packages if n not in found and not is_executable(folder / n)]
        with _scratch(folder) as scratch:
            for name in missing:
                made = _make(component, name, sources, scratch, environ, progress)
                made.chmod(0o755)
                made.replace(folder / name)
    return {name: folder / name for name in component.packages if name not in found}


def _make(
    component: Component,
    name: str,
    sources: Sources | None,
    scratch: Path,
    environ: Mapping[str, str],
    progress: Progress,
) -> Path:
    if sources is not None:
        try:
            return fetch(component, name, sources, scratch, progress)
        except DownloadError as error:
            progress.step(f"{name}: {error}; building it instead")
    return build(
        component, name, scratch, environ=environ, log_folder=cache_directory(environ), progress=progress
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"the cache folder {folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to a folder of yours"
        ) from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder on the cache's own file system, so that the last step can be a rename. Call it under the lock."""
    for left_over in folder.glob(_SCRATCH_PREFIX + "*"):
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
