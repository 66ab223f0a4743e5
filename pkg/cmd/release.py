"""`headroom release`: give every ResourceQuota back to Harvester, and leave nothing behind."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import typer

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.client.loading import load_config
from kubeloop.controllers.events import EventRecorder
from kubeloop.errors import ReportedError
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector
from kubeloop.leaderelection.lease_lock import LeaseLock
from pkg.cmd.flags import option, optional
from pkg.cmd.options import DEFAULT_SECRET, ClusterOptions, ElectionOptions, LogOptions
from pkg.config.rancher_quotas import RANCHER_SUDO, RancherWrites
from pkg.controller.namespace.namespace_controller import unlabel_all
from pkg.process.giving_back import close_all, release_all
from pkg.report.reader import home_namespaces, list_allowed, read_lease
from pkg.util.constants import CONFIG_MAP, LEASE, USER_AGENT
from pkg.util.resourcequota.observe import Listed
from pkg.util.resourcequota.policy import RancherQuotas
from pkg.webhook.configurations import MANAGED_BY
from pkg.webhook.registration import unregister

log = logging.getLogger(__name__)

_PODS = "app.kubernetes.io/name=headroom,app.kubernetes.io/component in (controller,webhook)"


@dataclass(frozen=True)
class ReleaseOptions:
    title: ClassVar = "Installation"
    namespace: str | None = optional(
        "Namespace of headroom's own objects, which are removed. Default: the pod's namespace, else the kubeconfig "
        "context's.",
        metavar="NAMESPACE",
    )
    only: Literal["webhooks", "locks", "quotas"] | None = optional(
        "Only this: remove the webhooks, unlock every namespace, or give every quota back (those raised under a "
        "lock too: every namespace is unlocked). Default: all, and the Secret, ConfigMap and Lease of headroom itself."
    )
    rancher_quotas: RancherQuotas = option(
        RancherQuotas.AUTO, "How quotas with Rancher's label are written, as for `headroom controller`."
    )
    scale_down: list[str] | None = optional("Deployment there to stop first; may be repeated.", metavar="NAME")
    secret_name: str = option(DEFAULT_SECRET, "Secret of the certificate; removed if headroom made it.", metavar="NAME")
    force: bool = option(False, "Also while a controller runs: it takes over again what it sees.", "--force")


def release(
    cluster: ClusterOptions, installation: ReleaseOptions, election: ElectionOptions, logging: LogOptions
) -> int:
    """Hand every ResourceQuota that headroom took over back to Harvester's own controllers, and remove its webhooks.

    Stop the controller and the webhooks first (--scale-down does): while they run they take over what they see. It
    refuses where the Lease says that a controller runs; with --leader-elect it waits until the Lease is free."""
    logging.set_up()
    durations, config = election.config(), load_config(cluster.kubeconfig)
    asked, force = election.leader_elect, installation.force
    elected = not force and (config.in_cluster if asked is None else asked)
    # Who asks for the election waits for its end.
    outcome = _release(config, installation, durations if elected else None, refuses=not (force or asked))
    lines, refusals, remark = asyncio.run(outcome)
    for line in lines or ["nothing to release"]:
        typer.echo(line)
    for line in filter(None, [*refusals, remark]):
        typer.echo(line, err=True)
    return 1 if refusals else 0


async def _release(
    config: ClientConfig, options: ReleaseOptions, election: LeaderElectionConfig | None, *, refuses: bool
) -> tuple[list[str], list[str], str]:
    """Releases what the options name. Returns lines about what was released and what was not, and a remark or "". Every
    step may be repeated: a release that was interrupted is run again. Without an `election` the Lease is not waited
    for; `refuses`: where a controller runs, which would take over again what is released. Raises ReportedError."""
    namespace = options.namespace or config.namespace
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config, user_agent=USER_AGENT))
        if options.scale_down:
            await _stop(client, namespace, options.scale_down)
        guard, remark = None, ""
        if refuses:
            namespaces = list(dict.fromkeys([namespace, *home_namespaces(client, None)]))
            leases = [(place, lease) for place in namespaces if (lease := (await read_lease(client, place))[0])]
            if not leases:
                remark = f"whether a controller runs is not known: there is no Lease {LEASE} in {', '.join(namespaces)}"
                remark += ", or it may not be read"
            for place, lease in leases:
                if lease.is_live:
                    raise ReportedError(
                        f"{lease.holder} runs and holds the Lease {place}/{LEASE}: stop it first (--namespace {place} "
                        "--scale-down headroom-controller --scale-down headroom-webhook), or give --force"
                    )
        if election is not None:
            elector = LeaderElector(LeaseLock(client, namespace, LEASE), election)
            await elector.acquire()
            renewal = asyncio.create_task(elector.renew())
            stack.push_async_callback(asyncio.wait, [renewal])
            stack.callback(renewal.cancel)
            guard = elector.before_write
        client = await stack.enter_async_context(Client(config, user_agent=USER_AGENT, before_write=guard))
        as_rancher = Client(config.impersonate(*RANCHER_SUDO), user_agent=USER_AGENT, before_write=guard)
        owner = await stack.enter_async_context(as_rancher)
        rancher, events = RancherWrites(client, owner, options.rancher_quotas), EventRecorder(client, "headroom")
        stack.push_async_callback(events.stop)
        return *await _give_back(client, rancher, events, options), remark


async def _stop(client: Client, namespace: str, deployments: Sequence[str]) -> None:
    """Stops the replicas and waits until their pods are gone: a webhook that runs would register itself again."""
    for name in deployments:
        try:
            await client.resource(registry.DEPLOYMENTS).merge_patch(
                {"spec": {"replicas": 0}}, name=name, namespace=namespace, subresource="scale"
            )
            log.info("deployment %s/%s scaled down", namespace, name)
        except NotFound:
            log.warning("there is no deployment %s/%s", namespace, name)
    for _ in range(120):  # a minute
        if not await client.resource(registry.PODS).list(namespace, label_selector=_PODS):
            return
        await asyncio.sleep(0.5)
    log.warning("pods of headroom still run in %s", namespace)


async def _give_back(
    client: Client, rancher: RancherWrites, events: EventRecorder, options: ReleaseOptions
) -> tuple[list[str], list[str]]:
    """Removes, unlocks and gives back; where quotas were meant, the last line says how many."""
    lines, refusals, only = list[str](), dict[str, str](), options.only
    if only in (None, "webhooks"):  # first: a webhook that does not answer may be in the way of everything else
        lines += [f"removed {name}" for name in await unregister(client)]
    try:
        if only != "webhooks":  # a quota that is raised under a lock is given back with it
            # None where they may not be read: a lock then shows by a denied write.
            rancher.registrations = Listed(await list_allowed(client, registry.VALIDATING_WEBHOOK_CONFIGURATIONS))
            lines += [f"unlocked {name}" for name in await close_all(client, rancher, events)]
    finally:
        # Also where a quota of a lock could not be restored.
        if only in (None, "quotas"):
            refusals = await release_all(client, rancher, events)
            await unlabel_all(client)
    await events.stop()  # a renewal during the last ones would make the Lease anew
    if only is None:
        lines += [f"removed {name}" for name in await _remove_own(client, options)]
    if only in (None, "quotas"):
        released = [f"released {key}" for key, refusal in refusals.items() if not refusal]
        lines += [*released, f"{len(released)} resource quotas released"]
    return lines, [f"not released {key}: {refusal}" for key, refusal in refusals.items() if refusal]


async def _remove_own(client: Client, options: ReleaseOptions) -> list[str]:
    """Removes what headroom made for itself in its own namespace, the Lease last; returns their kinds and names."""
    removed, namespace = [], options.namespace or client.transport.config.namespace
    own: list[tuple[registry.Resource[Any], str]]
    own = [(registry.SECRETS, options.secret_name), (registry.CONFIG_MAPS, CONFIG_MAP), (registry.LEASES, LEASE)]
    for resource, name in own:
        kind, uid = client.resource(resource), None
        try:
            if resource is registry.SECRETS:  # its name is people's choice, and it may be theirs or cert-manager's
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
