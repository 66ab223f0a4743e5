"""`headroom release`: give every ResourceQuota back to Harvester, and leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import typer

from kubeloop.api.registry import CONFIG_MAPS, LEASES, PODS, SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.connections import BeforeWrite
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.client.loading import load_config
from kubeloop.errors import ReportedError
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector
from kubeloop.leaderelection.lease_lock import LeaseLock
from pkg.cmd.flags import option, optional
from pkg.cmd.options import DEFAULT_SECRET, ClusterOptions, ElectionOptions, LogOptions
from pkg.config.rancher_quotas import RANCHER_SUDO, RancherWrites
from pkg.controller.namespace.holding_controller import unlabel_all
from pkg.process.giving_back import GivenBack, close_all, release_all
from pkg.report.reader import find_lease, home_namespaces, list_allowed
from pkg.util.constants import CONFIG_MAP, LEASE, USER_AGENT
from pkg.util.resourcequota.observe import Listed
from pkg.util.resourcequota.policy import RancherQuotas
from pkg.webhook.configurations import MANAGED_BY
from pkg.webhook.registration import unregister

log = logging.getLogger(__name__)

_STOP_SECONDS = 60.0
_PODS = "app.kubernetes.io/name=headroom,app.kubernetes.io/component in (controller,webhook)"


class Part(StrEnum):
    """A part that can be released by itself."""

    WEBHOOKS = "webhooks"
    LOCKS = "locks"
    QUOTAS = "quotas"


@dataclass(frozen=True)
class ReleaseOptions:
    """The installation that ends."""

    title: ClassVar = "Installation"

    namespace: str | None = optional(
        "Namespace of headroom's own objects, which are removed. Default: the pod's namespace, else the kubeconfig "
        "context's.",
        metavar="NAMESPACE",
    )
    only: Part | None = optional(
        "Only this: remove the webhooks, unlock every namespace, or give every quota back (those raised under a "
        "lock too: every namespace is unlocked). Default: all, and the Secret, ConfigMap and Lease of headroom itself."
    )
    rancher_quotas: RancherQuotas = option(
        RancherQuotas.AUTO, "How quotas with Rancher's label are written, as for `headroom controller`."
    )
    scale_down: list[str] | None = optional(
        "Deployment of that namespace to stop first; may be repeated.", metavar="NAME"
    )
    secret_name: str = option(
        DEFAULT_SECRET, "Secret of the serving certificate; removed only where headroom made it.", metavar="NAME"
    )
    force: bool = option(False, "Also while a controller runs: it takes over again what it sees.", "--force")


def release(
    cluster: ClusterOptions, installation: ReleaseOptions, election: ElectionOptions, logging: LogOptions
) -> None:
    """Hand every ResourceQuota that headroom took over back to Harvester's own controllers, and remove its webhooks.

    Stop the controller and the webhooks first (--scale-down does): while they run they take over what they see. It
    refuses where the Lease says that a controller runs; with --leader-elect it waits until the Lease is free.
    """
    logging.set_up()
    durations = election.config()
    config = load_config(cluster.kubeconfig)
    elected = config.in_cluster if election.leader_elect is None else election.leader_elect
    outcome = asyncio.run(
        _release(
            config,
            installation,
            durations if elected and not installation.force else None,
            # Who asks for the election waits for its end.
            refuses=not installation.force and election.leader_elect is not True,
        )
    )
    for line in outcome.lines or ["nothing to release"]:
        typer.echo(line)
    for line in filter(None, [*outcome.refusals, outcome.remark]):
        typer.echo(line, err=True)
    if outcome.refusals:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Outcome:
    """Lines for people: what was released, what was refused, and what is not known of other controllers."""

    lines: list[str]
    refusals: list[str]
    remark: str = ""


class Runs(ReportedError):
    """A controller runs, which would take over again what is released."""


async def _release(
    config: ClientConfig, options: ReleaseOptions, election: LeaderElectionConfig | None, *, refuses: bool
) -> Outcome:
    """Releases what the options name. Every step may be repeated: a release that was interrupted is run again. Without
    an `election` the Lease is not waited for; `refuses`: where a controller runs.

    Raises Runs, ApiError, LeaseLost.
    """
    namespace = options.namespace or config.namespace
    async with Client(config, user_agent=USER_AGENT) as client:
        await _stop(client, namespace, options.scale_down or ())
        remark = await _refuse_while_one_runs(client, namespace) if refuses else ""
        if election is None:
            return replace(await _give_back(config, client, None, options, namespace), remark=remark)
        elector = LeaderElector(LeaseLock(client, namespace, LEASE), election)
        await elector.acquire()
        async with Client(config, user_agent=USER_AGENT, before_write=elector.before_write) as leader:
            renewal = asyncio.create_task(elector.renew())
            try:
                outcome = await _give_back(config, leader, elector.before_write, options, namespace)
                return replace(outcome, remark=remark)
            finally:
                renewal.cancel()
                await asyncio.wait([renewal])


async def _refuse_while_one_runs(client: Client, namespace: str) -> str:
    """Raises Runs where a Lease says that a controller runs; returns a remark where none tells."""
    # Wherever it runs: what is released is the whole cluster's.
    namespaces = list(dict.fromkeys([namespace, *home_namespaces(client, None)]))
    lease_namespace, lease = await find_lease(client, namespaces)
    if lease is None:
        return (
            f"whether a controller runs is not known: there is no Lease {LEASE} in {', '.join(namespaces)}, "
            "or it may not be read"
        )
    if lease.is_live:
        raise Runs(
            f"{lease.holder} runs and holds the Lease {lease_namespace}/{LEASE}: stop it first "
            f"(--namespace {lease_namespace} --scale-down headroom-controller --scale-down headroom-webhook), "
            "or give --force"
        )
    return ""


async def _stop(client: Client, namespace: str, deployments: Sequence[str]) -> None:
    """Stops the replicas and waits until their pods are gone: a webhook that runs would register itself again."""
    for name in deployments:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
        try:
            await client.transport.request(
                "PATCH", path, body=b'{"spec":{"replicas":0}}', content_type="application/merge-patch+json"
            )
            log.info("deployment %s/%s scaled down", namespace, name)
        except NotFound:
            log.warning("there is no deployment %s/%s", namespace, name)
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            while deployments:
                if not await client.resource(PODS).list(namespace=namespace, label_selector=_PODS):
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        log.warning("pods of headroom still run in %s after %g s", namespace, _STOP_SECONDS)


async def _give_back(
    config: ClientConfig, client: Client, guard: BeforeWrite | None, options: ReleaseOptions, namespace: str
) -> Outcome:
    """Removes, unlocks and gives back; where quotas were meant, the last line says how many."""
    unlocked: list[str] = []
    given_back = GivenBack([], {})
    only = options.only
    # First: a webhook that is registered and does not answer may be in the way of everything else.
    removed = await unregister(client) if only in (None, Part.WEBHOOKS) else []
    as_rancher = Client(config.impersonate(*RANCHER_SUDO), user_agent=USER_AGENT, before_write=guard)
    async with as_rancher:
        rancher = RancherWrites(client, as_rancher, options.rancher_quotas)
        try:
            if only is not Part.WEBHOOKS:  # a quota that is raised under a lock is given back with it
                # None where they may not be read: a lock then shows by a denied write.
                rancher.registrations = Listed(await list_allowed(client, VALIDATING_WEBHOOK_CONFIGURATIONS))
                unlocked = await close_all(client, rancher)
        finally:
            # Also where a quota of a lock could not be restored.
            if only in (None, Part.QUOTAS):
                given_back = await release_all(client, rancher)
                await unlabel_all(client)
    if only is None:
        removed += await _remove_own(client, namespace, options.secret_name)
    lines = [
        *(f"removed {name}" for name in removed),
        *(f"unlocked {name}" for name in unlocked),
        *(f"released {key}" for key in given_back.quotas),
        *([f"{len(given_back.quotas)} resource quotas released"] if only in (None, Part.QUOTAS) else []),
    ]
    return Outcome(lines, [f"not released {key}: {reason}" for key, reason in given_back.refusals.items()])


async def _remove_own(client: Client, namespace: str, secret_name: str) -> list[str]:
    """Removes what headroom made for itself in its own namespace, the Lease last; returns their kinds and names."""
    objects: tuple[tuple[Resource[Any], str], ...] = (
        (SECRETS, secret_name),
        (CONFIG_MAPS, CONFIG_MAP),
        (LEASES, LEASE),
    )
    removed = []
    for resource, name in objects:
        kind = client.resource(resource)
        try:
            uid = None
            if resource is SECRETS:  # the one whose name people choose, and which cert-manager or they may have made
                secret = await kind.get(name=name, namespace=namespace)
                if not MANAGED_BY.items() <= secret.labels.items():
                    continue
                uid = secret.uid
            await kind.delete(name=name, namespace=namespace, uid=uid)
            removed.append(f"{resource.kind} {name}")
        except NotFound:
            continue
        except Forbidden as error:
            log.warning("%s %s/%s was not removed: %s", resource.kind, namespace, name, error)
    return removed
