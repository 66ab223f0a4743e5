"""`headroom webhook`: the admission server alone, any number of replicas, until a signal."""

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
    from pkg.util.memory_overhead import OverheadProfile
    from pkg.util.resourcequota.model import Policy


def webhook(
    kubeconfig: Kubeconfig = None,
    bind_address: flags.BindAddress = "127.0.0.1:9443",
    webhook_url: flags.WebhookURL = None,
    mode: Annotated[
        ModeChoice, typer.Option(envvar="HEADROOM_MODE", help="The controller's: it decides alike.")
    ] = ModeChoice.TAKEOVER,
    estimate: Annotated[
        Estimate | None,
        typer.Option(
            envvar="HEADROOM_ESTIMATE",
            help="The controller's. Default: exact in takeover mode, else harvester.",
            show_default=False,
        ),
    ] = None,
    kubevirt_profile: Annotated[
        str | None,
        typer.Option(envvar="HEADROOM_KUBEVIRT_PROFILE", help="The controller's.", show_default=False),
    ] = None,
    hold_limit: Annotated[
        float, typer.Option(envvar="HEADROOM_HOLD_LIMIT", min=0.0, help="The controller's.")
    ] = 600.0,
    quota_guard: flags.QuotaGuardOption = flags.QuotaGuardChoice.CORRECT,
    reserve: flags.Reserve = None,
    failure_policy: flags.FailurePolicyOption = flags.FailurePolicyChoice.IGNORE,
    rancher_user: flags.RancherUsers = None,
    kubevirt_user: flags.KubeVirtUsers = None,
    controller_user: flags.ControllerUsers = None,
    namespace: flags.Namespace = None,
    service_name: flags.ServiceName = "headroom-webhook",
    secret_name: flags.SecretName = "headroom-webhook-tls",
    tls_cert_file: flags.TLSCertFile = None,
    tls_key_file: flags.TLSKeyFile = None,
    tls_ca_file: flags.TLSCAFile = None,
    register: flags.Register = True,
    health_bind_address: HealthBindAddress = "127.0.0.1:8082",
    metrics_bind_address: MetricsBindAddress = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Verbose = False,
) -> int:
    """Serve the admission webhooks: guard quotas and the room added for migrations, until SIGTERM or SIGINT."""
    from pkg.client.config import load_config
    from pkg.cmd.admission import Flags
    from pkg.generic.run import run_until_signal
    from pkg.util.resourcequota.model import EstimateKind, Mode, Policy

    logs.set_up(log_format, verbose)
    takeover = mode is ModeChoice.TAKEOVER
    if estimate is None:
        estimate = Estimate.EXACT if takeover else Estimate.HARVESTER
    policy = Policy(Mode(mode.value), EstimateKind(estimate.value), hold_limit=hold_limit)
    chosen = Flags(
        bind_address,
        webhook_url,
        quota_guard=quota_guard.value,
        reserve=takeover if reserve is None else reserve is flags.Switch.ON,
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
        register=register,
    )
    chosen.check()
    profile = chosen_profile(kubevirt_profile)
    config = load_config(kubeconfig)

    async def serve(stop: asyncio.Event) -> None:
        await _serve(stop, config, policy, profile, chosen, health_bind_address, metrics_bind_address)

    return run_until_signal(serve)


async def _serve(
    stop: asyncio.Event,
    config: ClientConfig,
    policy: Policy,
    profile: OverheadProfile | None,
    chosen: Flags,
    health_bind_address: str,
    metrics_bind_address: str | None,
) -> None:
    from pkg.client.client import Client
    from pkg.cmd.admission import Checks, admission_server
    from pkg.generic.factory import Management
    from pkg.generic.server import serve_health

    async with Client(config) as client:
        await client.transport.request("GET", "/version")
        management = Management(client)
        admission = await admission_server(client, config, management, policy, profile, chosen)
        health = await serve_health(Checks(management, admission), health_bind_address, metrics_bind_address)
        try:
            await management.start()
            await admission.start(chosen.bind_address)
            await stop.wait()
        finally:
            await admission.stop()
            await management.stop(timeout=5.0)
            await health.close()
