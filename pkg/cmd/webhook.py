"""`headroom webhook`: the admission server alone, any number of replicas, until a signal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pkg.cmd import logs
from pkg.cmd.options import ClusterOptions, LogOptions, PolicyOptions, ProcessOptions, WebhookOptions
from pkg.util.constants import USER_AGENT

if TYPE_CHECKING:
    import asyncio

    from kubeloop.client.config import ClientConfig
    from pkg.cmd.admission import Admission


def webhook(
    cluster: ClusterOptions,
    policy: PolicyOptions,
    webhooks: WebhookOptions,
    logging: LogOptions,
    process: ProcessOptions = ProcessOptions(health_bind_address="127.0.0.1:8082"),
) -> int:
    """Serve the admission webhooks: guard quotas and the headroom added for migrations, until SIGTERM or SIGINT."""
    from kubeloop.client.loading import load_config
    from kubeloop.controllers.run import run_until_signal
    from pkg.cmd.admission import Admission

    logs.set_up(logging)
    register = webhooks.register and not process.dry_run
    admission = Admission(policy, replace(webhooks, register=register), process.namespace)
    admission.check()
    config = load_config(cluster.kubeconfig)

    return run_until_signal(lambda stop: _serve(stop, config, admission, process))


async def _serve(
    stop: asyncio.Event, config: ClientConfig, webhooks: Admission, process: ProcessOptions
) -> None:
    import asyncio

    from kubeloop.client.client import Client
    from kubeloop.client.errors import refuse_write
    from kubeloop.controllers.server import serve_health
    from pkg.cmd.health import Checks, answer
    from pkg.config.management import Management

    checks = Checks()
    health = await serve_health(checks, process.health_bind_address, process.metrics_bind_address)
    try:
        refuse = refuse_write if process.dry_run else None
        async with Client(config, user_agent=USER_AGENT, before_write=refuse) as client:
            kubernetes = await answer(client, stop)
            if kubernetes is None:
                return
            health.log_addresses()
            management = Management(client, kubernetes)
            admission = await webhooks.server(client, config, management)
            checks.admission, checks.management = admission, management
            asking = asyncio.create_task(kubernetes.run(client))
            try:
                await management.start()
                await admission.start(webhooks.bind_address(config))
                await stop.wait()
            finally:
                asking.cancel()
                await admission.stop()
                await management.stop(timeout=5.0)
    finally:
        await health.close()
