"""The place of a run, and the processes that it starts there."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.binaries import ensure_binaries
from kubeloop.testing.cluster.cluster import guarded
from kubeloop.testing.cluster.control_plane import kwok
from kubeloop.testing.cluster.reporting import Lines
from lab.cluster import EmbeddedCluster, Options, stand_in
from lab.headroom import WEBHOOK, Headroom, in_cluster
from lab.scale.plan import LABEL_RUN, Plan, Strategy

_GRACE = 3.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, and a folder for the processes' records and logs. They end with it, whatever happens."""

    kubeconfig: Path
    directory: Path
    embedded: bool

    @property
    def api_server(self) -> int:
        """The API server's pid; 0 where it is not ours."""
        return processes.find(self.directory, "kube-apiserver").pid

    def start_kwok(self, plan: Plan) -> None:
        """Starts kwok for the run's own nodes alone. Raises ClusterError."""
        # A cluster with a node lifecycle controller evicts the pods of nodes without heartbeats.
        lease = 0 if self.embedded else 40
        home, nodes = self.directory / "kwok", f"{LABEL_RUN}={plan.run}"
        command = kwok(ensure_binaries(Lines()), self.kubeconfig, home, "label", nodes, lease=lease)
        processes.spawn(command.name, command.argv, self.directory, command.env)

    def start_kubevirt(self, plan: Plan, account: str) -> None:
        """Starts the KubeVirt stand-in for the run's own namespaces alone, as this user. Raises ClusterError."""
        flags = f"--namespace-prefix {plan.run}- --as-user {account} --source-linger 5 --phase-delay 0.2"
        limits = f"--parallel-migrations {plan.settings.vms} --parallel-outbound {plan.settings.vms}"
        program = stand_in("kubevirt", *flags.split(), *limits.split(), "--kubeconfig", str(self.kubeconfig))
        processes.spawn(program.name, program.argv, self.directory, program.env)

    def headroom(self, plan: Plan) -> Headroom:
        """Returns `headroom controller`, not started."""
        # The cluster's other namespaces are left alone.
        flags = ["--namespace", plan.system_namespace, "--no-leader-elect", "--only-namespace", f"{plan.run}-*"]
        if plan.settings.strategy is Strategy.VMMRQ:
            flags.append(WEBHOOK)
        return in_cluster(self.directory, self.kubeconfig, flags)

    def check(self, *names: str) -> None:
        """Raises ClusterError when one of the processes has ended by itself."""
        for name in names:
            processes.find(self.directory, name).check()


@contextlib.contextmanager
def embedded_site() -> Iterator[Site]:
    """A cluster of one's own: etcd, API server and controller manager alone. Raises ClusterError."""
    options = Options(kwok=False, kubevirt=False, rancher=False)
    with EmbeddedCluster(options=options, progress=Lines()) as cluster:
        yield Site(cluster.kubeconfig, cluster.directory, embedded=True)


@contextlib.contextmanager
def given_site(kubeconfig: Path) -> Iterator[Site]:
    """The cluster of a kubeconfig."""
    with tempfile.TemporaryDirectory(prefix="headroom-scale-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with guarded(directory, remove=True):
            try:
                yield Site(kubeconfig.absolute(), directory, embedded=False)
            finally:
                processes.stop(directory, grace=_GRACE)


@dataclass(frozen=True, slots=True)
class Usage:
    """The CPU seconds of a process; its highest and its present resident memory, in bytes."""

    cpu: float
    peak: int
    resident: int


def usage(pid: int) -> Usage:
    """Returns the usage of a process on this machine; zeros when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return Usage(0.0, 0, 0)
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status.splitlines() if line.endswith(" kB")}
    cpu = (int(stat[11]) + int(stat[12])) / _TICKS
    return Usage(cpu, sizes.get("VmHWM", 0), sizes.get("VmRSS", 0))
