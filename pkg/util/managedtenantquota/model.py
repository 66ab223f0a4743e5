"""The observation of a namespace with a budget, without a request; the records of raised quotas: spec.hard as it was,
and what was added to it.

A quota's annotation is written by the same patch that raises it, and removed by the one that restores it. The status of
a budget is for people and KubeVirt's own controller, which may have left quotas raised that have no annotation."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object, ObjectMeta, RawQuantity, RawResourceList, Struct
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstanceStatus
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import is_finished, migration_of, takes_place
from pkg.util.managedtenantquota.lock import Lock, Webhook
from pkg.util.problems import Problem
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.policy import LOCK_LIMIT


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """The operator's choice of a limit, and how long things take, in seconds."""

    lock_limit: float = LOCK_LIMIT  # a window that is open for longer is closed, whatever it waits for
    grace: float = 10.0  # so long beyond that the quotas may take to be restored; then the lock ends in any case
    settle: float = 0.1
    """From the lock to what it protects: every API server knows by then, and what it let through has been counted."""
    open_to_others: float = 10.0  # migrations that come later wait for the next window
    longest_pause: float = 600.0  # of a migration whose target pod did not come within the lock's limit
    first_pause: float = 0.5
    """A migration for which a write was refused is left alone for this long, or as long as the lock stood. Each further
    refusal doubles it: at most to `sweep` / `first_pause` times as much, and to `longest_pause`."""
    cache_delay: float = 0.5  # for so long status.used may count a target pod that the cache does not show yet
    crowding: float = 30.0
    """A budget that suffices but for the other migrations is reported after this long; else after `cache_delay`."""
    sweep: float = 30.0  # until a namespace that something is still to be done in is re-checked (upstream's)
    recheck: float = 2.0
    """The same for a migration that KubeVirt's parallel limits hold up (upstream: 5 s, too long where other namespaces
    compete for a place), and for a namespace that cannot be locked."""


@dataclass(frozen=True, slots=True)
class WindowTimers:
    """The waiting times that one decision passes to the next; a restart may lose them."""

    short_since: Mapping[tuple[str, bool], float] = field(default_factory=dict)
    """By uid, and whether the budget suffices without other migrations: since when it does not suffice."""
    paused: Mapping[str, float] = field(default_factory=dict)
    """By uid: until when a migration is left alone."""
    refusals: int = 0  # of writes that were to open a window, since everything was last raised


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects that a decision reads; `now` in seconds since the epoch by the API server's clock."""

    namespace: str
    exists: bool  # the namespace is there, and is not being deleted
    budgets: Sequence[VirtualMachineMigrationResourceQuota]
    quotas: Sequence[ResourceQuota]
    now: float
    lock: Lock | None = None
    facts: Facts = field(default_factory=lambda: Facts(ResourceQuota()))
    """What decides about its migrations, with no quota yet. From caches."""
    lock_unavailable_reason: str = ""
    render_webhook: Callable[[Collection[str]], Webhook] | None = None
    """The webhook that a lock shall hold, by the entries of those that it admits; None: not served, or not read."""
    lock_owner: str = ""
    refused_writes: Collection[str] = ()
    """The keys of quotas whose restore, and of the lock whose deletion was refused in this pass."""
    timers: WindowTimers = field(default_factory=WindowTimers)

    def problem(self, reason: str, message: str, key: str, *also: Object) -> Problem:
        """Returns a problem about its budgets and `also`; with the same `key` it is the same, whatever the text."""
        return Problem(reason, message, objects=[*also, *self.budgets], identity=key)

    def recorded(self) -> tuple[dict[str, "Record"], dict[str, "Record"], dict[str, Sequence[str]]]:
        """Returns how raised quotas were, by name; the same by a status, as KubeVirt's own controller leaves them; and
        the migrations that share the window, by name, with the quotas that refused each."""
        records = {quota.name: record for quota in self.quotas if (record := record_of(quota))}
        status_records, members = dict[str, Record](), dict[str, Sequence[str]]()
        for budget in self.budgets:
            status = budget.status
            additional = readable(status.additional_migration_resources or budget.additional)
            for original in status.original_blocking_resource_quotas or ():
                status_records[original.name] = Record(readable(original.spec.hard or {}), additional)
            for name, blocking in (status.migrations_to_blocking_resource_quotas or {}).items():
                members[name] = blocking or ()
        return records, status_records, members


def observe(source: Source, lock: Lock | None, namespace: str, now: float) -> Observed:
    """Returns the observation of a namespace by the caches, without the webhook that a lock shall have."""
    stored = source.namespaces.get(name=namespace)
    exists = stored is not None and not stored.deleting
    budgets, quotas = source.budgets.list(namespace), source.list_quotas(namespace)
    facts = with_running(source.observe(ResourceQuota(metadata=ObjectMeta(namespace=namespace)), now), source)
    return Observed(namespace, exists, budgets, quotas, now, lock, facts)


def with_running(facts: Facts, source: Source) -> Facts:
    """Adds the source node of every migration of the cluster that runs or has its target pod, if any waits."""
    if all(migration.phase != constants.PHASE_PENDING for migration in facts.migrations):
        return facts
    migrations = [migration for migration in source.migrations.list() if not is_finished(migration)]
    waiting = {vmim.uid: vmim.namespace for vmim in migrations if not takes_place(vmim)}
    started = {migration_of(pod) for namespace in {*waiting.values()} for pod in source.pods.list(namespace)}
    running = (vmim for vmim in migrations if vmim.uid not in waiting or vmim.uid in started)
    vmis = (source.instances.get(namespace=vmim.namespace, name=vmim.spec.vmi_name) for vmim in running)
    statuses = (trusted_status(vmi) if vmi else VirtualMachineInstanceStatus() for vmi in vmis)
    states = [(status.node_name, status.migration_state) for status in statuses]
    # nodeName moves on before the migration has ended.
    nodes = [frozenset(filter(None, (node, state.source_node if state else None))) for node, state in states]
    return replace(facts, running=nodes)


class _Annotation(Struct):
    """The record on the wire: by quota, although a quota records only itself."""

    quotas: dict[str, RawResourceList] = msgspec.field(default_factory=dict)
    additional: RawResourceList = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """The original spec.hard of a quota and what was added to it; every quantity can be read."""

    hard: Mapping[str, RawQuantity]
    additional: Mapping[str, RawQuantity]

    def text(self, quota: str) -> str:
        """Returns the value of the quota's annotation."""
        annotation = _Annotation({quota: dict(self.hard)}, dict(self.additional))
        return msgspec.json.encode(annotation, order="sorted").decode()

    def to_raise(self, hard: Mapping[str, RawQuantity]) -> dict[str, str]:
        """Returns the change that raises a quota with the limits `hard`; empty if nothing is added. A limit below the
        recorded one, or above the raised one, stays."""
        limits = self._limits(hard)
        return format_resource_list({name: raised for name, now, old, raised in limits if old <= now < raised})

    def to_restore(self, hard: Mapping[str, RawQuantity]) -> dict[str, str]:
        """Returns the change that takes back what was added; no limit rises by it. One that does not say what it was
        raised to was written by a person, and stays."""
        limits = self._limits(hard)
        return format_resource_list({name: old for name, now, old, raised in limits if old < now == raised})

    def _limits(self, hard: Mapping[str, RawQuantity]) -> Iterator[tuple[str, Quantity, Quantity, Quantity]]:
        """Yields the names that the quota limits, as the budget spells them (upstream), with the limit as it is, as it
        was and as it shall be while it is raised."""
        now, additional = parse_resource_list(hard), parse_resource_list(self.additional)
        for name, old in parse_resource_list(self.hard).items():
            if name in now:
                yield name, now[name], old, old + additional.get(name, ZERO)


def record_of(quota: ResourceQuota) -> Record | None:
    """Returns a raised quota's record, None where none can be read. Who can write it can write spec.hard as well."""
    with suppress(msgspec.DecodeError):
        annotation = msgspec.json.decode(quota.annotations.get(constants.ANNOTATION_ORIGINALS, ""), type=_Annotation)
        if quota.name in annotation.quotas:
            return Record(readable(annotation.quotas[quota.name]), readable(annotation.additional))
    return None


def is_in_use(budget: VirtualMachineMigrationResourceQuota) -> bool:
    """Reports whether the status says that something is raised; what may be added, upstream always keeps there."""
    status = budget.status
    return bool(status.original_blocking_resource_quotas or status.migrations_to_blocking_resource_quotas)


def readable(resources: RawResourceList) -> RawResourceList:
    """Returns the resources whose quantities can be read and are not negative."""
    good: RawResourceList = {}
    for name, value in resources.items():
        with suppress(QuantityError):
            if Quantity.parse(value) >= ZERO:
                good[name] = value
    return good


def is_lowering_enforced(quota: ResourceQuota) -> bool:
    """Reports whether quota admission goes by spec.hard already, or by less: it reads status.hard, a copy."""
    now, used = parse_resource_list(quota.hard), parse_resource_list(quota.status.hard)
    return all(used[name] <= limit for name, limit in now.items() if name in used)
