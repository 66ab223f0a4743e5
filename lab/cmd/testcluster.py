"""`headroom testcluster`: the embedded cluster for people and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from kubeloop.testing.cluster.progress import Lines
from kubeloop.testing.cluster.versions import KUBERNETES, KUBERNETES_DEFAULT
from pkg.cmd.flags import add_command, option
from pkg.cmd.options import Output, OutputOptions

# The cluster's own modules are imported where they are used: the offline commands of this program start faster.

app = typer.Typer(
    no_args_is_help=True, help="A real control plane on this machine: etcd, API server, quota, fake nodes."
)


@dataclass(frozen=True)
class DirectoryOptions:
    """Which embedded cluster."""

    directory: Path = option(
        ..., "The cluster's folder: kubeconfig, logs, pids.", "--dir", metavar="DIR", file_okay=False
    )


@dataclass(frozen=True)
class ReleaseOptions:
    """Which Kubernetes."""

    kubernetes: str = option(
        "",
        f"Kubernetes release: {', '.join(KUBERNETES)}. Default: $KUBELOOP_KUBERNETES, the release of "
        f"$KUBEBUILDER_ASSETS, or {KUBERNETES_DEFAULT}.",
        metavar="RELEASE",
        show_default=False,
    )


@dataclass(frozen=True)
class UpOptions(ReleaseOptions, DirectoryOptions):
    """What runs in the cluster."""

    kubevirt: bool = option(True, "Run the stand-in for KubeVirt's controllers.")
    rancher: bool = option(True, "Run the stand-in for Rancher's agent.")
    kwok: bool = option(True, "Run kwok, with fake nodes that run pods.")
    nodes: int = option(3, "Number of fake nodes.", metavar="COUNT", min=0, max=1000)


def build(options: ReleaseOptions) -> None:
    """Find or build the cluster's binaries and helm (about ten minutes the first time); print where they are.

    Those of several Kubernetes releases are kept side by side.
    """
    from kubeloop.testing.cluster.binaries import ensure_binaries, ensure_helm

    binaries, helm = ensure_binaries(Lines(), release=options.kubernetes), ensure_helm(Lines())
    for path in (*(binaries.etcd, binaries.kube_apiserver, binaries.kube_controller_manager, binaries.kwok), helm):
        typer.echo(path)


def up(options: UpOptions) -> None:
    """Start a cluster and leave it running; returns when it is ready."""
    from lab import cluster

    wanted = cluster.Options(options.kwok, options.kubevirt, options.rancher, options.nodes, options.kubernetes)
    started = cluster.up(options.directory, wanted, Lines())
    typer.echo(f"export KUBECONFIG={started.kubeconfig}")


def down(options: DirectoryOptions) -> None:
    """End the cluster's processes, and no others. Works after a crash, and when nothing runs."""
    from kubeloop.testing.cluster import cluster

    ended = cluster.down(options.directory)
    typer.echo(f"ended: {', '.join(ended)}" if ended else "nothing was running")


def status(options: DirectoryOptions, printed: OutputOptions) -> None:
    """Show what runs. Exit status 0 when the cluster is ready, 1 otherwise."""
    from kubeloop.testing.cluster import cluster

    found = cluster.status(options.directory)
    if printed.output is Output.JSON:
        typer.echo(found.as_json())
    else:
        typer.echo(f"{'ready' if found.ready else 'not ready'}  {found.url or found.directory}")
        if found.kubeconfig:
            typer.echo(f"kubeconfig  {found.kubeconfig}")
        pids = {name: f"pid {pid}" if pid else "not running" for name, pid in found.processes.items()}
        for name, text in {**found.versions, **pids}.items():
            typer.echo(f"{name:<24} {text}")
    if not found.ready:
        raise typer.Exit(1)


for _command in (build, up, down, status):
    add_command(app, _command)
