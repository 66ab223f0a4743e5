"""Gives back what takeover mode took: a run over all ResourceQuotas, without informers."""

from __future__ import annotations

import time

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.client import Client, for_each
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.managed import is_ours
from pkg.util.resourcequota.observe import Listed, Observer, Source


async def release_all(client: Client) -> list[str]:
    """Release every ResourceQuota that is ours; the keys of those that were. Raises ApiError, once all is done that
    can be."""
    quotas = await client.resource(RESOURCE_QUOTAS).list()
    ours = [quota for quota in quotas if is_ours(quota)]
    released = await for_each(ours, lambda quota: _release(client, quota))
    return [quota.key for quota, done in zip(ours, released, strict=True) if done]


async def _release(client: Client, quota: ResourceQuota) -> bool:
    """Whether there was anything to give back. A quota or namespace that goes away meanwhile has nothing."""
    quotas = client.resource(RESOURCE_QUOTAS)

    async def attempt(again: bool) -> bool:
        now = await quotas.get(name=quota.name, namespace=quota.namespace) if again else quota
        decided = give_back(await _observe(client, now), to_harvester=True)
        if decided:
            await quotas.json_patch(decided.patch(now), name=quota.name, namespace=quota.namespace)
        return bool(decided)

    try:
        return await retry_on_conflict(attempt, errors=(Conflict, Invalid))
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
