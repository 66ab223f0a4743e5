"""`headroom status` and `explain` in namespaces with a budget: what is raised for whom, why a migration waits."""

from collections.abc import Sequence
from typing import Any

import msgspec

from kubeloop.api.core import Namespace, ValidatingWebhookConfiguration
from pkg.api.harvesterhci import Setting
from pkg.report.explain import Verdict, explain
from pkg.report.installation import Installed
from pkg.report.plan import NodeCapacity, plan_evacuations, plan_migrations
from pkg.report.snapshot import Snapshot
from pkg.report.status import AT_ONCE, report_namespace, report_namespaces
from pkg.util.managedtenantquota.lock import lock_body
from pkg.util.managedtenantquota.model import Observed, WindowTimers
from pkg.util.managedtenantquota.sequence import Window
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import running_vmi, vmim
from tests.pkg.util.managedtenantquota.objects import (
    FULL,
    HOOK,
    NOW,
    RAISED,
    RECORD,
    TWICE,
    budget,
    lock,
    observed,
    quota,
    refused,
    source,
    surroundings,
)

SAVED = {"quota": FULL}


WAITING: dict[str, tuple[Observed, str]] = {
    "nothing to do with quota": (observed(around=surroundings([vmim("Pending")])), "waits for KubeVirt"),
    "there is room by now": (observed([quota(TWICE)]), "would allow it now"),
    "another migration of its VM is first": (
        observed(
            [quota(TWICE)], around=surroundings([refused(), refused(name="of-before", created="2025-12-31T00:00:00Z")])
        ),
        "migration of-before of the same VM is first",
    ),
    "about to be locked": (observed(), "quotas quota refuse its target pod: the namespace is about to be"),
    "locked": (observed(lock=lock()), "the namespace is locked until KubeVirt has created it"),
    "the budget does not suffice": (
        observed(budgets=[budget({"limits.cpu": "1"})]),
        "limits.memory of quota quota: requested",
    ),
    "two budgets": (observed(budgets=[budget(), budget(name="b2")]), "more than one (b2, budget)"),
    "it cannot be locked": (observed(why_not="no webhook"), "cannot be locked"),
    "the parallel limits": (
        observed(around=surroundings(running=["a"] * 5)),
        "KubeVirt's limits: 5 migrations run, 5 may",
    ),
    "it rests": (observed(timers=WindowTimers(paused={"uid-migration-of-vm1": NOW + 60})), "it is retried in 60 s"),
    "the other strategy's": (observed([quota(annotations={"harvesterhci.io/migrating-vm1": "{}"})]), "by annotations"),
}


@sentences(WAITING)
def test_why_it_waits(case: tuple[Observed, str]) -> None:
    observation, expected = case
    (migration,) = (vmim for vmim in observation.facts.migrations if vmim.name == "migration-of-vm1")
    (reason,) = Window(observation, AT_ONCE).wait_reasons(migration)
    assert expected in reason


def test_another_migrations_shortage_is_not_its_own() -> None:
    pending = vmim("Pending", "vm2")
    around = surroundings([refused(), pending])
    (reason,) = Window(observed(budgets=[budget({})], around=around), AT_ONCE).wait_reasons(pending)
    assert reason == "resource quota has not refused its target pod: it waits for KubeVirt"


def test_a_namespace_at_rest_and_one_without_a_budget() -> None:
    paused = report_namespace(observed(around=surroundings([])))
    assert (paused.lock, paused.raised, paused.problems) == (None, [], [])
    assert report_namespace(observed(budgets=[])).additional == {}


def test_a_quota_that_is_gone_is_shown_by_what_it_was() -> None:
    (raised,) = report_namespace(observed([], [budget(saved=SAVED)], lock=lock())).raised
    assert (raised.hard, raised.original) == ({}, FULL)


def locked() -> ValidatingWebhookConfiguration:
    body = lock_body("ns1", HOOK, now=NOW - 1, owner="headroom (me) on host", reason="vm1")
    return msgspec.convert(body, ValidatingWebhookConfiguration)


def snapshot(migrations: Sequence[Any] = (), **fields: Any) -> Snapshot:
    ratio = {"metadata": {"name": "additional-guest-memory-overhead-ratio"}, "value": "1.5"}
    lists: dict[str, Any] = {
        "namespaces": [msgspec.convert({"metadata": {"name": "ns1"}}, Namespace)],
        "quotas": [quota()],
        "instances": [running_vmi()],
        "pods": [source()],
        "settings": [msgspec.convert(ratio, Setting)],
        "budgets": [budget()],
    }
    return Snapshot(now=NOW, migrations=migrations, **(lists | fields))


def in_the_middle() -> Snapshot:
    return snapshot(
        [refused()],
        quotas=[quota(RAISED, annotations=RECORD)],
        budgets=[budget(saved={"quota": FULL})],
        locks=[locked()],
    )


EXPLAINED = {
    "it could migrate with what the budget adds": (
        snapshot(),
        Verdict.COULD_WITH_HEADROOM,
        "budget would add limits.cpu 2015m, limits.memory 4.5Gi under a lock",
    ),
    "the budget does not suffice": (
        snapshot(budgets=[budget({"limits.cpu": "1"})]),
        Verdict.COULD_NOT_MIGRATE,
        "nothing: budget may add limits.cpu 1, limits.cpu 2015m",
    ),
    "it fits anyway": (snapshot(quotas=[quota(TWICE)]), Verdict.COULD_MIGRATE, ""),
    "its migration waits for its window": (
        snapshot([refused()]),
        Verdict.WAITS_FOR_QUOTA,
        "refuse its target pod: the namespace is about to be locked",
    ),
    "and Kubernetes has not copied the limits yet": (
        snapshot([refused()], quotas=[edited(quota(), status={"hard": {**FULL, "limits.cpu": "2010m"}})]),
        Verdict.WAITS_FOR_QUOTA,
        "refuse its target pod: the namespace is about to be locked",
    ),
    "its quotas are raised": (in_the_middle(), Verdict.WAITS_FOR_KUBEVIRT, ""),
}


@sentences(EXPLAINED)
def test_a_vm_under_a_budget(case: tuple[Snapshot, Verdict, str]) -> None:
    observation, verdict, reason = case
    explanation = explain(observation, running_vmi())
    assert explanation.verdict is verdict
    assert reason in "; ".join([explanation.summary, *(fit.action for fit in explanation.fits)])


def test_the_status_of_a_namespace_in_the_middle_of_it() -> None:
    (namespace_report,) = report_namespaces(in_the_middle())
    assert namespace_report.document() == {
        "namespace": "ns1",
        "budgets": ["budget"],
        "additional": {"limits.cpu": "3", "limits.memory": "5Gi"},
        "lock": {
            "name": "lock.ns1.com",
            "since": "2027-01-15T07:59:59.000000Z",
            "holder": "headroom (me) on host",
            "for": "vm1",
        },
        "raised": [{"quota": "quota", "hard": RAISED, "original": FULL, "migrations": ["migration-of-vm1"]}],
        "problems": [],
    }


def test_a_lock_without_a_budget_is_shown_of_the_namespace_alone() -> None:
    (locked_namespace,) = report_namespaces(snapshot(budgets=[], locks=[locked()]))
    assert locked_namespace.lock is not None
    assert report_namespaces(snapshot(namespaces=[])) == []
    assert report_namespaces(snapshot(budgets=[])) == []


PLANNED = {
    "the budget suffices": (snapshot(), True, "budget would add limits.cpu 2015m, limits.memory 4.5Gi under a lock"),
    "the budget does not": (
        snapshot(budgets=[budget({"limits.cpu": "1"})]),
        False,
        "nothing: budget may add limits.cpu 1, limits.cpu 2015m, limits.memory 4.5Gi are missing",
    ),
    "two budgets add nothing": (
        snapshot(budgets=[budget(), budget(name="b2")]),
        False,
        "nothing: the namespace has more than one",
    ),
    "it fits anyway": (snapshot(quotas=[quota(TWICE)]), True, "nothing"),
    "the controller does not serve the namespace": (
        snapshot(installed=Installed(served=["shop-*"])),
        False,
        "nothing: headroom was started with --only-namespace shop-*",
    ),
}


@sentences(PLANNED)
def test_the_plan_of_a_vm_under_a_budget(case: tuple[Snapshot, bool, str]) -> None:
    observation, fits, action = case
    (vm,) = plan_migrations(observation).vms
    assert (vm.fits_with_headroom, vm.fits[0].action.startswith(action)) == (fits, True), vm.fits[0].action


def test_of_a_node_one_vm_after_another_has_the_budget() -> None:
    """Together they ask for more than the budget may add at once."""
    instances = [running_vmi(name, node="node-1") for name in ("vm1", "vm2")]
    pods = [source(instance.name) for instance in instances]
    full = quota({"limits.cpu": "4030m", "limits.memory": str(2 * 4797464313)}, TWICE)
    (migration_plan,) = plan_evacuations(
        snapshot(instances=instances, pods=pods, quotas=[full]), ["node-1"], NodeCapacity()
    )
    (fit,) = migration_plan.together
    assert [vm.fits_with_headroom for vm in migration_plan.vms] == [True, True]
    assert (fit.fits_then, fit.action) == (True, "one VM after another, under a lock each")
