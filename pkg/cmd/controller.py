"""`headroom controller`: the controllers, until a signal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from pkg.cmd import logs
from pkg.cmd.options import (
    Estimate,
    HealthBindAddress,
    Kubeconfig,
    LogFormat,
    LogFormatOption,
    MetricsBindAddress,
    ModeChoice,
    Verbose,
)

if TYPE_CHECKING:
    import asyncio

    from pkg.client.config import ClientConfig
    from pkg.controller.options import Options
    from pkg.util.memory_overhead import OverheadProfile


def controller(
    kubeconfig: Kubeconfig = None,
    mode: Annotated[
        ModeChoice,
        typer.Option(envvar="HEADROOM_MODE", help="Replace Harvester's controllers, or run beside them."),
    ] = ModeChoice.TAKEOVER,
    estimate: Annotated[
        Estimate | None,
        typer.Option(
            envvar="HEADROOM_ESTIMATE",
            help="How much a migration needs. Default: exact in takeover mode, else harvester.",
            show_default=False,
        ),
    ] = None,
    kubevirt_profile: Annotated[
        str | None,
        typer.Option(
            envvar="HEADROOM_KUBEVIRT_PROFILE",
            help="KubeVirt release whose overhead constants count. Default: the KubeVirt CR's observed version.",
            show_default=False,
        ),
    ] = None,
    hold_limit: Annotated[
        float,
        typer.Option(
            envvar="HEADROOM_HOLD_LIMIT", min=0.0, help="Seconds that a lingering source pod keeps its room."
        ),
    ] = 600.0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run/--no-dry-run", envvar="HEADROOM_DRY_RUN", help="Decide, log and count; write nothing."
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(envvar="HEADROOM_WORKERS", min=1, max=1000, help="Workers of each kind's queue.")
    ] = 10,
    health_bind_address: HealthBindAddress = "127.0.0.1:8081",
    metrics_bind_address: MetricsBindAddress = None,
    render_default_quota: Annotated[
        bool,
        typer.Option(
            "--render-default-quota/--no-render-default-quota",
            envvar="HEADROOM_RENDER_DEFAULT_QUOTA",
            help="Create and update default quotas from namespace annotations, where no Rancher does.",
        ),
    ] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Verbose = False,
) -> int:
    """Raise quotas for live migrations and take the room back, until SIGTERM or SIGINT."""
    from pkg.client.config import load_config
    from pkg.controller.options import Options
    from pkg.generic.run import run_until_signal
    from pkg.util.resourcequota.model import EstimateKind, Mode, Policy

    logs.set_up(log_format, verbose)
    if estimate is None:
        estimate = Estimate.EXACT if mode is ModeChoice.TAKEOVER else Estimate.HARVESTER
    policy = Policy(
        Mode(mode.value), EstimateKind(estimate.value), hold_limit=hold_limit, render=render_default_quota
    )
    options = Options(policy, profile=overhead_profile(kubevirt_profile), dry_run=dry_run)
    config = load_config(kubeconfig)

    async def serve(stop: asyncio.Event) -> None:
        await _serve(stop, config, options, workers, health_bind_address, metrics_bind_address)

    return run_until_signal(serve)


def overhead_profile(name: str | None) -> OverheadProfile | None:
    """The profile of that name, or of a KubeVirt version like v1.6.2. Raises typer.BadParameter."""
    from pkg.util.memory_overhead import PROFILES, profile_for_version

    if name is None or name in PROFILES:
        return PROFILES[name] if name else None
    if not re.match(r"v?\d+\.\d+", name):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(PROFILES)} and no KubeVirt version")
    return profile_for_version(name)


async def _serve(
    stop: asyncio.Event,
    config: ClientConfig,
    options: Options,
    workers: int,
    health_bind_address: str,
    metrics_bind_address: str | None,
) -> None:
    from pkg.client.client import Client
    from pkg.controller.registry import register_all
    from pkg.generic.factory import Management
    from pkg.generic.server import serve_health

    async with Client(config) as client:
        await client.transport.request("GET", "/version")
        management = Management(client, workers=workers)
        register_all(management, management.recorder("headroom"), options)
        health = await serve_health(management, health_bind_address, metrics_bind_address)
        try:
            await management.start()
            await stop.wait()
        finally:
            await management.stop(timeout=7.0)
            await health.close()
