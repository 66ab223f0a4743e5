"""What the reports look at, read from a cluster: one list of each kind, the Lease, the registration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeVar
from urllib.parse import urlsplit

from kubeloop.api import registry
from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Node
from kubeloop.api.meta import Object, rfc3339
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.discovery import served_names
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.errors import ReportedError
from kubeloop.webhook.registration import NotReached
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import (
    KUBEVIRTS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
    VirtualMachineInstanceMigration,
)
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.api.rancher import PROJECTS
from pkg.config.cause import decoded
from pkg.report.evacuation import Room
from pkg.report.installation import Held, Installed, held, seconds_since
from pkg.report.snapshot import Basis, Snapshot
from pkg.report.status import not_enforced
from pkg.selfcheck.installation import EVENT_NOT_ELECTED, FRESH, IN_FORCE, USUAL_NAMESPACES, Installation, read
from pkg.selfcheck.kubernetes_version import ask
from pkg.selfcheck.probe import ANNOTATION_HASH, PROBE_CONFIGURATION, PROBE_WEBHOOK, probe
from pkg.util.constants import (
    CONFIG_MAP,
    EVENT_FAILED_CREATE,
    LABEL_APP,
    LEASE,
    NAMESPACE_NAME_LABEL,
    SETTING_OVERHEAD_RATIO,
    WEBHOOK_CONFIGURATION_NAME,
)
from pkg.util.resourcequota.base import counts_of_claims
from pkg.util.resourcequota.errors import EVENT_PROJECT_FULL
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy, RancherQuotas

T = TypeVar("T", bound=Object)

FAILURES: Final = f"reason={EVENT_FAILED_CREATE}"
"""A field selector: what KubeVirt, and others, say of pods that they could not create."""
_FULL_PROJECTS: Final = f"reason={EVENT_PROJECT_FULL}"


_EVENT_FRESH: Final = 600.0
"""Seconds for which an event is believed: those of an outage that goes on come at least every five minutes."""

_ENFORCED_WITHIN: Final = 1.0
"""Seconds until limits that are not enforced yet are looked at again: kube-controller-manager takes tenths."""


class Absent(ReportedError):
    """The object of a command does not exist."""


@dataclass(frozen=True)
class Assumed:
    """What is said of the installation that is reported on; None: what is found."""

    mode: Mode | None = None
    estimate: EstimateKind | None = None
    namespace: str | None = None
    """Headroom's own."""


async def take(client: Client, assumed: Assumed, namespace: str = "", *, events: str | None = None) -> Snapshot:
    """The cluster, or one namespace; migrations are always the whole cluster's, for KubeVirt's limits count them.
    `events`: a field selector of those that are read, None for none.

    Raises Absent for a namespace that is not there, ApiError.
    """
    if namespace:
        namespaces = [await require(client, registry.NAMESPACES, namespace)]
    else:
        namespaces = await _list(client, registry.NAMESPACES)
    configurations = await _settings(client, registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    quotas = await _list(client, registry.RESOURCE_QUOTAS, namespace)
    if any(map(not_enforced, quotas)):  # for a moment that is so after every write
        await asyncio.sleep(_ENFORCED_WITHIN)
        quotas = await _list(client, registry.RESOURCE_QUOTAS, namespace)
    counted = any(counts_of_claims(name) for quota in quotas for name in quota.hard)
    installed, said = await _installed(client, own_namespaces(client, assumed.namespace), configurations)
    basis = await _basis(client, assumed, said)
    failures = await _settings(client, registry.EVENTS, namespace, fields=events) if events is not None else []
    asks = basis.rancher_quotas is RancherQuotas.ANNOTATION
    # What all namespaces of a project request takes its room.
    every = await _settings(client, registry.NAMESPACES) if asks and namespace else []
    projects = await _settings(client, PROJECTS) if asks and (every or not namespace) else []
    if projects and namespace:
        namespaces = every
    if asks and events and not projects:
        failures += await _settings(client, registry.EVENTS, namespace, fields=_FULL_PROJECTS)
    return Snapshot(
        now=client.transport.server_clock(),
        namespaces=namespaces,
        quotas=quotas,
        migrations=await _migrations(client, namespace),
        instances=await _list(client, VIRTUAL_MACHINE_INSTANCES, namespace),
        pods=await _list(client, registry.PODS, namespace, selector=LABEL_APP),
        claims=await _settings(client, registry.PERSISTENT_VOLUME_CLAIMS, namespace) if counted else (),
        machines=await _settings(client, VIRTUAL_MACHINES, namespace) if counted else (),
        limit_ranges=await _list(client, registry.LIMIT_RANGES, namespace),
        kubevirts=await _settings(client, KUBEVIRTS),
        settings=await _settings(client, SETTINGS, fields=f"metadata.name={SETTING_OVERHEAD_RATIO}"),
        budgets=await _settings(client, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, namespace),
        basis=basis,
        locks=configurations,
        installed=installed,
        failures=failures,
        projects=projects,
    )


async def room(client: Client) -> Room:
    """What the nodes offer and all pods of the cluster, as far as they may be listed. Raises ApiError."""
    return Room(await nodes(client), await _all_or_none(client, registry.PODS))


async def nodes(client: Client) -> list[Node] | None:
    """All nodes; None where they may not be listed. Raises ApiError."""
    return await _all_or_none(client, registry.NODES)


async def _all_or_none(
    client: Client, resource: Resource[T], namespace: str = "", *, fields: str = ""
) -> list[T] | None:
    try:
        return await _list(client, resource, namespace, fields=fields)
    except Forbidden:
        return None


async def _basis(client: Client, assumed: Assumed, said: tuple[str, Installation] | None) -> Basis:
    """By the flags, else by what the running controller published, else assumed."""
    where, found = said or ("", None)
    source = f"ConfigMap {where}/{CONFIG_MAP}" if found else ""
    mode = assumed.mode or (found.mode if found else Mode.TAKEOVER)
    running = found.estimate if found and found.mode is mode else EstimateKind.EXACT
    estimate = assumed.estimate or running
    if assumed.mode or assumed.estimate:
        source = "flags"
    try:
        version = await ask(client)
    except (Forbidden, NotFound):
        version = ""
    # Several: the API servers are being upgraded. What a controller that has ended said is outdated.
    counted = tuple(found.kubernetes.split()) if found else ()
    versions = counted if version in counted else (version,)
    if found is None:
        return Basis(Policy(mode, estimate), source, versions)
    rancher = found.rancher_quotas, found.rancher_reason
    policy = Policy(mode, estimate, hold_limit=found.hold_limit)
    return Basis(policy, source, versions, found.policy == IN_FORCE, *rancher)


async def _own(
    client: Client, resource: Resource[T], name: str, namespaces: Sequence[str]
) -> tuple[dict[str, tuple[T, float]], bool]:
    """Headroom's own object by namespace, wherever there is one, with the API server's time of that answer; and whether
    it may be read in all of these."""
    found, allowed = {}, True
    for namespace in namespaces:
        try:
            obj = await client.resource(resource).get(name=name, namespace=namespace)
            found[namespace] = obj, client.transport.server_clock()
        except NotFound:
            continue
        except Forbidden:
            allowed = False
    return found, allowed


async def require(client: Client, resource: Resource[T], name: str, namespace: str = "") -> T:
    """The object. Raises Absent when it is not there, in one line."""
    try:
        return await client.resource(resource).get(name=name, namespace=namespace)
    except NotFound as exc:
        where = f" in namespace {namespace}" if namespace else ""
        raise Absent(f"there is no {resource.kind} {name}{where}") from exc


async def _migrations(client: Client, namespace: str) -> list[VirtualMachineInstanceMigration]:
    """The whole cluster's; who looks after one namespace only has no right to them, and gets its own."""
    migrations = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    try:
        return await _list(client, migrations)
    except Forbidden:
        if not namespace:
            raise
        return await _list(client, migrations, namespace)


async def _settings(client: Client, resource: Resource[T], namespace: str = "", *, fields: str = "") -> list[T]:
    """What an installation sets; a report goes on without it where it may not be listed. `fields`: a selector, as a
    role that names the one object requires it."""
    return await _all_or_none(client, resource, namespace, fields=fields) or []


async def _list(
    client: Client, resource: Resource[T], namespace: str = "", *, selector: str = "", fields: str = ""
) -> list[T]:
    return await list_installed(client.resource(resource), namespace, label_selector=selector, field_selector=fields)


async def _installed(
    client: Client, namespaces: Sequence[str], configurations: Sequence[ValidatingWebhookConfiguration]
) -> tuple[Installed, tuple[str, Installation] | None]:
    """What the rights that there are let find out, and what the controller published, with its namespace;
    `configurations` are all of the cluster. Raises ApiError."""
    leases, leases_allowed = await _own(client, registry.LEASES, LEASE, namespaces)
    maps, allowed = await _own(client, registry.CONFIG_MAPS, CONFIG_MAP, namespaces)
    by_place = {where: (found, now) for where, (each, now) in maps.items() if (found := read(each.data))}
    elected = {where: held(lease.spec, now) for where, (lease, now) in leases.items()}
    lives = [(where, life) for where, each in by_place.items() if (life := _published(*each, elected.get(where)))]
    where, life = _one_of([*elected.items(), *lives])
    ours = [each for each in configurations if each.name == WEBHOOK_CONFIGURATION_NAME]
    webhooks = {hook["name"]: hook.get("failurePolicy", "") for each in ours for hook in each.webhooks or ()}
    nothing = leases_allowed and allowed and not (leases or by_place or webhooks)
    unreachable, mark = await _probed(client) if webhooks else (None, "")
    place = where if life else next(iter(by_place), "")
    is_live = life is not None and life.live
    running = by_place[where][0] if is_live and where in by_place else None
    return Installed(
        life,
        webhooks,
        unreachable,
        namespaces if nothing else (),
        _endpoint(ours),
        bool(mark) and any(each.annotations.get(ANNOTATION_HASH, mark) != mark for each in ours),
        running.problem if running else "" if is_live else await _problem(client, namespaces),
        decoded(running.refused) if running else (),
        await _unserved(client),
    ), (place, by_place[place][0]) if place in by_place else None


def _published(installation: Installation, now: float, lease: Held | None) -> Held | None:
    """Returns what the ConfigMap shows of a controller without a Lease; None where an earlier version wrote it, which
    gave no time, or the one that had the `lease` of that namespace."""
    silent = seconds_since(installation.seen, now)
    if silent is None or (lease and lease.silent is not None and lease.silent <= silent + lease.duration):
        return None
    return Held("" if installation.ended else CONFIG_MAP, silent, FRESH, elected=False)


async def _unserved(client: Client) -> list[str]:
    """Returns KubeVirt's kinds that the API server does not know; none where its discovery does not answer."""
    kinds = VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, KUBEVIRTS
    try:
        names = await served_names(client.transport, KUBEVIRTS.api_version)
    except ApiError:
        return []
    return [kind.kind for kind in kinds if names is not None and kind.plural not in names]


async def _problem(client: Client, namespaces: Sequence[str]) -> str:
    """Where no controller has the Lease: what a replica says that lacks the rights to it."""
    selector = f"involvedObject.name={CONFIG_MAP},reason={EVENT_NOT_ELECTED}"
    since = rfc3339(client.transport.server_clock() - _EVENT_FRESH)
    found = [
        (event.last_timestamp, event.message)
        for namespace in namespaces
        for event in await _settings(client, registry.EVENTS, namespace, fields=selector)
        if event.last_timestamp and event.last_timestamp > since
    ]
    return max(found, default=("", ""))[1]


def _endpoint(configurations: Sequence[ValidatingWebhookConfiguration]) -> str:
    """Not the path, whose end is the key by which the API server is known."""
    for configuration in configurations:
        for hook in configuration.webhooks or ():
            config = hook.get("clientConfig") or {}
            if url := config.get("url"):
                return f"https://{urlsplit(url).netloc}"
            service = config.get("service") or {}
            return f"Service {service.get('namespace')}/{service.get('name')}"
    return ""


async def find_lease(client: Client, namespaces: Sequence[str]) -> tuple[str, Held | None]:
    """The Lease in one of these namespaces, and which that is; None where there is none, or it may not be read. Raises
    ApiError."""
    leases, _allowed = await _own(client, registry.LEASES, LEASE, namespaces)
    return _one_of([(where, held(lease.spec, now)) for where, (lease, now) in leases.items()])


def _one_of(lives: Sequence[tuple[str, Held]]) -> tuple[str, Held | None]:
    """Returns that of a controller that runs, before what an earlier one has left in another namespace; of two that do
    not, the later one."""

    def rank(found: tuple[str, Held]) -> tuple[bool, float, bool]:
        _, life = found
        return life.live, -inf if life.silent is None else -life.silent, life.elected

    return max(lives, key=rank, default=("", None))


def own_namespaces(client: Client, chosen: str | None) -> list[str]:
    """Where headroom is looked for."""
    if chosen:
        return [chosen]
    return list(dict.fromkeys(filter(None, (client.transport.config.namespace, *USUAL_NAMESPACES))))


async def _probed(client: Client) -> tuple[str | None, str]:
    """What the API server says of a webhook that it does not reach, "" where it does, None where it can't be asked; and
    the mark of the replica that answered."""
    try:
        probing = await client.resource(registry.MUTATING_WEBHOOK_CONFIGURATIONS).get(name=PROBE_CONFIGURATION)
        (webhook,) = probing.webhooks or []
        namespace = webhook["namespaceSelector"]["matchLabels"][NAMESPACE_NAME_LABEL]
    except (ApiError, ValueError, KeyError):
        return None, ""
    try:
        return "", await probe(client, namespace)
    except NotReached as exc:
        # Without a cause the API server has not asked: it has not learned of the configuration yet.
        return (str(exc).partition(f'"{PROBE_WEBHOOK}": ')[2] or str(exc) if exc.__cause__ else None), ""
    except NotFound:
        return f"namespace {namespace} does not exist any more", ""
    except ApiError:
        return None, ""
