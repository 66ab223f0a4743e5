"""`headroom release`: give every ResourceQuota back to Harvester, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from kubeloop.errors import ReportedError
from pkg.cmd import logs
from pkg.cmd.flags import option
from pkg.cmd.options import DEFAULT_SECRET, ClusterOptions, ElectionOptions, LogOptions
from pkg.util.constants import USER_AGENT

if TYPE_CHECKING:
    from kubeloop.client.client import Client
    from kubeloop.client.config import ClientConfig
    from kubeloop.leaderelection.elector import LeaderElectionConfig

log = logging.getLogger(__name__)

_STOP_SECONDS = 60.0
_PODS = "app.kubernetes.io/name=headroom,app.kubernetes.io/component in (controller,webhook)"


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

    logs.set_up(logging)
    durations = election.config()
    config = load_config(cluster.kubeconfig)
    elected = config.in_cluster if election.leader_elect is None else election.leader_elect
    releasing = Releasing(
        config,
        installation,
        installation.namespace or config.namespace,
        durations if elected and not installation.force else None,
        # Who asks for the election waits for its end.
        refuses=not installation.force and election.leader_elect is not True,
    )
    released = asyncio.run(releasing.run())
    for line in [*_lines(released, counted=installation.only in (None, Part.QUOTAS))] or ["nothing to release"]:
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
    """Every step may be repeated: a release that was interrupted is run again. `namespace` is headroom's own; without
    an `election` the Lease is not waited for; `refuses`: where a controller runs."""

    config: ClientConfig
    chosen: ReleaseOptions
    namespace: str
    election: LeaderElectionConfig | None
    refuses: bool

    async def run(self) -> Released:
        """Raises Runs, ApiError, LeaseLost."""
        from kubeloop.client.client import Client

        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(self.config, user_agent=USER_AGENT))
            await self._stop(client)
            remark = await self._refuse_beside(client) if self.refuses else ""
            if self.election is None:
                released = await self._release(client)
            else:
                released = await self._release_elected(client, stack, self.election)
            released.remark = remark
            return released

    async def _release_elected(
        self, client: Client, stack: contextlib.AsyncExitStack, election: LeaderElectionConfig
    ) -> Released:
        from kubeloop.client.client import Client
        from kubeloop.leaderelection.elector import LeaderElector
        from kubeloop.leaderelection.lease_lock import LeaseLock
        from pkg.util.installation import LEASE

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
        from pkg.report.reader import find_lease, own_namespaces
        from pkg.util.installation import LEASE

        # Wherever it runs: what is released is the whole cluster's.
        namespaces = list(dict.fromkeys([self.namespace, *own_namespaces(client, None)]))
        where, lease = await find_lease(client, namespaces)
        if lease is None:
            return (
                f"whether a controller runs is not known: there is no Lease {LEASE} in {', '.join(namespaces)}, "
                "or it may not be read"
            )
        if lease.live:
            raise Runs(
                f"{lease.holder} runs and holds the Lease {where}/{LEASE}: stop it first "
                f"(--namespace {where} --scale-down headroom-controller --scale-down headroom-webhook), "
                "or give --force"
            )
        return ""

    async def _stop(self, client: Client) -> None:
        """The replicas, and wait until their pods are gone: a webhook that runs would register itself again."""
        from kubeloop.api.registry import PODS
        from kubeloop.client.errors import NotFound

        deployments = self.chosen.scale_down or ()
        for name in deployments:
            path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}/scale"
            try:
                await client.transport.request(
                    "PATCH", path, body=b'{"spec":{"replicas":0}}', content_type="application/merge-patch+json"
                )
                log.info("deployment %s/%s scaled down", self.namespace, name)
            except NotFound:
                log.warning("there is no deployment %s/%s", self.namespace, name)
        if not deployments:
            return
        pods = client.resource(PODS)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                while True:
                    if not await pods.list(namespace=self.namespace, label_selector=_PODS):
                        return
                    await asyncio.sleep(0.5)
        except TimeoutError:
            log.warning("pods of headroom still run in %s after %g s", self.namespace, _STOP_SECONDS)

    async def _release(self, client: Client) -> Released:
        from pkg.controller.managedtenantquota.release import close_all
        from pkg.controller.namespace.holding_controller import unlabel_all
        from pkg.controller.resourcequota.release import release_all
        from pkg.webhook.registration import unregister

        released, only = Released(), self.chosen.only
        # First: a webhook that is registered and does not answer may be in the way of everything else.
        if only in (None, Part.WEBHOOKS):
            released.removed = await unregister(client)
        try:
            if only is not Part.WEBHOOKS:  # a quota that is raised under a lock is given back with it
                released.unlocked = await close_all(client)
        finally:
            # Also where a quota of a lock could not be restored.
            if only in (None, Part.QUOTAS):
                released.quotas = await release_all(client)
                await unlabel_all(client)
        if only is None:
            released.removed += await self._remove_own(client)
        return released

    async def _remove_own(self, client: Client) -> list[str]:
        """What headroom made for itself in its own namespace; the Lease last."""
        from kubeloop.api.registry import CONFIG_MAPS, LEASES, SECRETS, Resource
        from kubeloop.client.errors import Forbidden, NotFound
        from pkg.util.installation import CONFIG_MAP, LEASE

        own: tuple[tuple[Resource[Any], str], ...] = (
            (SECRETS, DEFAULT_SECRET),
            (CONFIG_MAPS, CONFIG_MAP),
            (LEASES, LEASE),
        )
        removed = []
        for resource, name in own:
            try:
                await client.resource(resource).delete(name=name, namespace=self.namespace)
            except NotFound:
                continue
            except Forbidden as error:
                log.warning("%s %s/%s was not removed: %s", resource.kind, self.namespace, name, error)
                continue
            removed.append(f"{resource.kind} {name}")
        return removed
