"""`headroom release`: give every ResourceQuota back to Harvester."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from pkg.cmd import logs
from pkg.cmd.options import Kubeconfig, LogFormat, LogFormatOption, Verbose

if TYPE_CHECKING:
    from pkg.client.config import ClientConfig


def release(
    kubeconfig: Kubeconfig = None, log_format: LogFormatOption = LogFormat.TEXT, verbose: Verbose = False
) -> None:
    """Hand every ResourceQuota that headroom took over back to Harvester's own controllers, and remove its webhooks.

    Stop the controller and the webhooks first: while they run they take over what they see.
    """
    from pkg.client.config import load_config

    logs.set_up(log_format, verbose)
    removed, closed, released = asyncio.run(_release(load_config(kubeconfig)))
    for kind in removed:
        typer.echo(f"removed {kind}")
    for namespace in closed:
        typer.echo(f"unlocked {namespace}")
    for key in released:
        typer.echo(f"released {key}")
    typer.echo(f"{len(released)} resource quotas released")


async def _release(config: ClientConfig) -> tuple[list[str], list[str], list[str]]:
    """What was removed, the namespaces that were unlocked, and the quotas that were given back."""
    from pkg.client.client import Client
    from pkg.controller.managedtenantquota.release import close_all
    from pkg.controller.namespace.release import unlabel_all
    from pkg.controller.resourcequota.release import release_all
    from pkg.webhook.registration import unregister

    async with Client(config) as client:
        # First: a webhook that is registered and does not answer may be in the way of everything else.
        removed = await unregister(client)
        closed = await close_all(client)
        released = await release_all(client)
        await unlabel_all(client)
        return removed, closed, released
