"""`headroom testcluster`: the embedded cluster for people and scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pkg.testcluster.errors import ClusterError
from pkg.testcluster.progress import Lines

if TYPE_CHECKING:
    from pkg.testcluster.cluster import Status

# The cluster's own modules are imported where they are used: the offline commands of this program start faster.

app = typer.Typer(
    no_args_is_help=True, help="A real control plane on this machine: etcd, API server, quota, fake nodes."
)

Directory = Annotated[
    Path,
    typer.Option(
        "--dir", envvar="HEADROOM_DIR", help="The cluster's folder: kubeconfig, logs, pids.", file_okay=False
    ),
]


class Output(StrEnum):
    """How `status` prints."""

    TABLE = "table"
    JSON = "json"


@app.command()
def build() -> None:
    """Find or build the cluster's binaries (about ten minutes the first time) and print where they are."""
    from pkg.testcluster.binaries import ensure_binaries

    with _one_line_errors():
        binaries = ensure_binaries(Lines())
    for path in (binaries.etcd, binaries.kube_apiserver, binaries.kube_controller_manager, binaries.kwok):
        typer.echo(path)


@app.command()
def up(
    directory: Directory,
    kubevirt: Annotated[
        bool, typer.Option(envvar="HEADROOM_KUBEVIRT", help="Run the stand-in for KubeVirt's controllers.")
    ] = True,
    rancher: Annotated[
        bool, typer.Option(envvar="HEADROOM_RANCHER", help="Run the stand-in for Rancher's agent.")
    ] = True,
    kwok: Annotated[
        bool, typer.Option(envvar="HEADROOM_KWOK", help="Run kwok, with fake nodes that run pods.")
    ] = True,
    nodes: Annotated[
        int, typer.Option(envvar="HEADROOM_NODES", min=0, max=1000, help="Number of fake nodes.")
    ] = 3,
) -> None:
    """Start a cluster and leave it running; returns when it is ready."""
    from pkg.testcluster import cluster

    with _one_line_errors():
        started = cluster.up(
            directory, kwok=kwok, kubevirt=kubevirt, rancher=rancher, nodes=nodes, progress=Lines()
        )
    typer.echo(f"export KUBECONFIG={started.kubeconfig}")


@app.command()
def down(directory: Directory) -> None:
    """End the cluster's processes, and no others. Works after a crash, and when nothing runs."""
    from pkg.testcluster import cluster

    with _one_line_errors():
        ended = cluster.down(directory)
    typer.echo(f"ended: {', '.join(ended)}" if ended else "nothing was running")


@app.command()
def status(
    directory: Directory,
    output: Annotated[Output, typer.Option("--output", "-o", envvar="HEADROOM_OUTPUT")] = Output.TABLE,
) -> None:
    """Show what runs. Exit status 0 when the cluster is ready, 1 otherwise."""
    from pkg.testcluster import cluster

    with _one_line_errors():
        found = cluster.status(directory)
    if output is Output.JSON:
        typer.echo(found.as_json())
    else:
        _print_table(found)
    if not found.ready:
        raise typer.Exit(1)


def _print_table(found: Status) -> None:
    typer.echo(f"{'ready' if found.ready else 'not ready'}  {found.url or found.directory}")
    if found.kubeconfig:
        typer.echo(f"kubeconfig  {found.kubeconfig}")
    for name, pid in found.processes.items():
        typer.echo(f"{name:<24} {f'pid {pid}' if pid else 'not running'}")


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (ClusterError, OSError) as error:
        typer.echo(f"headroom: {error}", err=True)
        raise typer.Exit(1) from error
