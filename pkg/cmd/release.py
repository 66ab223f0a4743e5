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
    """Hand every ResourceQuota that headroom took over back to Harvester's own controllers.

    Stop the controller first: while it runs it takes over every default quota that it sees.
    """
    from pkg.client.config import load_config

    logs.set_up(log_format, verbose)
    released = asyncio.run(_release(load_config(kubeconfig)))
    for key in released:
        typer.echo(f"released {key}")
    typer.echo(f"{len(released)} resource quotas released")


async def _release(config: ClientConfig) -> list[str]:
    from pkg.client.client import Client
    from pkg.controller.resourcequota.release import release_all

    async with Client(config) as client:
        return await release_all(client)
