"""Reads what the reports look at from a cluster: one list of each kind, the Lease, the registration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from kubeloop.api import registry
from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Namespace, Node, ResourceQuota
from kubeloop.api.meta import Object, rfc3339
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.discovery import served_names
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.errors import ReportedError
from kubeloop.webhook.registration import NotReached
from pkg.api.harvesterhci import SETTINGS, Setting
from pkg.api.instancetype import CONTROLLER_REVISIONS, INSTANCETYPES
from pkg.api.kubevirt import (
    KUBEVIRTS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
    KubeVirt,
    KubeVirtConfiguration,
    KubeVirtSpec,
    KubeVirtStatus,
    VirtualMachine,
    VirtualMachineInstanceMigration,
)
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.api.rancher import PROJECTS, Project
from pkg.config.cause import decode_causes
from pkg.report.evacuation import PLACED_PODS, NodeCapacity
from pkg.report.installation import Installed, LeaseState, lease_state, seconds_since
from pkg.report.snapshot import Basis, Snapshot
from pkg.report.status import unenforced_limits
from pkg.selfcheck.installation import EVENT_NOT_ELECTED, FRESH, IN_FORCE, USUAL_NAMESPACES, Installation, read
from pkg.selfcheck.kubernetes_version import ask
from pkg.selfcheck.probe import ANNOTATION_HASH, PROBE_CONFIGURATION, PROBE_WEBHOOK, probe
from pkg.util.constants import (
    CONFIG_MAP,
    EVENT_FAILED_CREATE,
    KUBEVIRT_PHASE_DEPLOYED,
    LABEL_APP,
    LEASE,
    NAMESPACE_NAME_LABEL,
    SETTING_OVERHEAD_RATIO,
    WEBHOOK_CONFIGURATION_NAME,
)
from pkg.util.kubevirt.instancetype import Instancetypes, missing_instancetype, revision_names
from pkg.util.kubevirt.rendering import UNKNOWN_RATIO
from pkg.util.resourcequota.base import counts_of_claims
from pkg.util.resourcequota.errors import EVENT_PROJECT_FULL
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy, RancherQuotas

T = TypeVar("T", bound=Object)

FAILURE_SELECTOR: Final = f"reason={EVENT_FAILED_CREATE}"
"""A field selector: what KubeVirt, and others, say of pods that they could not create."""
_FULL_PROJECT_EVENTS: Final = f"reason={EVENT_PROJECT_FULL}"


_EVENT_FRESH: Final = 600.0
"""Seconds for which an event is believed: those of an outage that goes on come at least every five minutes."""

_ENFORCED_WITHIN: Final = 1.0
"""Seconds until limits that are not enforced yet are looked at again: kube-controller-manager takes tenths."""


class Absent(ReportedError):
    """The object of a command does not exist."""


@dataclass(frozen=True)
class Assumptions:
    """The flags about the installation that is reported on; None: what is found."""

    mode: Mode | None = None
    estimate: EstimateKind | None = None
    namespace: str | None = None
    """Headroom's own."""


async def read_snapshot(
    client: Client, assumptions: Assumptions, namespace: str = "", *, events: str | None = None
) -> Snapshot:
    """Reads the cluster, or one namespace; migrations are always the whole cluster's, for KubeVirt's limits count them.
    `events`: a field selector of those that are read, None for none.

    Raises Absent for a namespace that does not exist, ApiError."""
    kind = registry.NAMESPACES
    namespaces = [await require(client, kind, namespace)] if namespace else await _list(client, kind)
    configurations = await list_allowed(client, registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    quotas = await _read_quotas(client, namespace)
    counts_claims = any(counts_of_claims(name) for quota in quotas for name in quota.hard)
    installed, published = await _read_installed(client, home_namespaces(client, assumptions.namespace), configurations)
    basis = await _read_basis(client, assumptions, published)
    failures = await list_allowed(client, registry.EVENTS, namespace, fields=events) if events is not None else []
    settings = await list_allowed(client, SETTINGS, fields=f"metadata.name={SETTING_OVERHEAD_RATIO}")
    projects: Sequence[Project] = ()
    if basis.rancher_quotas is RancherQuotas.ANNOTATION:
        namespaces, projects = await _read_projects(client, namespaces, namespace)
        if events and not projects:
            failures += await list_allowed(client, registry.EVENTS, namespace, fields=_FULL_PROJECT_EVENTS)
    return Snapshot(
        now=client.transport.server_clock(),
        namespaces=namespaces,
        quotas=quotas,
        migrations=await _migrations(client, namespace),
        instances=await _list(client, VIRTUAL_MACHINE_INSTANCES, namespace),
        pods=await _list(client, registry.PODS, namespace, selector=LABEL_APP),
        claims=await list_allowed(client, registry.PERSISTENT_VOLUME_CLAIMS, namespace) if counts_claims else (),
        machines=await list_allowed(client, VIRTUAL_MACHINES, namespace) if counts_claims else (),
        limit_ranges=await _list(client, registry.LIMIT_RANGES, namespace),
        kubevirts=await _read_kubevirts(client, settings),
        settings=settings,
        budgets=await list_allowed(client, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, namespace),
        basis=basis,
        locks=configurations,
        installed=installed,
        failures=failures,
        projects=projects,
    )


async def _read_projects(
    client: Client, namespaces: list[Namespace], namespace: str
) -> tuple[list[Namespace], list[Project]]:
    """Reads Rancher's projects, and all namespaces: what they request takes a project's room. As far as they may be
    listed."""
    everywhere = await list_allowed(client, registry.NAMESPACES) if namespace else namespaces
    projects = await list_allowed(client, PROJECTS) if everywhere else []
    return (everywhere if projects else namespaces), projects


async def read_vms(client: Client, namespace: str) -> list[VirtualMachine]:
    """Reads all VMs of a namespace, with what their instancetypes and preferences give them, as far as these may be
    read. Raises ApiError."""
    vms = await _list(client, VIRTUAL_MACHINES, namespace)
    if not any(map(missing_instancetype, vms)):
        return vms
    instancetypes = Instancetypes()
    for kind in INSTANCETYPES:
        for obj in await list_allowed(client, kind, namespace if kind.namespaced else ""):
            instancetypes.add(obj)
    for name in {name for vm in vms for name in revision_names(vm)}:
        with suppress(NotFound, Forbidden):
            instancetypes.add(await client.resource(CONTROLLER_REVISIONS).get(name=name, namespace=namespace))
    return list(map(instancetypes.expanded, vms))


async def _read_quotas(client: Client, namespace: str) -> list[ResourceQuota]:
    """Reads them once more where one is not enforced: for a moment that is so after every write."""
    quotas = await _list(client, registry.RESOURCE_QUOTAS, namespace)
    if any(map(unenforced_limits, quotas)):
        await asyncio.sleep(_ENFORCED_WITHIN)
        quotas = await _list(client, registry.RESOURCE_QUOTAS, namespace)
    return quotas


async def _read_kubevirts(client: Client, settings: Sequence[Setting]) -> list[KubeVirt]:
    """Reads them. Who may not list them, and no setting of the overhead ratio either, gets one whose ratio is not
    known."""
    kubevirts = await _list_or_none(client, KUBEVIRTS)
    if kubevirts is None and not settings:
        configuration = KubeVirtConfiguration(additional_guest_memory_overhead_ratio=UNKNOWN_RATIO)
        unread = KubeVirt(spec=KubeVirtSpec(configuration), status=KubeVirtStatus(phase=KUBEVIRT_PHASE_DEPLOYED))
        return [unread]
    return kubevirts or []


async def read_capacity(client: Client) -> NodeCapacity:
    """Reads the nodes and all pods of the cluster, as far as they may be listed. Raises ApiError."""
    return NodeCapacity(await read_nodes(client), await _list_or_none(client, PLACED_PODS))


async def read_nodes(client: Client) -> list[Node] | None:
    """Reads all nodes; None if they may not be listed. Raises ApiError."""
    return await _list_or_none(client, registry.NODES)


async def _list_or_none(
    client: Client, resource: Resource[T], namespace: str = "", *, fields: str = ""
) -> list[T] | None:
    try:
        return await _list(client, resource, namespace, fields=fields)
    except Forbidden:
        return None


async def _read_basis(client: Client, assumptions: Assumptions, published: tuple[str, Installation] | None) -> Basis:
    """Returns the basis by the flags, else by what the running controller published, else assumed."""
    place, installation = published or ("", Installation(Mode.TAKEOVER, EstimateKind.EXACT))
    source = f"ConfigMap {place}/{CONFIG_MAP}" if published else ""
    if assumptions.mode or assumptions.estimate:
        source = "flags"
    mode = assumptions.mode or installation.mode
    estimate = assumptions.estimate or (installation.estimate if installation.mode is mode else EstimateKind.EXACT)
    try:
        version = await ask(client)
    except (Forbidden, NotFound):
        version = ""
    # Several: the API servers are being upgraded. What a controller that has ended said is outdated.
    versions_of_controller = tuple(installation.kubernetes.split())
    versions = versions_of_controller if version in versions_of_controller else (version,)
    rancher = installation.rancher_quotas, installation.rancher_reason
    policy = Policy(mode, estimate, hold_limit=installation.hold_limit)
    return Basis(policy, source, versions, installation.policy == IN_FORCE, *rancher)


async def _own_objects(
    client: Client, resource: Resource[T], name: str, namespaces: Sequence[str]
) -> tuple[dict[str, tuple[T, float]], bool]:
    """Returns headroom's own object by namespace, with the API server's time of that answer; and whether it may be read
    in all of these."""
    objects, is_allowed = {}, True
    for namespace in namespaces:
        try:
            obj = await client.resource(resource).get(name=name, namespace=namespace)
            objects[namespace] = obj, client.transport.server_clock()
        except NotFound:
            continue
        except Forbidden:
            is_allowed = False
    return objects, is_allowed


async def require(client: Client, resource: Resource[T], name: str, namespace: str = "") -> T:
    """Returns the object. Raises Absent in one line if it does not exist."""
    try:
        return await client.resource(resource).get(name=name, namespace=namespace)
    except NotFound as exc:
        place = f" in namespace {namespace}" if namespace else ""
        raise Absent(f"there is no {resource.kind} {name}{place}") from exc


async def _migrations(client: Client, namespace: str) -> list[VirtualMachineInstanceMigration]:
    """Lists the whole cluster's migrations; an account of one namespace has no right to them, and gets that
    namespace's."""
    migrations = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    try:
        return await _list(client, migrations)
    except Forbidden:
        if not namespace:
            raise
        return await _list(client, migrations, namespace)


async def list_allowed(client: Client, resource: Resource[T], namespace: str = "", *, fields: str = "") -> list[T]:
    """Lists what an installation sets; a report goes on without it if it may not be listed. `fields`: a selector, as a
    role that names the one object requires it."""
    return await _list_or_none(client, resource, namespace, fields=fields) or []


async def _list(
    client: Client, resource: Resource[T], namespace: str = "", *, selector: str = "", fields: str = ""
) -> list[T]:
    return await list_installed(client.resource(resource), namespace, label_selector=selector, field_selector=fields)


async def _read_installed(
    client: Client, namespaces: Sequence[str], configurations: Sequence[ValidatingWebhookConfiguration]
) -> tuple[Installed, tuple[str, Installation] | None]:
    """Returns what the account's rights let find out, and what the controller published, with its namespace;
    `configurations` are all of the cluster. Raises ApiError."""
    leases, leases_allowed = await _own_objects(client, registry.LEASES, LEASE, namespaces)
    maps, allowed = await _own_objects(client, registry.CONFIG_MAPS, CONFIG_MAP, namespaces)
    by_place = {place: (published, now) for place, (obj, now) in maps.items() if (published := read(obj.data))}
    elected = {place: lease_state(lease.spec, now) for place, (lease, now) in leases.items()}
    states = [
        (place, lease)
        for place, published in by_place.items()
        if (lease := _lease_of_config_map(*published, elected.get(place)))
    ]
    states += elected.items()
    place, lease = _prevailing_lease(states)
    own = [config for config in configurations if config.name == WEBHOOK_CONFIGURATION_NAME]
    hooks = [hook for config in own for hook in config.webhooks or ()]
    webhooks = {hook["name"]: hook.get("failurePolicy", "") for hook in hooks}
    is_absent = leases_allowed and allowed and not (leases or by_place or webhooks)
    unreachable, probe_mark = await _probe_result(client) if webhooks else (None, "")
    config_map_namespace = place if lease else next(iter(by_place), "")
    is_live = lease is not None and lease.is_live
    running = by_place[place][0] if is_live and place in by_place else None
    return Installed(
        lease,
        webhooks,
        unreachable,
        namespaces if is_absent else (),
        _endpoint(hooks[0].get("clientConfig") or {}) if hooks else "",
        bool(probe_mark) and any(config.annotations.get(ANNOTATION_HASH, probe_mark) != probe_mark for config in own),
        running.problem if running else "" if is_live else await _election_problem(client, namespaces),
        decode_causes(running.refused) if running else (),
        await _unserved_kinds(client),
        running.only_namespaces.split() if running else (),
        _rivals(states, [place for place, (published, _) in by_place.items() if published.only_namespaces]),
    ), (config_map_namespace, by_place[config_map_namespace][0]) if config_map_namespace in by_place else None


def _rivals(states: Sequence[tuple[str, LeaseState]], limited: Sequence[str]) -> list[str]:
    """Returns the namespaces of the controllers that run, if they are several and not all `limited` to other ones."""
    places = sorted({place for place, state in states if state.is_live})
    return places if len(places) > 1 and not set(places) <= set(limited) else []


def _lease_of_config_map(installation: Installation, now: float, lease: LeaseState | None) -> LeaseState | None:
    """Returns what the ConfigMap shows of a controller without a Lease; None where an earlier version wrote it, which
    gave no time, or the one that had the `lease` of that namespace."""
    silent = seconds_since(installation.seen, now)
    if silent is None or (lease and lease.silent is not None and lease.silent <= silent + lease.duration):
        return None
    return LeaseState("" if installation.ended else CONFIG_MAP, silent, FRESH, elected=False)


async def _unserved_kinds(client: Client) -> list[str]:
    """Returns KubeVirt's kinds that the API server does not know; none where its discovery does not answer."""
    kinds = VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, KUBEVIRTS
    try:
        names = await served_names(client.transport, KUBEVIRTS.api_version)
    except ApiError:
        return []
    return [kind.kind for kind in kinds if names is not None and kind.plural not in names]


async def _election_problem(client: Client, namespaces: Sequence[str]) -> str:
    """Returns what a replica without the rights to the Lease says, if no controller has it."""
    selector = f"involvedObject.name={CONFIG_MAP},reason={EVENT_NOT_ELECTED}"
    since = rfc3339(client.transport.server_clock() - _EVENT_FRESH)
    events = [
        (event.last_timestamp, event.message)
        for namespace in namespaces
        for event in await list_allowed(client, registry.EVENTS, namespace, fields=selector)
        if event.last_timestamp and event.last_timestamp > since
    ]
    return max(events, default=("", ""))[1]


def _endpoint(config: Mapping[str, Any]) -> str:
    """Returns where the API server calls a webhook; not the path, whose end is the key by which the API server is
    known."""
    if url := config.get("url"):
        return f"https://{urlsplit(url).netloc}"
    service = config.get("service") or {}
    return f"Service {service.get('namespace')}/{service.get('name')}"


async def find_lease(client: Client, namespaces: Sequence[str]) -> tuple[str, LeaseState | None]:
    """Returns the Lease in one of these namespaces, and which that is; None if there is none, or it may not be read.
    Raises ApiError."""
    leases, _allowed = await _own_objects(client, registry.LEASES, LEASE, namespaces)
    return _prevailing_lease([(place, lease_state(lease.spec, now)) for place, (lease, now) in leases.items()])


def _prevailing_lease(states: Sequence[tuple[str, LeaseState]]) -> tuple[str, LeaseState | None]:
    """Returns the lease of a controller that runs, before what an earlier one has left in another namespace; of two
    that do not, the later one."""

    def rank(candidate: tuple[str, LeaseState]) -> tuple[bool, float, bool]:
        _, state = candidate
        return state.is_live, -inf if state.silent is None else -state.silent, state.elected

    return max(states, key=rank, default=("", None))


def home_namespaces(client: Client, chosen_namespace: str | None) -> list[str]:
    """Returns the namespaces in which headroom is looked for."""
    if chosen_namespace:
        return [chosen_namespace]
    return list(dict.fromkeys(filter(None, (client.transport.config.namespace, *USUAL_NAMESPACES))))


async def _probe_result(client: Client) -> tuple[str | None, str]:
    """Returns what the API server says of a webhook that it does not reach, "" if it reaches it, None if it cannot be
    asked; and the mark of the replica that answered."""
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
