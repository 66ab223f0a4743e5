"""Reads what the reports look at from a cluster: one list of each kind, the Lease, the registration."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from kubeloop.api import registry
from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.meta import Object, rfc3339
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.discovery import served_names
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.errors import ReportedError
from kubeloop.webhook.registration import NotReached
from pkg.api import kubevirt
from pkg.api.harvesterhci import SETTINGS, Setting
from pkg.api.instancetype import INSTANCETYPES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.causes import decode_causes
from pkg.report.installation import Installed, LeaseState, lease_state, seconds_since
from pkg.report.plan import PLACED_PODS, NodeCapacity
from pkg.report.snapshot import Basis, Snapshot
from pkg.report.status import unenforced_limits
from pkg.selfcheck.api_server import ANNOTATION_HASH, PROBE_CONFIGURATION, PROBE_WEBHOOK, ask_version, probe
from pkg.selfcheck.installation import EVENT_NOT_ELECTED, FRESH, IN_FORCE, USUAL_NAMESPACES, Installation, read
from pkg.util import constants
from pkg.util.kubevirt.expansion import Instancetypes, missing_instancetype
from pkg.util.kubevirt.rendering import UNKNOWN_RATIO
from pkg.util.problems import EVENT_PROJECT_FULL
from pkg.util.resourcequota.base import counts_of_claims
from pkg.util.resourcequota.policy import RancherQuotas

T = TypeVar("T", bound=Object)

_EVERYWHERE: Final = ("",)
_MIGRATIONS: Final = kubevirt.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
_KINDS: Final = kubevirt.VIRTUAL_MACHINES, kubevirt.VIRTUAL_MACHINE_INSTANCES, _MIGRATIONS, kubevirt.KUBEVIRTS


class Absent(ReportedError):
    """The object of a command does not exist."""


async def read_snapshot(
    client: Client, names: Sequence[str] = (), own_namespace: str | None = None, *, events: str | None = None
) -> Snapshot:
    """Reads the cluster, or these namespaces; migrations are the whole cluster's, for KubeVirt's limits count them, if
    the account has the right. `own_namespace`: headroom's, None where it has to be looked for; `events`: a field
    selector, None for none. Raises Absent for a namespace that does not exist, ApiError."""
    namespaces = [await require(client, registry.NAMESPACES, name) for name in names]
    scopes = names or _EVERYWHERE
    configurations = await list_allowed(client, registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    quotas = await _list(client, registry.RESOURCE_QUOTAS, scopes)
    if any(map(unenforced_limits, quotas)):  # so it is for tenths of a second after every write
        await asyncio.sleep(1.0)
        quotas = await _list(client, registry.RESOURCE_QUOTAS, scopes)
    counts_claims = any(counts_of_claims(name) for quota in quotas for name in quota.hard)
    homes = await _read_homes(client, home_namespaces(client, own_namespace))
    basis = await _read_basis(client, homes[0])
    failures = [] if events is None else await list_allowed(client, registry.EVENTS, scopes, fields=events)
    if events and basis.rancher_quotas is RancherQuotas.ANNOTATION:
        failures += await list_allowed(client, registry.EVENTS, scopes, fields=f"reason={EVENT_PROJECT_FULL}")
    settings = await list_allowed(client, SETTINGS, fields=f"metadata.name={constants.SETTING_OVERHEAD_RATIO}")
    migrations = await list_or_none(client, _MIGRATIONS)
    return Snapshot(
        now=client.transport.server_clock(),
        namespaces=namespaces if names else await _list(client, registry.NAMESPACES),
        quotas=quotas,
        migrations=await _list(client, _MIGRATIONS, scopes) if migrations is None else migrations,
        instances=await _list(client, kubevirt.VIRTUAL_MACHINE_INSTANCES, scopes),
        pods=await _list(client, registry.PODS, scopes, labels=constants.LABEL_APP),
        claims=await list_allowed(client, registry.PERSISTENT_VOLUME_CLAIMS, scopes) if counts_claims else (),
        machines=await list_allowed(client, kubevirt.VIRTUAL_MACHINES, scopes) if counts_claims else (),
        limit_ranges=await _list(client, registry.LIMIT_RANGES, scopes),
        kubevirts=await _read_kubevirts(client, settings),
        settings=settings,
        budgets=await list_allowed(client, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, scopes),
        basis=basis,
        locks=configurations,
        installed=await _read_installed(client, homes, configurations),
        failures=failures,
    )


async def read_vms(client: Client, namespace: str) -> list[kubevirt.VirtualMachine]:
    """Reads a namespace's VMs with their instancetypes and preferences, if these may be read. Raises ApiError."""
    vms = await _list(client, kubevirt.VIRTUAL_MACHINES, [namespace])
    if not any(map(missing_instancetype, vms)):
        return vms
    instancetypes = Instancetypes()
    for kind in INSTANCETYPES:
        for obj in await list_allowed(client, kind, [namespace] if kind.namespaced else _EVERYWHERE):
            instancetypes.add(obj)
    return list(map(instancetypes.expanded, vms))


async def _read_kubevirts(client: Client, settings: Sequence[Setting]) -> list[kubevirt.KubeVirt]:
    """Reads them. Who may list neither them nor the setting of the overhead ratio gets one whose ratio is not known."""
    kubevirts = await list_or_none(client, kubevirt.KUBEVIRTS)
    if kubevirts is None and not settings:
        configuration = kubevirt.KubeVirtConfiguration(additional_guest_memory_overhead_ratio=UNKNOWN_RATIO)
        status = kubevirt.KubeVirtStatus(phase=constants.KUBEVIRT_PHASE_DEPLOYED)
        return [kubevirt.KubeVirt(spec=kubevirt.KubeVirtSpec(configuration), status=status)]
    return kubevirts or []


async def read_capacity(client: Client) -> NodeCapacity:
    return NodeCapacity(await list_or_none(client, registry.NODES), await list_or_none(client, PLACED_PODS))


async def require(client: Client, resource: Resource[T], name: str, namespace: str = "") -> T:
    """Returns the object. Raises Absent in one line if it does not exist."""
    try:
        return await client.resource(resource).get(name=name, namespace=namespace)
    except NotFound as exc:
        place = f" in namespace {namespace}" if namespace else ""
        raise Absent(f"there is no {resource.kind} {name}{place}") from exc


async def list_allowed(
    client: Client, kind: Resource[T], namespaces: Sequence[str] = _EVERYWHERE, *, fields: str = ""
) -> list[T]:
    """Lists what a report can do without, where it may. `fields`: a selector, as a role for one object needs."""
    objects = list[T]()
    for namespace in namespaces:
        with suppress(Forbidden):
            objects += await _list(client, kind, [namespace], fields=fields)
    return objects


async def list_or_none(client: Client, kind: Resource[T]) -> list[T] | None:
    """Returns None if the kind may not be listed. Raises ApiError."""
    try:
        return await _list(client, kind)
    except Forbidden:
        return None


async def _list(
    client: Client, kind: Resource[T], scopes: Sequence[str] = _EVERYWHERE, *, labels: str = "", fields: str = ""
) -> list[T]:
    objects, reader = list[T](), client.resource(kind)
    for namespace in scopes:
        objects += await list_installed(reader, namespace, label_selector=labels, field_selector=fields)
    return objects


# ---- the installation ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Home:
    """A namespace in which headroom is looked for: the state of its Lease, or of the ConfigMap of a controller without
    one, and what a controller published there; `is_readable`: whether both objects may be read."""

    namespace: str
    lease: LeaseState | None
    installation: Installation | None
    is_readable: bool

    @property
    def rank(self) -> tuple[bool, bool, float, bool]:
        silent = inf if self.lease is None or self.lease.silent is None else self.lease.silent
        is_live = self.lease is not None and self.lease.is_live
        return is_live, self.lease is not None, -silent, self.installation is not None


def home_namespaces(client: Client, chosen_namespace: str | None) -> list[str]:
    places = (chosen_namespace,) if chosen_namespace else (client.transport.config.namespace, *USUAL_NAMESPACES)
    return list(dict.fromkeys(filter(None, places)))


async def read_lease(client: Client, namespace: str) -> tuple[LeaseState | None, bool]:
    """Returns the state of the Lease, None if there is none; and whether it may be read."""
    lease, is_readable = await _get_allowed(client, registry.LEASES, constants.LEASE, namespace)
    return lease_state(lease.spec, client.transport.server_clock()) if lease else None, is_readable


async def _read_homes(client: Client, namespaces: Iterable[str]) -> list[_Home]:
    """Returns them in order: a controller that runs comes before what an earlier one has left elsewhere; of two that do
    not, the later one."""
    homes = []
    for namespace in namespaces:
        lease, may_read_lease = await read_lease(client, namespace)
        config_map, may_read = await _get_allowed(client, registry.CONFIG_MAPS, constants.CONFIG_MAP, namespace)
        published, now = read(config_map.data) if config_map else None, client.transport.server_clock()
        written = seconds_since(published.seen, now) if published else None  # None: an earlier version gives no time
        ran_out = inf if lease is None or lease.silent is None else lease.silent - lease.duration
        if published and written is not None and written < ran_out:
            lease = LeaseState("" if published.ended else constants.CONFIG_MAP, written, FRESH, elected=False)
        homes.append(_Home(namespace, lease, published, may_read_lease and may_read))
    return sorted(homes, key=lambda home: home.rank, reverse=True)


async def _get_allowed(client: Client, resource: Resource[T], name: str, namespace: str) -> tuple[T | None, bool]:
    """Returns the object, None if there is none; and whether it may be read."""
    try:
        return await client.resource(resource).get(name=name, namespace=namespace), True
    except NotFound:
        return None, True
    except Forbidden:
        return None, False


async def _read_basis(client: Client, home: _Home) -> Basis:
    """Returns the basis by what the running controller published, else assumed."""
    version, published = "", home.installation
    with suppress(Forbidden, NotFound):
        version = await ask_version(client)
    if published is None:
        return Basis(kubernetes=(version,))
    # Several: the API servers are being upgraded. What a controller that has ended said is outdated.
    versions = tuple(published.kubernetes.split())
    kubernetes = versions if version in versions else (version,)
    source, in_force = f"ConfigMap {home.namespace}/{constants.CONFIG_MAP}", published.policy == IN_FORCE
    rancher = published.rancher_quotas, published.rancher_reason
    return Basis(published.mode, published.estimate, source, kubernetes, in_force, *rancher, published.hold_limit)


async def _read_installed(
    client: Client, homes: Sequence[_Home], configurations: Sequence[ValidatingWebhookConfiguration]
) -> Installed:
    """Returns what the account's rights let find out of the controller and of the webhooks; `configurations` are all of
    the cluster. Raises ApiError."""
    own = [config for config in configurations if config.name == constants.WEBHOOK_CONFIGURATION_NAME]
    hooks = [hook for config in own for hook in config.webhooks or ()]
    unreachable, probe_mark = await _probe_result(client) if hooks else (None, "")
    is_known = bool(hooks) or any(place.lease or place.installation or not place.is_readable for place in homes)
    live = [place for place in homes if place.lease and place.lease.is_live]
    running = live[0].installation if live else None
    is_rivalry = len(live) > 1 and not all(place.installation and place.installation.only_namespaces for place in live)
    served: set[str] | None = None
    with suppress(ApiError):
        served = await served_names(client.transport, kubevirt.KUBEVIRTS.api_version)
    return Installed(
        lease=homes[0].lease,
        webhooks={hook["name"]: hook.get("failurePolicy", "") for hook in hooks},
        unreachable=unreachable,
        absent=() if is_known else [place.namespace for place in homes],
        endpoint=_endpoint(hooks[0].get("clientConfig") or {}) if hooks else "",
        drift=any(probe_mark and config.annotations.get(ANNOTATION_HASH) not in (None, probe_mark) for config in own),
        problem=running.problem if running else "" if live else await _election_problem(client, homes),
        causes=decode_causes(running.refused) if running else (),
        unserved=[kind.kind for kind in _KINDS if served is not None and kind.plural not in served],
        served=running.only_namespaces.split() if running else (),
        places=sorted(place.namespace for place in live) if is_rivalry else (),
    )


async def _election_problem(client: Client, homes: Sequence[_Home]) -> str:
    """Returns what a replica without the rights to the Lease says, if no controller has it."""
    selector = f"involvedObject.name={constants.CONFIG_MAP},reason={EVENT_NOT_ELECTED}"
    since = rfc3339(client.transport.server_clock() - 600.0)  # while it goes on, one comes every five minutes
    events = await list_allowed(client, registry.EVENTS, [home.namespace for home in homes], fields=selector)
    recent = [(event.last_timestamp or "", event.message) for event in events if (event.last_timestamp or "") > since]
    return max(recent, default=("", ""))[1]


def _endpoint(config: Mapping[str, Any]) -> str:
    """Returns where the API server calls a webhook; not the path, which ends in the API server's key."""
    service, url = config.get("service") or {}, config.get("url")
    return f"https://{urlsplit(url).netloc}" if url else f"Service {service.get('namespace')}/{service.get('name')}"


async def _probe_result(client: Client) -> tuple[str | None, str]:
    """Returns what the API server says of a webhook that it does not reach, "" if it reaches it, None if it cannot be
    asked; and the mark of the replica that answered."""
    try:
        probing = await client.resource(registry.MUTATING_WEBHOOK_CONFIGURATIONS).get(name=PROBE_CONFIGURATION)
        (webhook,) = probing.webhooks or []
        namespace = webhook["namespaceSelector"]["matchLabels"][constants.NAMESPACE_NAME_LABEL]
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
