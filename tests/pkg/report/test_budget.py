"""What people are told: what is raised for whom, and why a migration waits."""

from __future__ import annotations

from dataclasses import dataclass

from pkg.report.budget import report, why_it_waits
from pkg.util.managedtenantquota.model import Memory, Observed
from tests.decisions import sentences
from tests.objects import vmim
from tests.pkg.util.managedtenantquota.objects import (
    ENOUGH,
    FULL,
    NOW,
    RAISED,
    TWICE,
    budget,
    lock,
    observed,
    quota,
    refused,
    source,
    surroundings,
    target,
)

SAVED = {"quota": FULL}


@dataclass
class Case:
    seen: Observed
    says: str


@sentences(
    {
        "nothing to do with quota": Case(
            observed(around=surroundings([vmim("Pending")])), "waits for KubeVirt"
        ),
        "there is room by now": Case(observed([quota(TWICE)]), "has room for it now"),
        "about to be locked": Case(
            observed(), "quotas quota refuse its target pod: the namespace is about to be"
        ),
        "about to be raised": Case(observed(lock=lock()), "is locked, they are about to be raised"),
        "raised": Case(
            observed([quota(RAISED)], [budget(saved=SAVED)], lock=lock()),
            "they are raised, KubeVirt will create it",
        ),
        "the budget does not suffice": Case(
            observed(budgets=[budget({"limits.cpu": "1"})]), "limits.memory of quota quota: requested"
        ),
        "two budgets": Case(observed(budgets=[budget(), budget(name="b2")]), "more than one (b2, budget)"),
        "it cannot be locked": Case(observed(why_not="no webhook"), "cannot be locked"),
        "the parallel limits": Case(
            observed(around=surroundings(running=["a"] * 5)), "KubeVirt's limits: 5 migrations run, 5 may"
        ),
        "it rests": Case(
            observed(memory=Memory(resting={"uid-migration-of-vm1": NOW + 60})), "it is retried in 60 s"
        ),
        "the other strategy's": Case(
            observed([quota(annotations={"harvesterhci.io/migrating-vm1": "{}"})]), "by annotations"
        ),
        "the VM does not run": Case(observed(around=surroundings(instances=[])), "VM vm1 does not run"),
    }
)
def test_why_it_waits(case: Case) -> None:
    (said,) = why_it_waits(case.seen, "migration-of-vm1")
    assert case.says in said


def test_what_does_not_wait() -> None:
    migration = refused()
    there = surroundings([migration], pods=[source(), target(migration)])
    assert why_it_waits(observed(around=there), "migration-of-vm1") == []
    assert why_it_waits(observed(around=surroundings([vmim("Succeeded")])), "migration-of-vm1") == []
    assert why_it_waits(observed(), "unknown") == []


def test_another_migrations_shortage_is_not_its_own() -> None:
    around = surroundings([refused(), vmim("Pending", "vm2")])
    (said,) = why_it_waits(observed(budgets=[budget({})], around=around), "migration-of-vm2")
    assert said == "resource quota has not refused its target pod: it waits for KubeVirt"


def test_a_namespace_in_the_middle_of_it() -> None:
    found = report(observed([quota(RAISED)], [budget(saved=SAVED)], lock=lock()))
    assert (found.namespace, found.budgets, found.additional) == ("ns1", ["budget"], ENOUGH)
    assert found.lock == lock()
    (raised,) = found.raised
    assert (raised.quota, raised.hard, raised.original) == ("quota", RAISED, FULL)
    assert raised.migrations == ["migration-of-vm1"]
    assert found.problems == []


def test_a_namespace_at_rest_and_one_without_a_budget() -> None:
    resting = report(observed(around=surroundings([])))
    assert (resting.lock, resting.raised, resting.problems) == (None, [], [])
    assert report(observed(budgets=[])).additional == {}


def test_a_quota_that_is_gone_is_shown_by_what_it_was() -> None:
    (raised,) = report(observed([], [budget(saved=SAVED)], lock=lock())).raised
    assert (raised.hard, raised.original) == ({}, FULL)
