"""Exports metrics about the cluster: computed from the caches at each scrape, so that no decision pays for them."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kubeloop.api.core import ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.objects import find_condition
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, add, parse_resource_list, subtract
from kubeloop.cache.processor import ResourceEventHandlerFuncs
from kubeloop.controllers.errors import CacheForbidden
from pkg.api.kubevirt import VirtualMachineInstanceMigration as Migration
from pkg.config.metrics import METRICS
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished, is_refused, parse_time
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import record_of
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, entry_keys, keys_of, read
from pkg.util.resourcequota.managed import is_managed, unenforced
from pkg.util.resourcequota.observe import Reader, Source

MOST_NAMESPACES: Final = 200
"""With series of their own; the others share one, by a name that no namespace can have."""
OTHERS: Final = "_others"
_MARKS: Final = (*ENTRY_PREFIXES, constants.ANNOTATION_MIGRATING_COMPENSATION, constants.ANNOTATION_ORIGINALS)

Row = tuple[str, Sequence[str], float]
"""A namespace, further labels and a value."""
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
        now, ages = self.clock(), list[Row]()
        for migration in filter(is_refused, self.source.migrations.list()):
            condition = find_condition(migration.status.conditions, constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA)
            # virt-controller sets lastProbeTime when quota first refuses it.
            times = (condition.last_transition_time, condition.last_probe_time) if condition else ()
            since = next(filter(None, map(parse_time, (*times, migration.metadata.creation_timestamp))), 0.0)
            ages.append((migration.namespace, (), now - since))
        yield _by_namespace("headroom_migrations_refused", ages, len)
        yield _by_namespace("headroom_migrations_refused_oldest_seconds", ages, max)

    def _quotas(self) -> Iterator[Family]:
        now, quotas, first_seen = self.clock(), self.source.list_quotas(), dict[tuple[str, str], float]()
        added, unused, ages, states, raised = list[Row](), list[Row](), list[Row](), list[Row](), list[ResourceQuota]()
        for quota in quotas:
            if not any(key.startswith(_MARKS) for key in quota.annotations):
                continue
            keys, namespace = entry_keys(quota.annotations), quota.namespace
            amounts, starts = _added_amounts(quota), self._migration_start_by_key(quota)
            free = subtract(parse_resource_list(quota.hard), parse_resource_list(quota.used))
            for key in keys:
                since = min(self._first_seen.get((quota.uid, key), now), starts.get(key, now))
                first_seen[quota.uid, key] = since
                ages.append((namespace, (), now - since))
                states += [(namespace, ["migrating"], key in starts), (namespace, ["held"], key not in starts)]
            for name, amount in amounts.items():
                added.append((namespace, [name], amount.nanos * 1e-9))
                unused.append((namespace, [name], max(ZERO, min(amount, free[name])).nanos * 1e-9))
            raised += [quota] if amounts or keys else []
        self._first_seen = first_seen
        yield _gauge("headroom_quotas_managed", sum(map(is_managed, quotas)))
        yield _gauge("headroom_quotas_raised", len(raised))
        yield _gauge("headroom_quotas_not_enforced", sum(map(bool, map(unenforced, raised))))
        yield _by_namespace("headroom_quota_oldest_entry_seconds", ages, max)
        yield _by_namespace("headroom_quota_entries", states)
        yield _by_namespace("headroom_quota_added", added)
        yield _by_namespace("headroom_quota_added_unused", unused)

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
        now, configurations = self.clock(), self.locks.list()
        ages = [lock.age(now) for configuration in configurations if (lock := recognise(configuration))]
        yield _gauge("headroom_mtq_locks_held", len(ages))
        yield _gauge("headroom_mtq_oldest_lock_seconds", max(ages, default=0.0))
        yield _gauge("headroom_mtq_lock_limit_seconds", self.lock_limit)
        own = (config for config in configurations if config.name == constants.WEBHOOK_CONFIGURATION_NAME)
        hooks = (hook for config in own for hook in config.webhooks or ())
        yield METRICS["headroom_webhook_registered"].family(
            ((hook["name"].partition(".")[0], hook.get("failurePolicy", "Fail")), 1.0) for hook in hooks
        )


def _added_amounts(quota: ResourceQuota) -> ResourceList:
    """Returns what spec.hard has beside the base: entries, the compensation, and what a window adds."""
    hard, record = parse_resource_list(quota.hard), record_of(quota)
    window = subtract(hard, parse_resource_list(record.hard)) if record is not None else {}
    amounts = add(read(quota.annotations).total, window)
    return {name: amount for name, amount in amounts.items() if name in hard and not amount.is_zero()}


def observe_wait(leads: Callable[[], bool], clock: Callable[[], float]) -> ResourceEventHandlerFuncs[Migration]:
    """Returns an informer's event handler that measures how long migrations waited for their target pod."""

    def on_update(old: Migration, new: Migration) -> None:
        waiting = constants.WAITING_PHASES
        if old.phase in waiting and new.phase not in waiting and not is_finished(new) and leads():
            WAIT.observe(max(0.0, clock() - parse_time(new.metadata.creation_timestamp)))

    return ResourceEventHandlerFuncs(on_update=on_update)


def _by_namespace(name: str, rows: Sequence[Row], combine: Callable[[list[float]], float] = sum) -> Family:
    named = set(sorted({namespace for namespace, _labels, _value in rows})[:MOST_NAMESPACES])
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for namespace, labels, value in rows:
        values[namespace if namespace in named else OTHERS, *labels].append(value)
    return METRICS[name].family((labels, combine(of)) for labels, of in sorted(values.items()))


def _gauge(name: str, value: float) -> Family:
    return METRICS[name].family([((), value)])
