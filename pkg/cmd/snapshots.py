"""One list of each kind, read only: what the reports look at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from pkg.api import registry
from pkg.api.meta import Object
from pkg.cmd.options import Absent
from pkg.util.constants import LABEL_APP
from pkg.util.managedtenantquota.constants import LOCK_SELECTOR

if TYPE_CHECKING:
    from pkg.api.kubevirt import VirtualMachineInstanceMigration
    from pkg.api.registry import Resource
    from pkg.client.client import Client
    from pkg.util.resourcequota.snapshot import Snapshot

T = TypeVar("T", bound=Object)


async def take(client: Client, namespace: str = "") -> Snapshot:
    """The cluster, or one namespace; migrations are always the whole cluster's, for KubeVirt's limits count them.

    Raises Absent for a namespace that is not there, ApiError.
    """
    from pkg.util.resourcequota.snapshot import Snapshot

    every = (
        [await require(client, registry.NAMESPACES, namespace)]
        if namespace
        else await _list(client, registry.NAMESPACES)
    )
    return Snapshot(
        now=time.time(),
        namespaces=every,
        quotas=await _list(client, registry.RESOURCE_QUOTAS, namespace),
        migrations=await _migrations(client, namespace),
        instances=await _list(client, registry.VIRTUAL_MACHINE_INSTANCES, namespace),
        pods=await _list(client, registry.PODS, namespace, selector=LABEL_APP),
        limit_ranges=await _list(client, registry.LIMIT_RANGES, namespace),
        kubevirts=await _settings(client, registry.KUBEVIRTS),
        settings=await _settings(client, registry.SETTINGS),
        budgets=await _settings(client, registry.VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, namespace),
        locks=await _settings(client, registry.VALIDATING_WEBHOOK_CONFIGURATIONS, selector=LOCK_SELECTOR),
    )


async def require(client: Client, resource: Resource[T], name: str, namespace: str = "") -> T:
    """The object. Raises Absent when it is not there, in one line."""
    from pkg.client.errors import NotFound

    try:
        return await client.resource(resource).get(name, namespace)
    except NotFound as exc:
        where = f" in namespace {namespace}" if namespace else ""
        raise Absent(f"there is no {resource.kind} {name}{where}") from exc


async def _migrations(client: Client, namespace: str) -> list[VirtualMachineInstanceMigration]:
    """The whole cluster's; who looks after one namespace only has no right to them, and gets its own."""
    from pkg.client.errors import Forbidden

    migrations = registry.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    try:
        return await _list(client, migrations)
    except Forbidden:
        if not namespace:
            raise
        return await _list(client, migrations, namespace)


async def _settings(
    client: Client, resource: Resource[T], namespace: str = "", *, selector: str = ""
) -> list[T]:
    """What an installation sets; a report goes on without it where it may not be listed."""
    from pkg.client.errors import Forbidden

    try:
        return await _list(client, resource, namespace, selector=selector)
    except Forbidden:
        return []


async def _list(client: Client, resource: Resource[T], namespace: str = "", *, selector: str = "") -> list[T]:
    """Empty where the kind is not installed."""
    from pkg.client.errors import NotFound

    try:
        objects, _version = await client.resource(resource).list(namespace, label_selector=selector)
    except NotFound:
        return []
    return objects
