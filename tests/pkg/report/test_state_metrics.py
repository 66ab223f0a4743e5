"""Metrics of the cluster, from objects alone."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.meta import Object, rfc3339
from kubeloop.controllers.errors import CacheForbidden
from pkg.report.state_metrics import MOST_NAMESPACES, OTHERS, WAIT, StateMetrics, observe_wait
from pkg.util.constants import CONDITION_REJECTED_BY_RESOURCE_QUOTA, WEBHOOK_CONFIGURATION_NAME
from pkg.util.managedtenantquota.model import Record
from pkg.util.resourcequota.entries import migrating_key
from pkg.util.resourcequota.observe import Listed, Source
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import build, by_name, by_uid, quota, running_vmi, vmim

NOW = 1_800_000_000.0
ENTRY = '{"limits.cpu":"2","limits.memory":"4Gi"}'
ADDED = {("ns1", "limits.cpu"): 2.0, ("ns1", "limits.memory"): 4.0 * 2**30}

Samples = dict[tuple[str, ...], float]


def time_of_age(age: float) -> str:
    return rfc3339(NOW - age)


def samples(metrics: StateMetrics, name: str) -> Samples | None:
    """Returns the values by label values; None if the metric is not exported."""
    for family in metrics.collect():
        if family.name == name:
            return {tuple(sample.labels.values()): sample.value for sample in family.samples}
    return None


def state(*objects: Object, **options: Any) -> StateMetrics:
    def listed(kind: str) -> Listed[Any]:
        return Listed(obj for obj in objects if type(obj).__name__ == kind)

    source = Source(
        migrations=listed("VirtualMachineInstanceMigration"),
        instances=listed("VirtualMachineInstance"),
        quotas=listed("ResourceQuota"),
    )
    locks = listed("ValidatingWebhookConfiguration")
    return StateMetrics(source, **{"locks": locks, "clock": lambda: NOW, **options})


def refused(age: float, vm: str = "vm1", **fields: Any) -> Object:
    """Refused since `age` seconds, of a migration that is 1000 s older."""
    migration = vmim(vm=vm, refused=True, created=time_of_age(age + 1000))
    condition = {"type": CONDITION_REJECTED_BY_RESOURCE_QUOTA, "status": "True", "lastProbeTime": time_of_age(age)}
    return edited(migration, status={"conditions": [condition]})


REFUSED: dict[str, tuple[list[Object], Samples, Samples]] = {
    "no migration": ([], {}, {}),
    "one that waits for its turn": ([vmim()], {}, {}),
    "one that is refused, since the condition says so": ([refused(60)], {("ns1",): 1}, {("ns1",): 60}),
    "the oldest of two": ([refused(60), refused(400, "vm2")], {("ns1",): 2}, {("ns1",): 400}),
    "one whose condition has no time": ([vmim(refused=True, created=time_of_age(90))], {("ns1",): 1}, {("ns1",): 90}),
    "one that is being aborted": ([vmim(refused=True, abort=True)], {}, {}),
    "one that KubeVirt got past": ([vmim("Scheduling", refused=True)], {}, {}),
}


@sentences(REFUSED)
def test_refused_migrations(case: tuple[list[Object], Samples, Samples]) -> None:
    objects, count, oldest = case
    metrics = state(*objects)
    assert samples(metrics, "headroom_migrations_refused") == count
    assert samples(metrics, "headroom_migrations_refused_oldest_seconds") == oldest


def raised(*keys: str, hard: dict[str, str] | None = None) -> Object:
    return quota(hard, annotations=dict.fromkeys(keys or [by_name()], ENTRY))


LONG = "a-virtual-machine-whose-name-is-too-long-for-a-key-by-far"
MIGRATING: Samples = {("ns1", "migrating"): 1, ("ns1", "held"): 0}
HELD: Samples = {("ns1", "migrating"): 0, ("ns1", "held"): 1}
RAISED: dict[str, tuple[list[Object], Samples, Samples]] = {
    "a quota at its base": ([quota()], {}, {}),
    "a migration under way": ([raised(), vmim(created=time_of_age(30))], MIGRATING, {("ns1",): 30}),
    "an entry by uid": ([raised(by_uid()), vmim(created=time_of_age(30)), running_vmi()], MIGRATING, {("ns1",): 30}),
    "a hashed name": ([raised(migrating_key(LONG)), vmim(vm=LONG, created=time_of_age(30))], MIGRATING, {("ns1",): 30}),
    "a pod that a migration left behind": ([raised(), vmim("Succeeded", created=time_of_age(30))], HELD, {("ns1",): 0}),
    "an entry that nothing explains": ([raised()], HELD, {("ns1",): 0}),
}


@sentences(RAISED)
def test_entries_and_since_when_they_are_there(case: tuple[list[Object], Samples, Samples]) -> None:
    objects, entries, oldest = case
    metrics = state(*objects)
    assert samples(metrics, "headroom_quotas_managed") == {(): 1}
    assert samples(metrics, "headroom_quotas_raised") == {(): bool(entries)}
    assert samples(metrics, "headroom_quota_entries") == entries
    assert samples(metrics, "headroom_quota_oldest_entry_seconds") == oldest
    assert samples(metrics, "headroom_quota_added") == (ADDED if entries else {})


def test_an_entry_gets_older_while_it_stands_and_no_longer() -> None:
    now = [NOW]
    quotas: list[Object] = [raised()]
    metrics = StateMetrics(Source(quotas=quotas_of(quotas)), clock=lambda: now[0])
    assert samples(metrics, "headroom_quota_oldest_entry_seconds") == {("ns1",): 0}
    now[0] += 50
    assert samples(metrics, "headroom_quota_oldest_entry_seconds") == {("ns1",): 50}
    quotas[:] = [quota()]
    assert samples(metrics, "headroom_quota_oldest_entry_seconds") == {}
    quotas[:] = [raised()]
    assert samples(metrics, "headroom_quota_oldest_entry_seconds") == {("ns1",): 0}


class quotas_of(Listed[Any]):
    """A list that changes."""

    def __init__(self, objects: list[Object]) -> None:
        self._now = objects

    def list(self, namespace: str = "") -> list[Any]:
        return self._now


def test_added_is_what_is_limited_with_the_compensation() -> None:
    annotations = {by_name(): ENTRY, "harvesterhci.io/migratingCompensation": '{"limits.memory":"1Gi"}'}
    metrics = state(quota({"limits.memory": "9Gi"}, annotations))
    assert samples(metrics, "headroom_quota_added") == {("ns1", "limits.memory"): 5.0 * 2**30}


def test_an_entry_that_cannot_be_read_adds_nothing() -> None:
    metrics = state(quota(annotations={by_name(): "garbage"}))
    assert samples(metrics, "headroom_quota_added") == {}
    assert samples(metrics, "headroom_quota_entries") == HELD


@pytest.mark.parametrize(
    ("used", "unused"),
    [("3", 2.0), ("4", 1.0), ("5", 0.0), ("9", 0.0), ("1", 2.0)],
    ids=["the base is full", "half of it", "all of it", "more than there is", "less than the base"],
)
def test_what_was_added_and_nothing_uses(used: str, unused: float) -> None:
    full = edited(raised(hard={"limits.cpu": "5"}), status={"used": {"limits.cpu": used}})
    assert samples(state(full), "headroom_quota_added_unused") == {("ns1", "limits.cpu"): unused}


def test_raised_quotas_are_counted_whose_limits_are_not_enforced() -> None:
    limits = {"limits.cpu": "5", "limits.memory": "9980344313"}
    for enforced, count in ((limits, 0), ({"limits.cpu": "3", "limits.memory": "5000Mi"}, 1)):
        metrics = state(edited(raised(hard=limits), status={"hard": enforced}), quota(name="at-rest"))
        assert samples(metrics, "headroom_quotas_not_enforced") == {(): count}


def test_what_a_lock_window_adds() -> None:
    originals = Record({"limits.cpu": "3"}, {"limits.cpu": "2"}).text("default-abc")
    metrics = state(quota({"limits.cpu": "5"}, {"headroom.harvesterhci.io/originals": originals}))
    assert samples(metrics, "headroom_quota_added") == {("ns1", "limits.cpu"): 2}
    assert samples(metrics, "headroom_quotas_raised") == {(): 1}


def test_series_are_bounded_however_many_namespaces_there_are() -> None:
    def elsewhere(number: int) -> Object:
        return edited(refused(float(number)), metadata={"namespace": f"ns{number:04}"})

    metrics = state(*(elsewhere(number) for number in range(1000)))
    counts = samples(metrics, "headroom_migrations_refused")
    assert counts is not None
    assert len(counts) == MOST_NAMESPACES + 1
    assert sum(counts.values()) == 1000
    assert samples(metrics, "headroom_migrations_refused_oldest_seconds") is not None
    assert (samples(metrics, "headroom_migrations_refused_oldest_seconds") or {})[(OTHERS,)] == 999


def configuration(name: str, **fields: Any) -> ValidatingWebhookConfiguration:
    webhooks = fields.pop("webhooks", [])
    registration = build(ValidatingWebhookConfiguration, name, namespace="", **fields)
    return msgspec.structs.replace(registration, webhooks=webhooks)


def test_locks_and_what_is_registered() -> None:
    selected = {"matchLabels": {"kubernetes.io/metadata.name": "ns1"}}
    lock = configuration(
        "lock.ns1.com",
        annotations={"headroom.harvesterhci.io/locked-since": time_of_age(70)},
        webhooks=[{"name": "lock.ns1.com", "namespaceSelector": selected}],
    )
    own_webhooks = configuration(
        WEBHOOK_CONFIGURATION_NAME, webhooks=[{"name": f"pods.{WEBHOOK_CONFIGURATION_NAME}", "failurePolicy": "Fail"}]
    )
    metrics = state(lock, own_webhooks, configuration("other"), lock_limit=120.0)
    assert samples(metrics, "headroom_mtq_locks_held") == {(): 1}
    assert samples(metrics, "headroom_mtq_oldest_lock_seconds") == {(): 70}
    assert samples(metrics, "headroom_mtq_lock_limit_seconds") == {(): 120}
    assert samples(metrics, "headroom_webhook_registered") == {("pods", "Fail"): 1}
    assert samples(state(locks=None), "headroom_mtq_locks_held") is None


def test_only_the_leader_exports_but_all_of_them_remember() -> None:
    leads, now = [False], [NOW]
    metrics = state(raised(), leads=lambda: leads[0], clock=lambda: now[0])
    assert list(metrics.collect()) == []
    leads[0], now[0] = True, NOW + 5
    assert samples(metrics, "headroom_quota_oldest_entry_seconds") == {("ns1",): 5}


def test_a_kind_that_cannot_be_read_is_not_zero() -> None:
    class Forbidden(Listed[Any]):
        def list(self, namespace: str = "") -> list[Any]:
            raise CacheForbidden("resourcequotas", "no rights")

    registry = CollectorRegistry()
    registry.register(StateMetrics(Source(quotas=Forbidden())))
    assert list(registry.collect()) == []


def observed() -> float:
    (family,) = WAIT.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_sum"))


WAITS: dict[str, tuple[str, str, bool, float]] = {
    "its target pod is created": ("Pending", "Scheduling", True, 12),
    "its first event is late": ("", "Running", True, 12),
    "it waits on": ("Pending", "Pending", True, 0),
    "it fails while it waits": ("Pending", "Failed", True, 0),
    "it was past that": ("Scheduling", "Running", True, 0),
    "another replica leads": ("Pending", "Scheduling", False, 0),
}


@sentences(WAITS)
def test_how_long_a_migration_waited(case: tuple[str, str, bool, float]) -> None:
    first_phase, second_phase, leads, seconds = case
    observed_migrations: Iterable[Any] = (vmim(first_phase), vmim(second_phase, created=time_of_age(12)))
    was = observed()
    observe_wait(lambda: leads, clock=lambda: NOW).on_update(*observed_migrations)
    assert observed() - was == seconds
