"""What `headroom release` does, in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.registry import CONFIG_MAPS, LEASES, PODS, SECRETS, Resource
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.errors import ReportedError
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector
from kubeloop.leaderelection.lease_lock import LeaseLock
from pkg.cmd.installed import LEASE, find_lease, own_namespaces
from pkg.cmd.options import DEFAULT_SECRET
from pkg.controller.managedtenantquota.release import close_all
from pkg.controller.namespace.holding_controller import unlabel_all
from pkg.controller.resourcequota.release import release_all
from pkg.util.constants import USER_AGENT
from pkg.util.installation import CONFIG_MAP
from pkg.webhook.registration import unregister

log = logging.getLogger(__name__)

_OWN: tuple[tuple[Resource[Any], str], ...] = (
    (SECRETS, DEFAULT_SECRET),
    (CONFIG_MAPS, CONFIG_MAP),
    (LEASES, LEASE),
)
"""What headroom made for itself in its own namespace; the Lease last."""
_STOP_SECONDS = 60.0
_PODS = "app.kubernetes.io/name=headroom,app.kubernetes.io/component in (controller,webhook)"


class Runs(ReportedError):
    """A controller runs, which would take over again what is released."""


@dataclass
class Released:
    """What was removed, the namespaces that were unlocked and the quotas that were given back."""

    removed: list[str] = field(default_factory=list)
    unlocked: list[str] = field(default_factory=list)
    quotas: list[str] = field(default_factory=list)
    remark: str = ""
    """What is not known."""


@dataclass(frozen=True)
class Releasing:
    """Every step may be repeated: a release that was interrupted is run again."""

    config: ClientConfig
    chosen: str | None = None
    """Headroom's own namespace; None: the configuration's."""
    deployments: tuple[str, ...] = ()
    election: LeaderElectionConfig | None = None
    """None: the Lease is not waited for."""
    only: str = ""
    """webhooks, locks or quotas; "" for everything."""
    check: bool = True
    """Refuse where a controller runs."""

    @property
    def namespace(self) -> str:
        """Headroom's own."""
        return self.chosen or self.config.namespace

    async def run(self) -> Released:
        """Raises Runs, ApiError, LeaseLost."""
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(self.config, user_agent=USER_AGENT))
            await self._stop(client)
            remark = await self._refuse_beside(client) if self.check else ""
            if self.election is None:
                released = await self._release(client)
            else:
                released = await self._release_elected(client, stack, self.election)
            released.remark = remark
            return released

    async def _release_elected(
        self, client: Client, stack: contextlib.AsyncExitStack, election: LeaderElectionConfig
    ) -> Released:
        elector = LeaderElector(LeaseLock(client, self.namespace, LEASE), election)
        await elector.acquire()
        leader = await stack.enter_async_context(
            Client(self.config, user_agent=USER_AGENT, before_write=elector.before_write)
        )
        renewal = asyncio.create_task(elector.renew())
        try:
            return await self._release(leader)
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])

    async def _refuse_beside(self, client: Client) -> str:
        """What is not known of others. Raises Runs where a Lease says that a controller runs."""
        namespaces = own_namespaces(client, self.chosen)
        where, lease = await find_lease(client, namespaces)
        if lease is None:
            return (
                f"whether a controller runs is not known: there is no Lease {LEASE} in {', '.join(namespaces)}, "
                "or it may not be read"
            )
        if lease.live:
            raise Runs(
                f"{lease.holder} runs and holds the Lease {where}/{LEASE}: stop it first "
                "(--scale-down headroom-controller --scale-down headroom-webhook), or give --force"
            )
        return ""

    async def _stop(self, client: Client) -> None:
        """The replicas, and wait until their pods are gone: a webhook that runs would register itself again."""
        for name in self.deployments:
            path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}/scale"
            with contextlib.suppress(NotFound):
                await client.transport.request(
                    "PATCH",
                    path,
                    body=b'{"spec":{"replicas":0}}',
                    content_type="application/merge-patch+json",
                )
                log.info("deployment %s/%s scaled down", self.namespace, name)
        if self.deployments:
            try:
                await asyncio.wait_for(self._stopped(client), _STOP_SECONDS)
            except TimeoutError:
                log.warning("pods of headroom still run in %s after %g s", self.namespace, _STOP_SECONDS)

    async def _stopped(self, client: Client) -> None:
        while True:
            if not await client.resource(PODS).list(namespace=self.namespace, label_selector=_PODS):
                return
            await asyncio.sleep(0.5)

    async def _release(self, client: Client) -> Released:
        released = Released()
        # First: a webhook that is registered and does not answer may be in the way of everything else.
        if self.only in ("", "webhooks"):
            released.removed = await unregister(client)
        try:
            if self.only != "webhooks":  # a quota that is raised under a lock is given back with it
                released.unlocked = await close_all(client)
        finally:
            # Also where a quota of a lock could not be restored.
            if self.only in ("", "quotas"):
                released.quotas = await release_all(client)
                await unlabel_all(client)
        if not self.only:
            released.removed += await self._remove_own(client)
        return released

    async def _remove_own(self, client: Client) -> list[str]:
        removed = []
        for resource, name in _OWN:
            try:
                await client.resource(resource).delete(name=name, namespace=self.namespace)
            except NotFound:
                continue
            except Forbidden as error:
                log.warning("%s %s/%s was not removed: %s", resource.kind, self.namespace, name, error)
                continue
            removed.append(f"{resource.kind} {name}")
        return removed
