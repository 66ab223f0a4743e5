"""Builds and installs the measured programs, names their versions, and starts them."""

import asyncio
import json
import os
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubeloop.testing.cluster.build import find_go, go_environment
from kubeloop.testing.cluster.reporting import ClusterError, Lines
from lab.scale.site import usage

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SCRATCH = ROOT / "build" / "bench"
REQUIREMENTS = HERE / "requirements.txt"
_START = 120.0
"""Seconds that a first sync may take: client-go's dynamic informer needs 20 for 20,000 objects."""


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """Something that holds objects of one kind: `argv` and "cache KUBECONFIG `kind` WATCHES"."""

    name: str
    version: str
    argv: tuple[str, ...]
    kind: str
    caches: bool = True
    """Whether it offers a cache; otherwise the program keeps a dict of what list and watch give."""
    watches: bool = True
    """Whether one process of it can watch a kind several times."""

    @property
    def pods(self) -> bool:
        return self.kind.endswith("pods")

    @property
    def is_headroom(self) -> bool:
        return self.name == OURS

    @property
    def go(self) -> bool:
        return self.name.startswith("client-go")


say = Lines().step
"""Progress."""
OURS = "headroom"


@dataclass(frozen=True, slots=True)
class MeasuredPrograms:
    """The programs that can be measured here, and why the rest cannot."""

    go: Path | None
    programs: tuple[MeasuredProgram, ...]
    versions: dict[str, str]
    notes: tuple[str, ...]


def prepare() -> MeasuredPrograms:
    """Builds and installs what can be had; takes minutes the first time."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    versions = {"Python": sys.version.split()[0]}
    notes: list[str] = []
    command = (sys.executable, "-m", "tests.bench.ours")
    programs = [MeasuredProgram(OURS, "", command, "vmis"), MeasuredProgram(OURS, "", command, "pods")]
    go = _built(notes)
    if go is not None:
        go_version: dict[str, str] = json.loads(subprocess.run([go, "version"], capture_output=True, check=True).stdout)
        versions |= go_version
        programs += [
            MeasuredProgram(f"client-go {kind}", go_version["client-go"], (str(go),), kind) for kind in _GO_KINDS
        ]
    python = _installed(notes)
    if python is not None:
        pins = dict(line.split("==") for line in REQUIREMENTS.read_text().split() if "==" in line)
        versions |= pins
        for name, script, kind, caches, watches in _PYTHON:
            argv = (str(python), str(HERE / script))
            programs.append(MeasuredProgram(name, pins[name], argv, kind, caches, watches))
    return MeasuredPrograms(go, tuple(programs), versions, tuple(notes))


_GO_KINDS = ("typed-vmis", "dynamic-vmis", "typed-pods", "protobuf-pods")
_PYTHON = (
    ("kubernetes", "official.py", "pods", True, True),
    ("kopf", "kopf_index.py", "vmis", True, False),
    ("lightkube", "lightkube_dict.py", "vmis", False, True),
    ("kr8s", "kr8s_dict.py", "vmis", False, True),
)


def _built(notes: list[str]) -> Path | None:
    target = SCRATCH / "peers"
    say("building the client-go programs …")
    try:
        go = find_go(os.environ, Lines())
    except ClusterError as error:
        notes.append(f"client-go: not measured ({error})")
        return None
    command = [str(go), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(target), "."]
    process = subprocess.run(command, cwd=HERE / "go", env=go_environment(os.environ), capture_output=True, text=True)
    if process.returncode != 0:
        notes.append(f"client-go: not measured (it does not build: {_last_line(process.stderr)})")
        return None
    return target


def _installed(notes: list[str]) -> Path | None:
    """The interpreter of an environment with the Python packages; made once for each content of the requirements."""
    environment = SCRATCH / "python"
    python, stamp = environment / "bin" / "python", environment / "installed.txt"
    requirements = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == requirements:
        return python
    say("installing the Python packages …")
    venv.create(environment, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--requirement", str(REQUIREMENTS)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        notes.append(f"Python packages: not measured (they cannot be installed: {_last_line(process.stderr)})")
        return None
    stamp.write_text(requirements)
    return python


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


class Running:
    """A program that has synced."""

    def __init__(self, process: asyncio.subprocess.Process, synced: dict[str, float]) -> None:
        self._process = process
        self.seconds = synced["seconds"]
        self.cpu = synced["cpu"]
        self.objects = int(synced["objects"])

    @property
    def cpu_so_far(self) -> float:
        """Seconds, as the operating system counts them."""
        return usage(self._process.pid).cpu

    @property
    def peak(self) -> float:
        """MB that the whole process ever had resident."""
        return usage(self._process.pid).peak / 1e6

    async def events(self) -> int:
        """Returns how many events it has handled."""
        return (await self.counts())[0]

    async def counts(self) -> tuple[int, int]:
        """Returns how many events it has handled, and the objects that it holds now."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"?\n")
        figures = await _read_figures(self._process)
        return int(figures["events"]), int(figures["objects"])


@asynccontextmanager
async def running(program: MeasuredProgram, kubeconfig: Path, watches: int = 1) -> AsyncIterator[Running]:
    """The program, from its first sync on. Raises RuntimeError when it does not get there."""
    process = await asyncio.create_subprocess_exec(
        *(*program.argv, "cache", str(kubeconfig), program.kind, str(watches)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        yield Running(process, await _read_figures(process))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read_figures(process: asyncio.subprocess.Process) -> dict[str, float]:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START):
            line = await process.stdout.readline()
    except TimeoutError:
        raise RuntimeError(f"a measured program said nothing for {_START:.0f} s") from None
    if not line:
        raise RuntimeError(f"a measured program ended with {await process.wait()}")
    figures: dict[str, float] = json.loads(line)
    return figures
