"""Gives back what takeover mode took: a run over all ResourceQuotas, without informers."""

from __future__ import annotations

from typing import TypeVar

from pkg.api.core import ResourceQuota
from pkg.api.meta import Object
from pkg.api.registry import (
    NAMESPACES,
    RESOURCE_QUOTAS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    Resource,
)
from pkg.client.client import Client
from pkg.client.errors import Conflict, NotFound
from pkg.controller.resourcequota.resourcequota_controller import CONFLICT_RETRIES
from pkg.util import constants
from pkg.util.resourcequota.planner import Observed
from pkg.util.resourcequota.release import is_ours, release

T = TypeVar("T", bound=Object)


async def release_all(client: Client) -> list[str]:
    """Release every ResourceQuota that is ours; the keys of those that were. Raises ApiError."""
    quotas, _version = await client.resource(RESOURCE_QUOTAS).list()
    ours = [quota for quota in quotas if is_ours(quota)]
    return [quota.key for quota in ours if await _release(client, quota)]


async def _release(client: Client, quota: ResourceQuota) -> bool:
    """Whether there was anything to give back. A quota or namespace that goes away meanwhile has nothing."""
    try:
        return await _write(client, quota)
    except NotFound:
        return False


async def _write(client: Client, quota: ResourceQuota) -> bool:
    """A foreign writer in between: look again."""
    quotas = client.resource(RESOURCE_QUOTAS)
    for attempt in range(CONFLICT_RETRIES + 1):
        decided = release(await _observe(client, quota))
        if not decided:
            return False
        try:
            await quotas.merge_patch(quota.name, decided.patch(quota), quota.namespace)
            return True
        except Conflict:
            if attempt == CONFLICT_RETRIES:
                raise
            quota = await quotas.get(quota.name, quota.namespace)
    raise AssertionError("unreachable")


async def _observe(client: Client, quota: ResourceQuota) -> Observed:
    namespace = await client.resource(NAMESPACES).get(quota.namespace)
    migrations = await _list(client, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, quota.namespace)
    instances = await _list(client, VIRTUAL_MACHINE_INSTANCES, quota.namespace)
    return Observed(
        quota=quota,
        limits=namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, ""),
        migrations=migrations,
        instances={vmi.name: vmi for vmi in instances},
        estimate=lambda vmi, hard: None,
    )


async def _list(client: Client, resource: Resource[T], namespace: str) -> list[T]:
    """Empty where the kind is not installed."""
    try:
        objects, _version = await client.resource(resource).list(namespace)
    except NotFound:
        return []
    return objects
