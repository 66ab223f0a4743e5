"""A process of `headroom webhook`: health, caches and the admission server, started and ended in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import refuse_write
from kubeloop.controllers.server import serve_health
from pkg.config.management import Management
from pkg.process.leftovers import look_at_registered
from pkg.selfcheck.health import HealthChecks, wait_for_version
from pkg.selfcheck.kubernetes_version import KubernetesVersion
from pkg.selfcheck.upkeep import Upkeep
from pkg.util.constants import USER_AGENT
from pkg.util.kubevirt.rendering import virt_controllers
from pkg.webhook.register import Webhooks


@dataclass(frozen=True)
class AdmissionReplica:
    """A replica of any number: each answers, none is elected."""

    config: ClientConfig
    webhooks: Webhooks
    address: str
    """host:port of the webhooks."""
    health_bind_address: str
    metrics_bind_address: str | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        checks, settings = HealthChecks(), self.webhooks.settings
        health = await serve_health(checks, self.health_bind_address, self.metrics_bind_address)
        try:
            refuse = refuse_write if settings.dry_run else None
            async with Client(self.config, user_agent=USER_AGENT, before_write=refuse) as client:
                kubernetes = await wait_for_version(client, stop)
                if kubernetes is None:
                    return
                health.log_addresses()
                await self._run(stop, checks, Management(client, kubernetes.releases), kubernetes)
        finally:
            await health.close()

    async def _run(
        self, stop: asyncio.Event, checks: HealthChecks, management: Management, kubernetes: KubernetesVersion
    ) -> None:
        settings, client = self.webhooks.settings, management.client
        checks.admission = admission = await self.webhooks.server(client, management)
        checks.management = management
        upkeep = Upkeep(
            client,
            management.recorder("headroom"),
            settings.namespace,
            lambda: virt_controllers(management.kubevirts.cache().list(), settings.kubevirt_users),
            management.set_policy_in_force,
            reports=lambda: False,
        )
        tasks = [asyncio.create_task(kubernetes.run(client))]
        if not settings.register and not settings.dry_run:
            tasks.append(asyncio.create_task(look_at_registered(management, settings.namespace)))
        try:
            await management.start()
            tasks.append(asyncio.create_task(upkeep.run()))
            await admission.start(self.address)
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await admission.stop()
            await management.stop(timeout=5.0)
