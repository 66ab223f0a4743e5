"""`headroom release`: give every ResourceQuota back to Harvester, and leave nothing behind.

Runs over everything once, without informers: its account may watch nothing."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import typer

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.client.client import Client, for_each
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.loading import load_config
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.errors import ReportedError
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector
from kubeloop.leaderelection.lease_lock import LeaseLock
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.cmd.flags import option, optional
from pkg.cmd.options import DEFAULT_SECRET, ClusterOptions, ElectionOptions, LogOptions
from pkg.config.causes import Reverts
from pkg.config.rancher_quotas import RANCHER_SUDO, RancherWrites
from pkg.controller.managedtenantquota.managedtenantquota_controller import Writer
from pkg.controller.namespace.namespace_controller import unlabel_all
from pkg.controller.resourcequota.resourcequota_controller import ResourceQuotaHandler
from pkg.report.reader import home_namespaces, list_allowed, read_lease
from pkg.util.constants import CONFIG_MAP, LEASE, USER_AGENT
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed, WindowPolicy, is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Wait, Window, next_step
from pkg.util.resourcequota.entries import is_entry
from pkg.util.resourcequota.managed import OWN_MARKS, is_default, is_ours
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.policy import EXACT, RancherQuotas
from pkg.util.resourcequota.rancher import SILENCE, removal_command, request_of, stuck_entries
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


async def release_all(client: Client, rancher: RancherWrites, events: EventRecorder) -> dict[str, str]:
    """Releases our ResourceQuotas; returns each key with the refusal or "". Raises other ApiErrors in the end."""
    namespaces = {namespace.name: namespace for namespace in await client.resource(registry.NAMESPACES).list()}
    quotas = [
        quota
        for quota in await client.resource(registry.RESOURCE_QUOTAS).list()
        if is_ours(quota) or (is_default(quota) and request_of(namespaces.get(quota.namespace)))
    ]
    refusals: dict[str, str] = {}

    async def release(quota: ResourceQuota) -> None:
        try:
            await _give_quota_back(client, rancher, events, quota)
            refusals[quota.key] = ""
            if rancher.asks(quota) and (marks := [k for k in quota.annotations if is_entry(k) or k in OWN_MARKS]):
                command = removal_command(quota, sorted(marks))
                refusals[quota.key] = f"only Rancher may remove its annotations: {command}"
        except NotFound:
            pass  # it, or its namespace, goes away meanwhile: there is nothing to give back
        except ApiError as exc:
            if not exc.is_refusal:
                raise
            refusals[quota.key] = str(exc)

    await for_each(quotas, release)
    return refusals


async def _give_quota_back(client: Client, rancher: RancherWrites, events: EventRecorder, quota: ResourceQuota) -> None:
    """Calls the controller's own handler until it has nothing left to do. Raises ApiError."""
    namespace, deadline = quota.namespace, loop_time() + SILENCE
    reverts, released = Reverts(client), replace(EXACT, released=True)
    # One for all passes: it remembers since when the quota may be lowered.
    handler = ResourceQuotaHandler(client, rancher, reverts, Source(), events, released)
    while loop_time() < deadline:
        handler.source = Source(  # as they are now: more is not read where nothing is added
            namespaces=Listed([await client.resource(registry.NAMESPACES).get(name=namespace)]),
            migrations=Listed(await list_installed(client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS), namespace)),
            instances=Listed(await list_installed(client.resource(VIRTUAL_MACHINE_INSTANCES), namespace)),
            asks=rancher.asks,
        )
        try:
            await handler.on_resource_quota_changed(quota.key, quota)
            return
        except RetryAfter as again:
            pause = again.seconds
        if rancher.asks(quota) and stuck_entries(quota):
            return
        await asyncio.sleep(min(pause, 0.5))
        quota = await client.resource(registry.RESOURCE_QUOTAS).get(name=quota.name, namespace=namespace)
    raise Forbidden(f"Rancher has not written the base within {SILENCE:.0f} s: its server has to run", status=403)


async def close_all(client: Client, rancher: RancherWrites, events: EventRecorder) -> list[str]:
    """Unlocks every namespace, restores its quotas, returns the names. Raises ApiError, once all else is done."""
    writer = Writer(client, events, rancher)
    # Those without their label too: the selector would miss what was edited by hand.
    locks = [lock for lock in map(recognise, await writer.locks.list()) if lock is not None]
    try:
        # First, and whether or not the quotas can be read: a lock refuses pods, and its webhook may be gone. The
        # process that releases may not be the one that locked.
        await for_each(locks, lambda lock: _close(writer, lock.namespace, lock))
    finally:
        raised = [quota.namespace for quota in await writer.quotas.list() if record_of(quota)]
        saved = [budget.namespace for budget in await list_installed(writer.budgets) if is_in_use(budget)]
        await for_each(sorted({*raised, *saved}), lambda namespace: _close(writer, namespace))
    return sorted({*(lock.namespace for lock in locks), *raised, *saved})


async def _close(writer: Writer, namespace: str, lock: Lock | None = None) -> None:
    """The closing half of the sequence: of a lock alone, or of what was raised under one, which is open to all for the
    moment that restoring it takes."""

    async def attempt(_: bool) -> None:
        observed = Observed(
            namespace=namespace,
            exists=False,  # for this strategy: nothing is begun there
            budgets=() if lock else await list_installed(writer.budgets, namespace),
            quotas=() if lock else await writer.quotas.list(namespace),
            now=time.time(),
            lock=lock,
        )
        while not isinstance(step := next_step(Window(observed, WindowPolicy())), Wait):
            observed = await writer.do(step, observed)

    await retry_on_conflict(attempt)
