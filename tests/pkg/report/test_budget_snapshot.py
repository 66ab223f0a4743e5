"""`headroom status` and `headroom explain` in namespaces with a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.api.core import Namespace
from pkg.api.harvesterhci import Setting
from pkg.report.budget_snapshot import managed, reports
from pkg.report.explain import Explanation, Verdict, explain
from pkg.report.snapshot import Snapshot
from pkg.util.managedtenantquota.lock import lock_body
from tests.objects import running_vmi, vmim
from tests.pkg.util.managedtenantquota.objects import (
    FULL,
    HOOK,
    NOW,
    RAISED,
    TWICE,
    budget,
    quota,
    refused,
    source,
)


def locked() -> ValidatingWebhookConfiguration:
    body = lock_body("ns1", HOOK, now=NOW - 1, holder="headroom (me) on host", reason="vm1")
    return msgspec.convert(body, ValidatingWebhookConfiguration)


def snapshot(migrations: Sequence[Any] = (), **given: Any) -> Snapshot:
    ratio = {"metadata": {"name": "additional-guest-memory-overhead-ratio"}, "value": "1.5"}
    lists: dict[str, Any] = {
        "namespaces": [msgspec.convert({"metadata": {"name": "ns1"}}, Namespace)],
        "quotas": [quota()],
        "instances": [running_vmi()],
        "pods": [source()],
        "settings": [msgspec.convert(ratio, Setting)],
        "budgets": [budget()],
    }
    return Snapshot(now=NOW, migrations=migrations, **(lists | given))


def explained(found: Snapshot) -> Explanation:
    return managed(found, running_vmi(), explain(found, running_vmi()))


def test_a_vm_that_does_not_migrate_could_with_what_the_budget_adds() -> None:
    found = explained(snapshot())
    assert found.verdict is Verdict.COULD_WITH_HEADROOM
    assert found.summary.endswith("budget would be added to quota under a lock")


def test_one_that_the_budget_does_not_suffice_for() -> None:
    found = explained(snapshot(budgets=[budget({"limits.cpu": "1"})]))
    assert found.verdict is Verdict.COULD_NOT_MIGRATE
    assert "does not have enough resources" in found.summary


def test_one_that_fits_anyway() -> None:
    assert explained(snapshot(quotas=[quota(TWICE)])).verdict is Verdict.COULD_MIGRATE


def test_a_migration_that_waits_for_its_window() -> None:
    found = explained(snapshot([refused()]))
    assert found.verdict is Verdict.WAITS_FOR_QUOTA
    assert found.summary.endswith("refuse its target pod: the namespace is about to be locked")


def test_a_migration_whose_quotas_are_raised_waits_for_kubevirt() -> None:
    given = {"quotas": [quota(RAISED)], "budgets": [budget(saved={"quota": FULL})], "locks": [locked()]}
    assert explained(snapshot([refused()], **given)).verdict is Verdict.WAITS_FOR_KUBEVIRT


def test_one_that_runs_is_explained_as_everywhere() -> None:
    running = snapshot([vmim("Running")])
    assert explained(running) == explain(running, running_vmi())


def test_a_namespace_without_a_budget_is_explained_as_everywhere() -> None:
    plain = snapshot([refused()], budgets=[])
    assert explained(plain) == explain(plain, running_vmi())


def test_the_status_of_a_namespace_in_the_middle_of_it() -> None:
    given = {"quotas": [quota(RAISED)], "budgets": [budget(saved={"quota": FULL})], "locks": [locked()]}
    (found,) = reports(snapshot([refused()], **given))
    assert found.document() == {
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


def test_a_lock_without_a_budget_is_shown_and_a_namespace_that_was_not_asked_for_is_not() -> None:
    assert [found.lock is not None for found in reports(snapshot(budgets=[], locks=[locked()]))] == [True]
    assert reports(snapshot(namespaces=[])) == []
    assert reports(snapshot(budgets=[])) == []


def test_a_namespace_at_rest() -> None:
    (found,) = reports(snapshot())
    assert found.document()["lock"] is None
    assert found.document()["raised"] == []
