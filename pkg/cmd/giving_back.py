"""What `headroom release` gives back: the quotas that takeover mode raised, and what was raised under locks. Runs over
everything once, without informers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final, NamedTuple

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.client import Client, for_each
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.rancher_quotas import RancherWrites
from pkg.controller.managedtenantquota.writer import Writer
from pkg.util.constants import ANNOTATION_REQUEST
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.record import is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Wait, next_step
from pkg.util.managedtenantquota.window import Window
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.managed import is_default, is_ours
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.util.resourcequota.rancher import OWN_MARKS, SILENCE, is_entry, removal_command, request_of
from pkg.util.resourcequota.rancher_request import as_request, without_request

_LOOKS: Final = 20
"""At a quota, while Rancher has not written its base yet."""


class GivenBack(NamedTuple):
    """The keys of the quotas that were given back, and those that were not, with the reason."""

    released: list[str]
    refused: dict[str, str]


async def release_all(client: Client, rancher: RancherWrites | None = None) -> GivenBack:
    """Releases every ResourceQuota that is ours, and ends every request to Rancher. Raises ApiError, once all is done
    that can be, for what is no refusal."""
    rancher = rancher or RancherWrites(client)
    await rancher.look()
    namespaces = {each.name: each for each in await client.resource(NAMESPACES).list()}
    quotas = [
        quota
        for quota in await client.resource(RESOURCE_QUOTAS).list()
        if is_ours(quota) or (is_default(quota) and request_of(namespaces.get(quota.namespace)))
    ]
    given = GivenBack([], {})
    await for_each(quotas, lambda quota: _release_quota(client, rancher, quota, given))
    return given


async def _release_quota(client: Client, rancher: RancherWrites, quota: ResourceQuota, given: GivenBack) -> None:
    """A quota or namespace that goes away meanwhile has nothing to give back."""

    async def attempt(again: bool) -> bool:
        now = await client.resource(RESOURCE_QUOTAS).get(name=quota.name, namespace=quota.namespace) if again else quota
        if rancher.asks(now):
            return await _end_request(client, rancher, now)
        observed = await _observe(client, rancher, now)
        decided = without_request(observed, give_back(observed, to_harvester=True))
        if decided.annotations or decided.hard:
            await rancher.quotas(now).json_patch(decided.patch(now), name=now.name, namespace=now.namespace)
        await _annotate(client, observed, decided)
        return bool(decided)

    async def settle() -> bool:
        return await retry_on_conflict(attempt)

    try:
        try:
            done = await settle()
        except ApiError as exc:
            if not rancher.learn(exc):
                raise
            await rancher.look()
            done = await settle()
    except NotFound:
        return
    except ApiError as exc:
        if not exc.is_refusal:
            raise
        given.refused[quota.key] = str(exc)
        return
    if done:
        given.released.append(quota.key)
    if rancher.asks(quota) and (marks := [key for key in quota.annotations if is_entry(key) or key in OWN_MARKS]):
        given.refused[quota.key] = f"only Rancher may remove its annotations: {removal_command(quota, sorted(marks))}"


async def _end_request(client: Client, rancher: RancherWrites, quota: ResourceQuota) -> bool:
    """Has Rancher write the base; where the person requests more than it granted, before the request is put back."""
    changed = False
    for _ in range(_LOOKS):
        now = await client.resource(RESOURCE_QUOTAS).get(name=quota.name, namespace=quota.namespace)
        observed = await _observe(client, rancher, now)
        decided = as_request(observed, give_back(observed))
        changed = changed or bool(decided.namespace)
        await _annotate(client, observed, decided)
        ended = request_of(observed.rancher.namespace) is None or decided.namespace.get(ANNOTATION_REQUEST, "") is None
        if ended or observed.rancher.stuck:
            return changed
        await asyncio.sleep(SILENCE / _LOOKS)
    raise Forbidden(f"Rancher has not written the base within {SILENCE:.0f} s: its server has to run", status=403)


async def _annotate(client: Client, observed: Facts, decided: Plan) -> None:
    if decided.namespace:
        namespace = observed.rancher.namespace
        await client.resource(NAMESPACES).json_patch(decided.namespace_patch(namespace), name=namespace.name)


async def _observe(client: Client, rancher: RancherWrites, quota: ResourceQuota) -> Facts:
    namespace = await client.resource(NAMESPACES).get(name=quota.namespace)
    migrations = client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    instances = client.resource(VIRTUAL_MACHINE_INSTANCES)
    source = Source(
        namespaces=Listed([namespace]),
        migrations=Listed(await list_installed(migrations, quota.namespace)),
        instances=Listed(await list_installed(instances, quota.namespace)),
    )
    return Observer(source, asks=rancher.asks).observe(quota, time.time())


async def close_all(client: Client, rancher: RancherWrites | None = None) -> list[str]:
    """Unlock every namespace and restore its quotas; their names. Raises ApiError, once all is done that can be.

    The locks go first: the process that releases may not be the one that locked, and the webhook may be gone.
    What was raised is open to all for the moment that restoring it takes.
    """
    events = EventRecorder(client, "headroom")
    writer = Writer(client, events, rancher or RancherWrites(client))
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
