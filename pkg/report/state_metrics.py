"""Exports metrics about the cluster: computed from the caches at each scrape, so that no decision pays for them."""

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
from pkg.util.managedtenantquota.lock import parse_time, recognise
from pkg.util.managedtenantquota.record import record_of
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, entry_keys, keys_of, read
from pkg.util.resourcequota.managed import is_managed, unenforced
from pkg.util.resourcequota.observe import Reader, Source

T = TypeVar("T")

MOST_NAMESPACES: Final = 200
"""The most namespaces that have series of their own; the others share one."""
OTHERS: Final = "_others"
"""The label of the others: no namespace can have that name."""
_NANO: Final = 1e-9

EventHandler = ResourceEventHandlerFuncs[VirtualMachineInstanceMigration]
WAIT = METRICS["headroom_migration_wait_seconds"].histogram(
    (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
)


@dataclass(eq=False)
class StateMetrics(Collector):
    """Collector for prometheus-client's registry. `leads`: whether this process is the one that exports; the others
    only remember since when they see an entry, for the moment when they lead."""

    source: Source
    locks: Reader[ValidatingWebhookConfiguration] | None = None
    """All ValidatingWebhookConfigurations; None where they are not watched."""
    _: KW_ONLY
    lock_limit: float = 0.0
    leads: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.time
    _first_seen: dict[tuple[str, str], float] = field(default_factory=dict, init=False)
    """Uid of a quota and key of an entry to when it was first seen."""

    def describe(self) -> list[Family]:
        """Returns nothing: prometheus-client would collect when this is registered, to find out."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yields nothing as long as a kind cannot be read: no figure is better than a wrong one."""
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
        yield _gauge("headroom_migrations_refused", _by_namespace(ages, lambda values: {(): len(values)}))
        yield _gauge(
            "headroom_migrations_refused_oldest_seconds", _by_namespace(ages, lambda values: {(): max(values)})
        )

    def _quotas(self) -> Iterator[Family]:
        now, quotas, first_seen = self.clock(), self.source.quotas.list(), dict[tuple[str, str], float]()
        added_amounts: dict[str, list[ResourceList]] = defaultdict(list)
        unused_amounts: dict[str, list[ResourceList]] = defaultdict(list)
        ages: dict[str, list[float]] = defaultdict(list)
        states: dict[str, list[str]] = defaultdict(list)
        unenforced_count = 0
        for quota in quotas:
            if not any(key.startswith(_MARKS) for key in quota.annotations):
                continue
            keys, namespace = entry_keys(quota.annotations), quota.namespace
            amounts, start_by_key = _added_amounts(quota), self._migration_start_by_key(quota)
            for key in keys:
                first_seen[quota.uid, key] = min(
                    self._first_seen.get((quota.uid, key), now), start_by_key.get(key, now)
                )
                ages[namespace].append(now - first_seen[quota.uid, key])
                states[namespace].append("migrating" if key in start_by_key else "held")
            if amounts or keys:
                added_amounts[namespace].append(amounts)
                free = subtract(parse_resource_list(quota.hard), parse_resource_list(quota.used))
                unused_amounts[namespace].append(
                    {name: max(ZERO, min(amount, free.get(name, ZERO))) for name, amount in amounts.items()}
                )
                unenforced_count += bool(unenforced(quota))
        self._first_seen = first_seen
        yield _gauge("headroom_quotas_managed", [((), sum(map(is_managed, quotas)))])
        yield _gauge("headroom_quotas_raised", [((), sum(map(len, added_amounts.values())))])
        yield _gauge("headroom_quotas_not_enforced", [((), unenforced_count)])
        yield _gauge("headroom_quota_oldest_entry_seconds", _by_namespace(ages, lambda values: {(): max(values)}))
        yield _gauge("headroom_quota_entries", _by_namespace(states, _states))
        yield _gauge("headroom_quota_added", _by_namespace(added_amounts, _amounts))
        yield _gauge("headroom_quota_added_unused", _by_namespace(unused_amounts, _amounts))

    def _migration_start_by_key(self, quota: ResourceQuota) -> dict[str, float]:
        """Returns keys of entries to the creation of the oldest migration under way that they are for."""
        start_by_key: dict[str, float] = {}
        for migration in self.source.migrations.list(quota.namespace):
            if is_finished(migration):
                continue
            name = migration.spec.vmi_name
            vmi = self.source.instances.get(name=name, namespace=quota.namespace)
            created = parse_time(migration.metadata.creation_timestamp)
            for key in keys_of(quota.annotations, name, vmi):
                start_by_key[key] = min(created, start_by_key.get(key, created))
        return start_by_key

    def _configurations(self) -> Iterator[Family]:
        if self.locks is None:
            return
        now = self.clock()
        configurations = self.locks.list()
        ages = [lock.age(now) for configuration in configurations if (lock := recognise(configuration))]
        yield _gauge("headroom_mtq_locks_held", [((), len(ages))])
        yield _gauge("headroom_mtq_oldest_lock_seconds", [((), max(ages, default=0.0))])
        yield _gauge("headroom_mtq_lock_limit_seconds", [((), self.lock_limit)])
        registrations = (
            configuration
            for configuration in configurations
            if configuration.name == constants.WEBHOOK_CONFIGURATION_NAME
        )
        yield _gauge(
            "headroom_webhook_registered",
            (
                ((webhook["name"].partition(".")[0], webhook.get("failurePolicy", "Fail")), 1.0)
                for configuration in registrations
                for webhook in configuration.webhooks or ()
            ),
        )


def _added_amounts(quota: ResourceQuota) -> ResourceList:
    """Returns what spec.hard has beside the base: entries, the compensation, and what a window adds."""
    hard, record = parse_resource_list(quota.hard), record_of(quota)
    window = subtract(hard, parse_resource_list(record.hard)) if record is not None else {}
    amounts = add(read(quota.annotations).total, window)
    return {name: amount for name, amount in amounts.items() if name in hard and not amount.is_zero()}


def observe_wait(leads: Callable[[], bool], clock: Callable[[], float] = time.time) -> EventHandler:
    """Returns an informer's event handler that measures how long migrations waited for their target pod."""

    def on_update(old: VirtualMachineInstanceMigration, new: VirtualMachineInstanceMigration) -> None:
        if old.phase in _WAITING and new.phase not in _WAITING and not is_finished(new) and leads():
            WAIT.observe(max(0.0, clock() - parse_time(new.metadata.creation_timestamp)))

    return ResourceEventHandlerFuncs(on_update=on_update)


_WAITING: Final = (constants.PHASE_UNSET, constants.PHASE_PENDING)
_MARKS: Final = (*ENTRY_PREFIXES, constants.ANNOTATION_MIGRATING_COMPENSATION, ANNOTATION_ORIGINALS)


def _refused_since(migration: VirtualMachineInstanceMigration) -> float:
    """Returns when the migration was refused: virt-controller sets lastProbeTime when the first try is; else its
    creation."""
    for condition in migration.status.conditions or ():
        if condition.type == constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA:
            return parse_time(
                condition.last_transition_time, condition.last_probe_time, migration.metadata.creation_timestamp
            )
    return parse_time(migration.metadata.creation_timestamp)


def _states(states: Sequence[str]) -> Mapping[tuple[str, ...], float]:
    return {(state,): states.count(state) for state in ("migrating", "held")}


def _amounts(amounts: Sequence[ResourceList]) -> Mapping[tuple[str, ...], float]:
    return {(name,): amount.nanos * _NANO for name, amount in sorted(total(amounts).items())}


def _by_namespace(
    grouped: Mapping[str, Sequence[T]], measure: Callable[[Sequence[T]], Mapping[tuple[str, ...], float]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yields the measure of each namespace that has anything, by its name and further labels."""
    by_label: dict[str, list[T]] = defaultdict(list)
    for namespace in sorted(filter(grouped.get, grouped)):
        by_label[namespace if len(by_label) < MOST_NAMESPACES else OTHERS] += grouped[namespace]
    for namespace, values in by_label.items():
        for labels, value in measure(values).items():
            yield (namespace, *labels), value


def _gauge(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> Family:
    return METRICS[name].family(samples)
