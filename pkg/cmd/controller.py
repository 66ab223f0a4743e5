"""`headroom controller`: the controllers, until a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pkg.cmd import logs
from pkg.cmd import webhook_options as flags
from pkg.cmd.options import (
    Estimate,
    HealthBindAddress,
    Kubeconfig,
    LogFormat,
    LogFormatOption,
    MetricsBindAddress,
    ModeChoice,
    Verbose,
    chosen_profile,
)

if TYPE_CHECKING:
    import asyncio

    from pkg.client.config import ClientConfig
    from pkg.cmd.admission import Flags
    from pkg.controller.options import Options


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
    foreign_grace: Annotated[
        float,
        typer.Option(
            envvar="HEADROOM_FOREIGN_GRACE",
            min=0.0,
            help="Seconds that an entry stays which no migration explains.",
        ),
    ] = 60.0,
    compensate: Annotated[
        bool,
        typer.Option(
            "--compensate/--no-compensate",
            envvar="HEADROOM_COMPENSATE",
            help="Make room for a migration that is refused although its entry is applied.",
        ),
    ] = True,
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
    webhook: Annotated[
        bool,
        typer.Option(
            "--webhook/--no-webhook", envvar="HEADROOM_WEBHOOK", help="Serve the admission webhooks here too."
        ),
    ] = False,
    bind_address: flags.BindAddress = "127.0.0.1:9443",
    webhook_url: flags.WebhookURL = None,
    quota_guard: flags.QuotaGuardOption = flags.QuotaGuardChoice.CORRECT,
    reserve: flags.Reserve = None,
    failure_policy: flags.FailurePolicyOption = flags.FailurePolicyChoice.IGNORE,
    rancher_user: flags.RancherUsers = None,
    kubevirt_user: flags.KubeVirtUsers = None,
    controller_user: flags.ControllerUsers = None,
    lock_limit: Annotated[
        float,
        typer.Option(
            envvar="HEADROOM_LOCK_LIMIT",
            min=1.0,
            help="Seconds that a namespace with a migration budget (VMMRQ) is locked at most.",
        ),
    ] = 120.0,
    namespace: flags.Namespace = None,
    service_name: flags.ServiceName = "headroom-webhook",
    secret_name: flags.SecretName = "headroom-webhook-tls",
    tls_cert_file: flags.TLSCertFile = None,
    tls_key_file: flags.TLSKeyFile = None,
    tls_ca_file: flags.TLSCAFile = None,
    register: flags.Register = True,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Verbose = False,
) -> int:
    """Raise quotas for live migrations and take the room back, until SIGTERM or SIGINT."""
    from pkg.client.config import load_config
    from pkg.cmd.admission import Flags
    from pkg.controller.options import Options
    from pkg.generic.run import run_until_signal
    from pkg.util.resourcequota.model import EstimateKind, Mode, Policy

    logs.set_up(log_format, verbose)
    if estimate is None:
        estimate = Estimate.EXACT if mode is ModeChoice.TAKEOVER else Estimate.HARVESTER
    policy = Policy(
        Mode(mode.value),
        EstimateKind(estimate.value),
        foreign_grace=foreign_grace,
        hold_limit=hold_limit,
        compensate=compensate,
        render=render_default_quota,
    )
    reserved = mode is ModeChoice.TAKEOVER if reserve is None else reserve is flags.Switch.ON
    options = Options(
        policy,
        profile=chosen_profile(kubevirt_profile),
        reserve=reserved,
        dry_run=dry_run,
        lock_limit=lock_limit,
        controller_users=tuple(controller_user or ()),
        kubevirt_users=tuple(kubevirt_user or ()),
    )
    chosen = Flags(
        bind_address,
        webhook_url,
        quota_guard=quota_guard.value,
        reserve=reserved,
        failure_policy=failure_policy.value,
        rancher_users=rancher_user,
        kubevirt_users=kubevirt_user,
        controller_users=controller_user,
        namespace=namespace,
        service_name=service_name,
        secret_name=secret_name,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
        tls_ca_file=tls_ca_file,
        register=register and not dry_run,
    )
    chosen.check()
    config = load_config(kubeconfig)

    async def serve(stop: asyncio.Event) -> None:
        admission = chosen if webhook else None
        await _serve(stop, config, options, workers, admission, health_bind_address, metrics_bind_address)

    return run_until_signal(serve)


async def _serve(
    stop: asyncio.Event,
    config: ClientConfig,
    options: Options,
    workers: int,
    chosen: Flags | None,
    health_bind_address: str,
    metrics_bind_address: str | None,
) -> None:
    from pkg.client.client import Client
    from pkg.cmd.admission import Checks, admission_server
    from pkg.controller.registry import register_all
    from pkg.generic.factory import Management
    from pkg.generic.server import serve_health

    async with Client(config) as client:
        await client.transport.request("GET", "/version")
        management = Management(client, workers=workers)
        register_all(management, management.recorder("headroom"), options)
        admission = None
        if chosen is not None:
            admission = await admission_server(
                client, config, management, options.policy, options.profile, chosen
            )
        checks = Checks(management, admission)
        health = await serve_health(checks, health_bind_address, metrics_bind_address)
        try:
            await management.start()
            if admission is not None and chosen is not None:
                await admission.start(chosen.bind_address)
            await stop.wait()
        finally:
            if admission is not None:
                await admission.stop()
            await management.stop(timeout=7.0)
            await health.close()
