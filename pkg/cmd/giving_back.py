"""What `headroom release` gives back: the quotas that takeover mode raised, and what was raised under locks. Runs over
everything once, without informers."""

from __future__ import annotations

import time
from functools import partial

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.client import Client, for_each
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.controller.managedtenantquota.writer import Writer
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.record import is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Wait, next_step
from pkg.util.managedtenantquota.window import Window
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.managed import is_ours
from pkg.util.resourcequota.observe import Listed, Observer, Source


async def release_all(client: Client) -> list[str]:
    """Release every ResourceQuota that is ours; the keys of those that were. Raises ApiError, once all is done that
    can be."""
    quotas = await client.resource(RESOURCE_QUOTAS).list()
    ours = [quota for quota in quotas if is_ours(quota)]
    released = await for_each(ours, lambda quota: _release_quota(client, quota))
    return [quota.key for quota, done in zip(ours, released, strict=True) if done]


async def _release_quota(client: Client, quota: ResourceQuota) -> bool:
    """Whether there was anything to give back. A quota or namespace that goes away meanwhile has nothing."""
    quotas = client.resource(RESOURCE_QUOTAS)

    async def attempt(again: bool) -> bool:
        now = await quotas.get(name=quota.name, namespace=quota.namespace) if again else quota
        decided = give_back(await _observe(client, now), to_harvester=True)
        if decided:
            await quotas.json_patch(decided.patch(now), name=quota.name, namespace=quota.namespace)
        return bool(decided)

    try:
        return await retry_on_conflict(attempt)
    except NotFound:
        return False


async def _observe(client: Client, quota: ResourceQuota) -> Facts:
    namespace = await client.resource(NAMESPACES).get(name=quota.namespace)
    migrations = client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    instances = client.resource(VIRTUAL_MACHINE_INSTANCES)
    source = Source(
        namespaces=Listed([namespace]),
        migrations=Listed(await list_installed(migrations, quota.namespace)),
        instances=Listed(await list_installed(instances, quota.namespace)),
    )
    return Observer(source).observe(quota, time.time())


async def close_all(client: Client) -> list[str]:
    """Unlock every namespace and restore its quotas; their names. Raises ApiError, once all is done that can be.

    The locks go first: the process that releases may not be the one that locked, and the webhook may be gone.
    What was raised is open to all for the moment that restoring it takes.
    """
    events = EventRecorder(client, "headroom")
    writer = Writer(client, events)
    # Those without their label too: the selector would miss what was edited by hand.
    locks = [lock for lock in map(recognise, await writer.locks.list()) if lock is not None]
    try:
        await for_each(locks, writer.unlock)
    finally:  # also where one could not be deleted
        raised = [quota.namespace for quota in await writer.quotas.list() if record_of(quota)]
        saved = [each.namespace for each in await list_installed(writer.budgets) if is_in_use(each)]
        namespaces = sorted({*(lock.namespace for lock in locks), *raised, *saved})
        try:
            await for_each(namespaces, partial(_restore_all, writer))
        finally:
            await events.stop()
    return namespaces


async def _restore_all(writer: Writer, namespace: str) -> None:
    """The closing half of the sequence."""

    async def attempt(_: bool) -> None:
        observed = Observed(
            namespace=namespace,
            exists=False,  # for this strategy: nothing is begun there
            budgets=await list_installed(writer.budgets, namespace),
            quotas=await writer.quotas.list(namespace),
            now=time.time(),
        )
        while not isinstance(step := next_step(Window(observed, Policy())), Wait):
            observed = await writer.do(step, observed)

    await retry_on_conflict(attempt)
