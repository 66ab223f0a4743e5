"""The embedded cluster with the stand-ins for KubeVirt and Rancher, and the CRDs that they and headroom need."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from kubeloop.testing.cluster import cluster, processes
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.control_plane import Program
from kubeloop.testing.cluster.reporting import Progress
from kubeloop.testing.polling import eventually
from lab import bodies
from lab.rancher import releases

_HERE = Path(__file__).parent
_RELEASE = "--rancher"
_WORKS = "caches synced"
"""The agent's log line when its controllers begin."""
CRDS = tuple(sorted((_HERE / "crds").glob("*.yaml")))
ENVIRONMENT = {"PYTHONPATH": str(_HERE.parent), "PYTHONUNBUFFERED": "1"}
"""The variables of a stand-in's process: it finds this package wherever the cluster is, also in a checkout."""


@dataclass(frozen=True)
class Options:
    """The programs beside etcd, API server and controller manager. `nodes` counts only with kwok."""

    kwok: bool = True
    kubevirt: bool = True
    rancher: bool = True
    nodes: int = 3
    kubernetes: str = ""
    """The release, as `kubeloop.testing.cluster.cluster.Options` takes it."""
    rancher_version: str = releases.DEFAULT

    def embedded(self) -> cluster.Options:
        """The same for `kubeloop.testing.cluster`."""
        programs = {"kubevirt": (self.kubevirt, ()), "rancher": (self.rancher, (_RELEASE, self.rancher_version))}
        return cluster.Options(
            kwok=self.kwok,
            kubernetes=self.kubernetes,
            nodes=self.nodes,
            make_node=bodies.node,
            crds=CRDS,
            programs=tuple(stand_in(name, *arguments) for name, (runs, arguments) in programs.items() if runs),
            audit_policy=_HERE / "audit.yaml",
        )


def stand_in(name: str, *arguments: str) -> Program:
    """The process of `kubevirt` or `rancher`; it is told the kubeconfig last."""
    return Program(name, (sys.executable, "-m", f"lab.{name}", *arguments), ENVIRONMENT)


def up(directory: Path, options: Options, progress: Progress | None = None) -> Cluster:
    """Starts a cluster in `directory` and leaves it running, as kubeloop.testing.cluster.cluster.up does."""
    return cluster.up(directory, options=options.embedded(), progress=progress)


class EmbeddedCluster(cluster.EmbeddedCluster):
    """A cluster for as long as it is entered."""

    def __init__(
        self, directory: Path | None = None, *, options: Options | None = None, progress: Progress | None = None
    ) -> None:
        super().__init__(directory, options=(options or Options()).embedded(), progress=progress or Progress())


class RancherAgent:
    """The stand-in for Rancher in the cluster of `directory`: restarted by a signal to its process, observed in its
    log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def restart(self) -> None:
        """Restarts the agent, which renders every namespace once more. The process stays: that is quick."""
        processes.find(self._directory, "rancher").signal(signal.SIGHUP)

    @property
    def release(self) -> str:
        """The release that is played."""
        argv = processes.find(self._directory, "rancher").argv
        return argv[argv.index(_RELEASE) + 1] if _RELEASE in argv else releases.DEFAULT

    def install(self, release: str) -> None:
        """Upgrades Rancher to a release, or back: the process starts anew. Returns when its agent works.

        Raises AssertionError when it does not within two minutes."""
        starts = self._count_lines(_WORKS)
        argv = processes.find(self._directory, "rancher").argv
        if _RELEASE in argv:
            place = argv.index(_RELEASE)
            argv = argv[:place] + argv[place + 2 :]
        processes.find(self._directory, "rancher").restart([*argv, _RELEASE, release])
        eventually(
            lambda: self._count_lines(_WORKS) > starts,
            why=lambda: processes.find(self._directory, "rancher").last_log_line(),
        )

    def restarts(self) -> int:
        return self._count_lines("agent restarted")

    def writes(self, namespace: str) -> int:
        """Counts the agent's successful writes of the namespace's base over another limit."""
        return self._count_lines(f"namespace {namespace}: quota ", " set to ")

    def _count_lines(self, *texts: str) -> int:
        try:
            log = processes.find(self._directory, "rancher").log.read_text("utf-8", "replace")
        except OSError:
            return 0
        return sum(all(text in line for text in texts) for line in log.splitlines())
