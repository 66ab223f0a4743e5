"""up, down, status: a whole cluster in one directory, and EmbeddedCluster for programs that want one while they run."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS, NODES
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes, readiness
from kubeloop.testing.cluster.binaries import ensure_binaries, reported_version
from kubeloop.testing.cluster.control_plane import SERVERS, ControlPlane, Program, fake_node, node_names, prepare
from kubeloop.testing.cluster.paths import Paths, locked
from kubeloop.testing.cluster.processes import Process
from kubeloop.testing.cluster.reporting import ClusterError, Progress

T = TypeVar("T")

# Seconds: `down` waits for an `up` that is under way, and programs may finish what they are writing.
_LOCK_TIMEOUT = 30.0
_PROGRAM_GRACE = 3.0
_CALLED_OFF = b"."
"""The byte that a guard's process reads when it is to end without doing anything."""


@dataclass(frozen=True)
class Options:
    """The parts of a cluster beside etcd, API server and controller manager. `nodes` counts only with kwok."""

    kwok: bool = True
    kubernetes: str = ""
    """A release that versions.py has, e.g. "1.36"; binaries.py says which one runs otherwise."""
    nodes: int = 3
    make_node: Callable[[str], dict[str, Any]] = fake_node
    """A Node's body by its name."""
    crds: tuple[Path, ...] = ()
    """YAML files, a CustomResourceDefinition each. `up` returns when they are served."""
    programs: tuple[Program, ...] = ()
    """Started in this order when the CRDs are served, each with `--kubeconfig FILE` of a cluster admin at the end."""
    audit_policy: Path | None = None
    """The audit policy of the API server, which writes to `audit.log` of the directory; None: nothing."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    directory: Path
    kubeconfig: Path
    url: str
    options: Options
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions that run: of "kubernetes" as its /version says, of "etcd" and "kwok" as the binaries say."""

    def user(self, name: str, *, groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of a user with the rights that the name or its groups are given, as long as the cluster is."""
        config = json.loads(self.kubeconfig.read_text("utf-8"))
        config["users"][0]["user"] |= {"as": name, "as-groups": list(groups)}
        digest = hashlib.sha256(json.dumps([name, *groups]).encode()).hexdigest()[:16]
        file = Paths(self.directory).pki / f"user-{digest}.kubeconfig"
        processes.write_private(file, json.dumps(config, indent=2).encode())
        return file

    def restart(self, name: str) -> Process:
        """Kills one of its processes ("kwok", a program's name, …) and starts it again."""
        return processes.find(self.directory, name).restart()


@dataclass(frozen=True)
class ClusterStatus:
    """The status of the cluster in a directory; `processes` maps a name to its pid, 0 when it does not run."""

    directory: str
    ready: bool
    url: str = ""
    kubeconfig: str = ""
    processes: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def up(directory: Path, *, options: Options | None = None, progress: Progress | None = None) -> Cluster:
    """Starts a cluster in `directory` (created if missing) and leaves it running; `down` ends it.

    Returns when the API server is ready, the CRDs are served and the nodes are Ready. What an earlier cluster left in
    the directory is removed first; ClusterError if that one still runs. When the start fails or is interrupted, even by
    SIGKILL, nothing keeps running. Blocks: call it outside an event loop."""
    with guarded(directory):
        return _up(directory, options or Options(), progress or Progress())


def down(directory: Path) -> list[str]:
    """Ends the processes of the cluster in `directory`; returns their names. Works after a crash, and twice."""
    if not directory.is_dir():
        return []
    paths = Paths(directory.absolute())
    with locked(paths.lock, timeout=_LOCK_TIMEOUT):
        return _down(paths)


def status(directory: Path) -> ClusterStatus:
    """Returns the processes of the cluster in `directory`, and whether it is ready for use. Never waits for an `up`."""
    paths = Paths(directory.absolute())
    pids = {}
    for name in processes.names(paths.directory):
        process = processes.find(paths.directory, name)
        pids[name] = process.pid if process.alive() else 0
    try:
        description: dict[str, Any] = json.loads(paths.description.read_text("utf-8"))
    except (OSError, ValueError):
        return ClusterStatus(str(paths.directory), False, processes=pids)
    ready = bool(pids) and all(pids.values()) and _complete(_is_ready(paths.kubeconfig))
    url, versions = description["url"], description["versions"]
    return ClusterStatus(str(paths.directory), ready, url, str(paths.kubeconfig), pids, versions)


@dataclass(eq=False)
class EmbeddedCluster:
    """A cluster for as long as it is entered. It also ends when this program ends, however it ends. `directory` is kept
    (with its logs) when it is given; otherwise it is a temporary one that goes with the cluster."""

    directory: Path | None = None
    options: Options = field(default_factory=Options, kw_only=True)
    progress: Progress = field(default_factory=Progress, kw_only=True)

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            if (directory := self.directory) is None:
                temporary = tempfile.TemporaryDirectory(prefix="kubeloop-cluster-", ignore_cleanup_errors=True)
                directory = Path(stack.enter_context(temporary))
            stack.enter_context(guarded(directory, remove=self.directory is None))
            stack.callback(down, directory)
            cluster = _up(directory, self.options, self.progress)
            self._stack = stack.pop_all()
        return cluster

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def guarded(directory: Path, *, remove: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A small process ends the cluster in `directory` when the process that started it has ended within the block,
    however. Leaving the block ends that process and nothing else. With `remove` the directory itself goes too, when the
    guard has to act.

    It waits on a pipe whose other end its parent holds and the kernel closes. (PR_SET_PDEATHSIG is about the *thread*
    that started a process: a cluster started from a worker thread would die with the thread.)"""
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.cluster", str(directory.absolute()), "remove" if remove else "keep"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.communicate(_CALLED_OFF)


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does: through every `finally`."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old_handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)


def _up(directory: Path, options: Options, progress: Progress) -> Cluster:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"{directory} cannot be used as the cluster's directory: {error.strerror}") from error
    # Minutes, the first time: a folder that can't be used is said before.
    binaries = ensure_binaries(progress, release=options.kubernetes)
    paths = Paths(directory.absolute())
    with locked(paths.lock, timeout=_LOCK_TIMEOUT):
        running = [n for n in processes.names(paths.directory) if processes.find(paths.directory, n).alive()]
        if "kube-apiserver" in running:
            raise ClusterError(f"a cluster runs in {directory}: run `down` first, or choose another directory")
        _down(paths)
        try:
            start = time.monotonic()
            plane = prepare(paths, binaries, options.audit_policy)
            progress.step(f"cluster: starting in {paths.directory}")
            versions = {"kubernetes": _complete(_start(plane, options)), "etcd": reported_version(binaries.etcd)}
            versions |= {"kwok": reported_version(binaries.kwok)} if options.kwok else {}
            paths.description.write_text(json.dumps({"url": plane.url, "versions": versions}), "utf-8")
            duration = f"after {time.monotonic() - start:.1f} s"
            progress.step(f"cluster: Kubernetes {versions['kubernetes']} ready at {plane.url} {duration}")
        except BaseException:
            _down(paths)
            raise
    return Cluster(paths.directory, paths.kubeconfig, plane.url, options, versions)


def _complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result. An event loop in which it is called, as an async test's, waits meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)  # in the main thread, where Ctrl-C cancels it
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def _start(plane: ControlPlane, options: Options) -> str:
    """Starts everything in the order of dependence, waits until it is usable, and returns the server's version."""
    patience = readiness.Patience()
    _spawn(plane.etcd(), plane, patience)
    await patience.until("etcd does not listen", lambda: readiness.listens(plane.etcd_address))
    _spawn(plane.kube_apiserver(), plane, patience)
    async with Client(load_config(str(plane.paths.kubeconfig))) as client:
        await patience.until("the API server is not ready", lambda: readiness.server_ready(client))
        _spawn(plane.kube_controller_manager(), plane, patience)
        if options.kwok:
            nodes = map(options.make_node, node_names(options.nodes))
            await readiness.create(client, NODES, nodes)
            _spawn(plane.kwok(), plane, patience)
        definitions = readiness.load_crds(options.crds)
        await readiness.create(client, CUSTOM_RESOURCE_DEFINITIONS, definitions)
        await patience.until("the CRDs are not served", lambda: readiness.crds_served(client, definitions))
        for program in options.programs:
            argv = [*program.argv, "--kubeconfig", str(plane.paths.kubeconfig)]
            _spawn(replace(program, argv=argv), plane, patience)
        if options.kwok:
            names = node_names(options.nodes)
            await patience.until("the nodes are not ready", lambda: readiness.nodes_ready(client, names))
        await patience.until("the controller manager does not work yet", lambda: readiness.controllers_work(client))
        version = str(json.loads(await client.transport.request("GET", "/version"))["gitVersion"])
    patience.check()
    return version


async def _is_ready(kubeconfig: Path) -> bool:
    async with Client(load_config(str(kubeconfig))) as client:
        return await readiness.server_ready(client)


def _spawn(program: Program, plane: ControlPlane, patience: readiness.Patience) -> None:
    patience.watched.append(processes.spawn(program.name, program.argv, plane.paths.directory, program.env))


def _down(paths: Paths) -> list[str]:
    # Programs first, while there is a server to write to. The servers' data goes with them: nothing to save.
    programs = [name for name in processes.names(paths.directory) if name not in SERVERS]
    stopped = processes.stop(paths.directory, programs, grace=_PROGRAM_GRACE)
    stopped += processes.stop(paths.directory)
    for path in paths.scratch:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return stopped


if __name__ == "__main__" and os.read(0, 1) != _CALLED_OFF:  # a guard's own process, whose pipe is standard input
    down(Path(sys.argv[1]))
    if sys.argv[2] == "remove":
        shutil.rmtree(sys.argv[1], ignore_errors=True)
