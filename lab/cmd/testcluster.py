"""`headroom testcluster`: the embedded cluster for people and scripts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from kubeloop.testing.cluster.reporting import Lines
from kubeloop.testing.cluster.versions import KUBERNETES, KUBERNETES_DEFAULT
from lab.rancher.releases import DEFAULT as RANCHER_DEFAULT
from lab.rancher.releases import RELEASES as RANCHER
from pkg.cmd.flags import Command, add_command, option
from pkg.cmd.options import OutputOptions

# The cluster's own modules are imported where they are used: the offline commands of this program start faster.

app = typer.Typer(
    no_args_is_help=True, help="A real control plane on this machine: etcd, API server, quota, fake nodes."
)


@dataclass(frozen=True)
class DirectoryOptions:
    """The flag that names an embedded cluster."""

    directory: Path = option(
        ..., "The cluster's folder: kubeconfig, logs, pids.", "--dir", metavar="DIR", file_okay=False
    )


@dataclass(frozen=True)
class ReleaseOptions:
    """The flag that names a release of Kubernetes."""

    kubernetes: str = option(
        "",
        f"Kubernetes release: {', '.join(KUBERNETES)}. Default: $KUBELOOP_KUBERNETES, the release of "
        f"$KUBEBUILDER_ASSETS, or {KUBERNETES_DEFAULT}.",
        metavar="RELEASE",
        show_default=False,
    )


def _known_release(text: str) -> str:
    if text not in RANCHER:
        raise typer.BadParameter(f"there is no stand-in for Rancher {text}: choose one of {', '.join(RANCHER)}")
    return text


@dataclass(frozen=True)
class UpOptions(ReleaseOptions, DirectoryOptions):
    """The flags that name the programs of a cluster."""

    kubevirt: bool = option(True, "Run the stand-in for KubeVirt's controllers.")
    rancher: bool = option(True, "Run the stand-in for Rancher; `--rancher RELEASE` chooses its release too.")
    rancher_version: str = option(
        RANCHER_DEFAULT,
        f"Rancher's release: {' or '.join(RANCHER)}, the first in which only Rancher may write its quotas.",
        metavar="RELEASE",
        callback=_known_release,
    )
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

    cluster_options = cluster.Options(
        options.kwok,
        options.kubevirt,
        options.rancher,
        options.nodes,
        options.kubernetes,
        rancher_version=options.rancher_version,
    )
    handle = cluster.up(options.directory, cluster_options, Lines())
    typer.echo(f"export KUBECONFIG={handle.kubeconfig}")


def down(options: DirectoryOptions) -> None:
    """End the cluster's processes, and no others. Works after a crash, and when nothing runs."""
    from kubeloop.testing.cluster import cluster

    names = cluster.down(options.directory)
    typer.echo(f"ended: {', '.join(names)}" if names else "nothing was running")


def status(options: DirectoryOptions, printed: OutputOptions) -> None:
    """Show what runs. Exit status 0 when the cluster is ready, 1 otherwise."""
    from kubeloop.testing.cluster import cluster

    state = cluster.status(options.directory)
    if printed.output == "json":
        typer.echo(json.dumps(asdict(state), sort_keys=True))
    else:
        typer.echo(f"{'ready' if state.ready else 'not ready'}  {state.url or state.directory}")
        if state.kubeconfig:
            typer.echo(f"kubeconfig  {state.kubeconfig}")
        pids = {name: f"pid {pid}" if pid else "not running" for name, pid in state.processes.items()}
        for name, text in {**state.versions, **pids}.items():
            typer.echo(f"{name:<24} {text}")
    if not state.ready:
        raise typer.Exit(1)


def with_rancher_version(words: Sequence[str]) -> list[str]:
    """Returns the command line with `--rancher RELEASE` spelled as the two flags that it stands for."""
    result: list[str] = []
    for number, word in enumerate(words):
        flag, separator, release = word.partition("=")
        if flag == "--rancher" and separator:
            result += [flag, "--rancher-version", release]
        elif number and words[number - 1] == "--rancher" and not word.startswith("-"):
            result += ["--rancher-version", word]
        else:
            result.append(word)
    return result


class _Up(Command):
    """The command `up`, whose flag --rancher may have a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_rancher_version(args))


for _command in (build, down, status):
    add_command(app, _command)
add_command(app, up, _Up)
