"""One list of each kind, read only: what the reports look at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from kubeloop.api import registry
from kubeloop.api.meta import Object
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.cmd.installed import installed, own_namespaces
from pkg.cmd.options import Absent
from pkg.util.constants import EVENT_FAILED_CREATE, LABEL_APP, SETTING_OVERHEAD_RATIO
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy

if TYPE_CHECKING:
    from kubeloop.api.registry import Resource
    from kubeloop.client.client import Client
    from pkg.api.kubevirt import VirtualMachineInstanceMigration
    from pkg.cmd.reports import ReportOptions
    from pkg.report.snapshot import Basis, Snapshot
    from pkg.util.installation import Installation

T = TypeVar("T", bound=Object)


async def take(
    client: Client, chosen: ReportOptions, namespace: str = "", *, vm: str = "", events: bool = False
) -> Snapshot:
    """The cluster, or one namespace; migrations are always the whole cluster's, for KubeVirt's limits count them. `vm`:
    what KubeVirt says of its pods too; `events`: all events.

    Raises Absent for a namespace that is not there, ApiError.
    """
    from pkg.report.snapshot import Snapshot
    from pkg.util.resourcequota.base import counts_of_claims

    every = (
        [await require(client, registry.NAMESPACES, namespace)]
        if namespace
        else await _list(client, registry.NAMESPACES)
    )
    configurations = await _settings(client, registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    quotas = await _list(client, registry.RESOURCE_QUOTAS, namespace)
    counted = any(counts_of_claims(name) for quota in quotas for name in quota.hard)
    return Snapshot(
        now=time.time(),
        namespaces=every,
        quotas=quotas,
        migrations=await _migrations(client, namespace),
        instances=await _list(client, VIRTUAL_MACHINE_INSTANCES, namespace),
        pods=await _list(client, registry.PODS, namespace, selector=LABEL_APP),
        claims=await _settings(client, registry.PERSISTENT_VOLUME_CLAIMS, namespace) if counted else (),
        limit_ranges=await _list(client, registry.LIMIT_RANGES, namespace),
        kubevirts=await _settings(client, KUBEVIRTS),
        settings=await _settings(client, SETTINGS, fields=f"metadata.name={SETTING_OVERHEAD_RATIO}"),
        budgets=await _settings(client, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, namespace),
        basis=await _basis(client, chosen),
        locks=configurations,
        installed=await installed(client, own_namespaces(client, chosen.headroom_namespace), configurations),
        failures=await _settings(client, registry.EVENTS, namespace, fields=_failures_of(vm) if vm else "")
        if vm or events
        else (),
    )


async def _basis(client: Client, chosen: ReportOptions) -> Basis:
    """By the flags, else by the ConfigMap of the running controller, else assumed."""
    from kubeloop.client.errors import Forbidden, NotFound
    from pkg.config.kubernetes_version import ask
    from pkg.report.snapshot import Basis

    said = await _installation(client, chosen)
    found, source = said or (None, "")
    mode = chosen.mode or (found.mode if found else Mode.TAKEOVER)
    running = found.estimate if found and found.mode is mode else EstimateKind.EXACT
    estimate = chosen.estimate or running
    if chosen.mode or chosen.estimate:
        source = "flags"
    try:
        version = await ask(client)
    except (Forbidden, NotFound):
        version = ""
    # Several: the API servers are being upgraded. What a controller that has ended said is outdated.
    versions = found.kubernetes if found and version in found.kubernetes else (version,)
    return Basis(Policy(mode, estimate), source, versions)


async def _installation(client: Client, chosen: ReportOptions) -> tuple[Installation, str] | None:
    """What the controller published, and where."""
    from kubeloop.client.errors import Forbidden, NotFound
    from pkg.util.installation import CONFIG_MAP, read

    for namespace in own_namespaces(client, chosen.headroom_namespace):
        try:
            found = await client.resource(registry.CONFIG_MAPS).get(name=CONFIG_MAP, namespace=namespace)
        except (NotFound, Forbidden):
            continue
        installation = read(found.data)
        if installation is not None:
            return installation, f"ConfigMap {namespace}/{CONFIG_MAP}"
    return None


async def require(client: Client, resource: Resource[T], name: str, namespace: str = "") -> T:
    """The object. Raises Absent when it is not there, in one line."""
    from kubeloop.client.errors import NotFound

    try:
        return await client.resource(resource).get(name=name, namespace=namespace)
    except NotFound as exc:
        where = f" in namespace {namespace}" if namespace else ""
        raise Absent(f"there is no {resource.kind} {name}{where}") from exc


async def _migrations(client: Client, namespace: str) -> list[VirtualMachineInstanceMigration]:
    """The whole cluster's; who looks after one namespace only has no right to them, and gets its own."""
    from kubeloop.client.errors import Forbidden

    migrations = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    try:
        return await _list(client, migrations)
    except Forbidden:
        if not namespace:
            raise
        return await _list(client, migrations, namespace)


def _failures_of(vm: str) -> str:
    return f"involvedObject.kind=VirtualMachineInstance,involvedObject.name={vm},reason={EVENT_FAILED_CREATE}"


async def _settings(
    client: Client, resource: Resource[T], namespace: str = "", *, fields: str = ""
) -> list[T]:
    """What an installation sets; a report goes on without it where it may not be listed. `fields`: a selector, as a
    role that names the one object requires it."""
    from kubeloop.client.errors import Forbidden

    try:
        return await _list(client, resource, namespace, fields=fields)
    except Forbidden:
        return []


async def _list(
    client: Client, resource: Resource[T], namespace: str = "", *, selector: str = "", fields: str = ""
) -> list[T]:
    from kubeloop.client.resource_reader import list_installed

    return await list_installed(
        client.resource(resource), namespace, label_selector=selector, field_selector=fields
    )
