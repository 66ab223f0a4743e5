"""`headroom release`: give every ResourceQuota back to Harvester, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import typer

from pkg.cmd import logs
from pkg.cmd.flags import option
from pkg.cmd.options import ClusterOptions, ElectionOptions, LogOptions

if TYPE_CHECKING:
    from pkg.cmd.releasing import Released


class Part(StrEnum):
    """What can be released by itself."""

    WEBHOOKS = "webhooks"
    LOCKS = "locks"
    QUOTAS = "quotas"


@dataclass(frozen=True)
class ReleaseOptions:
    """The installation that ends."""

    title: ClassVar = "Installation"

    namespace: str | None = option(
        None,
        "Namespace of headroom's own objects, which are removed. Default: the pod's namespace, else the kubeconfig "
        "context's.",
        metavar="NAMESPACE",
    )
    only: Part | None = option(
        None,
        "Only this: remove the webhooks, unlock every namespace, or give every quota back (those raised under a "
        "lock too: every namespace is unlocked). Default: all, and the Secret, ConfigMap and Lease of headroom itself.",
    )
    scale_down: list[str] | None = option(
        None, "Deployment of that namespace to stop first; may be repeated.", metavar="NAME"
    )
    force: bool = option(False, "Also while a controller runs: it takes over again what it sees.", "--force")


def release(
    cluster: ClusterOptions, installation: ReleaseOptions, election: ElectionOptions, logging: LogOptions
) -> None:
    """Hand every ResourceQuota that headroom took over back to Harvester's own controllers, and remove its webhooks.

    Stop the controller and the webhooks first (--scale-down does): while they run they take over what they see. It
    refuses where the Lease says that a controller runs; with --leader-elect it waits until the Lease is free.
    """
    from kubeloop.client.loading import load_config
    from pkg.cmd.releasing import Releasing

    logs.set_up(logging)
    durations = election.config()
    config = load_config(cluster.kubeconfig)
    elected = config.in_cluster if election.leader_elect is None else election.leader_elect
    elected = elected and not installation.force
    releasing = Releasing(
        config,
        installation.namespace,
        tuple(installation.scale_down or ()),
        durations if elected else None,
        installation.only or "",
        # Who asks for the election waits for its end.
        check=not installation.force and election.leader_elect is not True,
    )
    released = asyncio.run(releasing.run())
    for line in _lines(released, counted=installation.only in (None, Part.QUOTAS)):
        typer.echo(line)
    if released.remark:
        typer.echo(released.remark, err=True)


def _lines(released: Released, *, counted: bool) -> Iterator[str]:
    """What was done; counted: quotas were among it, even if there was none."""
    yield from (f"removed {what}" for what in released.removed)
    yield from (f"unlocked {namespace}" for namespace in released.unlocked)
    yield from (f"released {key}" for key in released.quotas)
    if counted:
        yield f"{len(released.quotas)} resource quotas released"
