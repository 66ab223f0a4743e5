"""What a scrape is told about the cluster: worked out from the caches when it asks, so that no decision pays for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, add, parse_resource_list, subtract, total
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.controllers.errors import CacheForbidden
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.config.metrics import METRICS
from pkg.util import constants
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.kubevirt.migration import is_finished, is_refused
from pkg.util.managedtenantquota.lock import moment, recognise
from pkg.util.managedtenantquota.record import record_of
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, entry_keys, keys_of, read
from pkg.util.resourcequota.managed import is_managed, unenforced
from pkg.util.resourcequota.observe import Reader, Source

T = TypeVar("T")

MOST_NAMESPACES: Final = 200
"""With series of their own; the others share one."""
OTHERS: Final = "_others"
"""No namespace can be called that."""
_NANO: Final = 1e-9

EventHandler = ResourceEventHandlerFuncs[VirtualMachineInstanceMigration]
WAIT = METRICS["headroom_migration_wait_seconds"].histogram(
    (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
)


@dataclass(eq=False)
class StateMetrics(Collector):
    """Register it in prometheus-client's registry. `leads`: whether this process is the one that exports; the others
    only remember since when they see an entry, for the moment when they lead."""

    source: Source
    locks: Reader[ValidatingWebhookConfiguration] | None = None
    """All ValidatingWebhookConfigurations; None where they are not watched."""
    _: KW_ONLY
    lock_limit: float = 0.0
    leads: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.time
    _seen: dict[tuple[str, str], float] = field(default_factory=dict, init=False)
    """Uid of a quota and key of an entry to when it was first seen."""

    def describe(self) -> list[Family]:
        """Nothing: prometheus-client would collect when this is registered, to find out."""
        return []

    def collect(self) -> Iterator[Family]:
        """Nothing as long as a kind cannot be read: no figure is better than a wrong one."""
        try:
            families = [*self._migrations(), *self._quotas(), *self._configurations()]
        except CacheForbidden:
            return
        if self.leads():
            yield from families

    def _migrations(self) -> Iterator[Family]:
        now = self.clock()
        ages: dict[str, list[float]] = defaultdict(list)
        for migration in self.source.migrations.list():
            if is_refused(migration):
                ages[migration.namespace].append(now - _refused_since(migration))
        yield _gauge("headroom_migrations_refused", _by_namespace(ages, lambda found: {(): len(found)}))
        yield _gauge("headroom_migrations_refused_oldest_seconds", _by_namespace(ages, lambda found: {(): max(found)}))

    def _quotas(self) -> Iterator[Family]:
        now, quotas, seen = self.clock(), self.source.quotas.list(), dict[tuple[str, str], float]()
        added: dict[str, list[ResourceList]] = defaultdict(list)
        unused: dict[str, list[ResourceList]] = defaultdict(list)
        ages: dict[str, list[float]] = defaultdict(list)
        states: dict[str, list[str]] = defaultdict(list)
        behind = 0
        for quota in quotas:
            if not any(key.startswith(_MARKS) for key in quota.annotations):
                continue
            keys, namespace = entry_keys(quota.annotations), quota.namespace
            amounts, begun = _added(quota), self._begun(quota)
            for key in keys:
                seen[quota.uid, key] = min(self._seen.get((quota.uid, key), now), begun.get(key, now))
                ages[namespace].append(now - seen[quota.uid, key])
                states[namespace].append("migrating" if key in begun else "held")
            if amounts or keys:
                added[namespace].append(amounts)
                unused[namespace].append(_unused(quota, amounts))
                behind += bool(unenforced(quota))
        self._seen = seen
        yield _gauge("headroom_quotas_managed", [((), sum(map(is_managed, quotas)))])
        yield _gauge("headroom_quotas_raised", [((), sum(map(len, added.values())))])
        yield _gauge("headroom_quotas_not_enforced", [((), behind)])
        yield _gauge("headroom_quota_oldest_entry_seconds", _by_namespace(ages, lambda found: {(): max(found)}))
        yield _gauge("headroom_quota_entries", _by_namespace(states, _states))
        yield _gauge("headroom_quota_added", _by_namespace(added, _amounts))
        yield _gauge("headroom_quota_added_unused", _by_namespace(unused, _amounts))

    def _begun(self, quota: ResourceQuota) -> dict[str, float]:
        """Keys of entries to the creation of the oldest migration under way that they are for."""
        found: dict[str, float] = {}
        for migration in self.source.migrations.list(quota.namespace):
            if is_finished(migration):
                continue
            name = migration.spec.vmi_name
            vmi = self.source.instances.get(name=name, namespace=quota.namespace)
            created = moment(migration.metadata.creation_timestamp)
            for key in keys_of(quota.annotations, name, vmi):
                found[key] = min(created, found.get(key, created))
        return found

    def _configurations(self) -> Iterator[Family]:
        if self.locks is None:
            return
        now = self.clock()
        configurations = self.locks.list()
        ages = [lock.age(now) for each in configurations if (lock := recognise(each))]
        yield _gauge("headroom_mtq_locks_held", [((), len(ages))])
        yield _gauge("headroom_mtq_oldest_lock_seconds", [((), max(ages, default=0.0))])
        yield _gauge("headroom_mtq_lock_limit_seconds", [((), self.lock_limit)])
        own = (each for each in configurations if each.name == constants.WEBHOOK_CONFIGURATION_NAME)
        yield _gauge(
            "headroom_webhook_registered",
            (
                ((webhook["name"].partition(".")[0], webhook.get("failurePolicy", "Fail")), 1.0)
                for each in own
                for webhook in each.webhooks or ()
            ),
        )


def _added(quota: ResourceQuota) -> ResourceList:
    """What stands in spec.hard beside the base: entries, the compensation, and what a window adds."""
    hard, record = parse_resource_list(quota.hard), record_of(quota)
    window = subtract(hard, parse_resource_list(record.hard)) if record is not None else {}
    amounts = add(read(quota.annotations).total, window)
    return {name: amount for name, amount in amounts.items() if name in hard and not amount.is_zero()}


def _unused(quota: ResourceQuota, added: ResourceList) -> ResourceList:
    left = subtract(parse_resource_list(quota.hard), parse_resource_list(quota.used))
    return {name: max(ZERO, min(amount, left.get(name, ZERO))) for name, amount in added.items()}


def observe_wait(leads: Callable[[], bool], clock: Callable[[], float] = time.time) -> EventHandler:
    """An informer's event handler: how long migrations waited for their target pod."""

    def on_update(old: VirtualMachineInstanceMigration, new: VirtualMachineInstanceMigration) -> None:
        if old.phase in _WAITING and new.phase not in _WAITING and not is_finished(new) and leads():
            WAIT.observe(max(0.0, clock() - moment(new.metadata.creation_timestamp)))

    return ResourceEventHandlerFuncs(on_update=on_update)


_WAITING: Final = (constants.PHASE_UNSET, constants.PHASE_PENDING)
_MARKS: Final = (*ENTRY_PREFIXES, constants.ANNOTATION_MIGRATING_COMPENSATION, ANNOTATION_ORIGINALS)


def _refused_since(migration: VirtualMachineInstanceMigration) -> float:
    """virt-controller sets lastProbeTime when the first try is refused; the creation where there is none."""
    for condition in migration.status.conditions or ():
        if condition.type == constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA:
            return moment(
                condition.last_transition_time, condition.last_probe_time, migration.metadata.creation_timestamp
            )
    return moment(migration.metadata.creation_timestamp)


def _states(found: Sequence[str]) -> Mapping[tuple[str, ...], float]:
    return {(state,): found.count(state) for state in ("migrating", "held")}


def _amounts(found: Sequence[ResourceList]) -> Mapping[tuple[str, ...], float]:
    return {(name,): amount.nanos * _NANO for name, amount in sorted(total(found).items())}


def _by_namespace(
    grouped: Mapping[str, Sequence[T]], measure: Callable[[Sequence[T]], Mapping[tuple[str, ...], float]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """What is measured of each namespace that has anything, by its name and further labels."""
    found: dict[str, list[T]] = defaultdict(list)
    for namespace in sorted(filter(grouped.get, grouped)):
        found[namespace if len(found) < MOST_NAMESPACES else OTHERS] += grouped[namespace]
    for namespace, values in found.items():
        for labels, value in measure(values).items():
            yield (namespace, *labels), value


def _gauge(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> Family:
    return METRICS[name].family(samples)
