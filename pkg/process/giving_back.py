"""Gives back the quotas that takeover mode raised, by the controller's own handler, and those that were raised under
locks, by the closing rows of the sequence (`headroom release`). Runs over everything once, without informers: its
account may watch nothing."""

import asyncio
import time
from dataclasses import replace

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.client import Client, for_each
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.causes import Reverts
from pkg.config.rancher_quotas import RancherWrites
from pkg.controller.managedtenantquota.managedtenantquota_controller import Writer
from pkg.controller.resourcequota.resourcequota_controller import ResourceQuotaHandler
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed, WindowPolicy, is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Wait, Window, next_step
from pkg.util.resourcequota.entries import is_entry
from pkg.util.resourcequota.managed import OWN_MARKS, is_default, is_ours
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.rancher import SILENCE, removal_command, request_of, stuck_entries


async def release_all(client: Client, rancher: RancherWrites, events: EventRecorder) -> dict[str, str]:
    """Releases our ResourceQuotas; returns each key with the refusal or "". Raises other ApiErrors in the end."""
    namespaces = {namespace.name: namespace for namespace in await client.resource(NAMESPACES).list()}
    quotas = [
        quota
        for quota in await client.resource(RESOURCE_QUOTAS).list()
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
            namespaces=Listed([await client.resource(NAMESPACES).get(name=namespace)]),
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
        quota = await client.resource(RESOURCE_QUOTAS).get(name=quota.name, namespace=namespace)
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
