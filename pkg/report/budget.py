"""Reports about namespaces with a budget: what is raised, for whom, and why a migration waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import field

from kubeloop.api.meta import rfc3339
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.report.snapshot import Document, Snapshot
from pkg.util.kubevirt.migration import is_refused
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed, WindowPolicy
from pkg.util.managedtenantquota.model import observe as observe_namespace
from pkg.util.managedtenantquota.window import Window

_AT_ONCE = WindowPolicy(cache_delay=0.0, crowding=0.0)
"""A report shows a shortage without waiting whether it lasts."""


class Raised(Document, frozen=True):
    """A quota that is raised, or about to be: its limits now and as they were."""

    quota: str
    hard: dict[str, Any]
    original: dict[str, Any]
    migrations: Sequence[str]


class Locked(Document, frozen=True):
    """The lock of a namespace. `since` is RFC 3339."""

    name: str
    since: str
    holder: str
    reason: str = field(name="for")


class BudgetReport(Document, frozen=True):
    """A namespace with a migration budget. `additional` is what the budget may add; `problems` are sentences for
    people."""

    namespace: str
    budgets: Sequence[str]
    additional: dict[str, Any]
    lock: Locked | None
    raised: Sequence[Raised]
    problems: Sequence[str]


def report_namespaces(snapshot: Snapshot) -> list[BudgetReport]:
    """Returns the report of every namespace that has a budget, or is locked, by name."""
    names = {budget.namespace for budget in snapshot.budgets} | _locks(snapshot).keys()
    names_here = names & {namespace.name for namespace in snapshot.namespaces}
    return [report_namespace(observe(snapshot, name)) for name in sorted(names_here)]


def report_namespace(observed: Observed) -> BudgetReport:
    """Returns the report about the namespace at this moment."""
    window = Window(observed, _AT_ONCE)
    hards = {quota.name: quota.hard for quota in observed.quotas}
    released = window.released_migrations.items()
    return BudgetReport(
        namespace=observed.namespace,
        budgets=sorted(budget.name for budget in observed.budgets),
        additional=dict(observed.budgets[0].additional) if observed.budgets else {},
        lock=_locked(observed.lock) if observed.lock else None,
        raised=[
            Raised(name, hards.get(name, {}), dict(record.hard), sorted(vm for vm, names in released if name in names))
            for name, record in (window.status_records | window.records).items()
        ],
        problems=[problem.message for problem in window.problems],
    )


def _locked(lock: Lock) -> Locked:
    return Locked(lock.configuration.name, rfc3339(lock.since, "microseconds"), lock.owner, lock.reason)


def wait_reasons(observed: Observed, vmim: VirtualMachineInstanceMigration) -> list[str]:
    """Returns why a migration of the namespace has no target pod yet, or what is done about it."""
    window = Window(observed, _AT_ONCE)
    problems = [
        problem.message
        for problem in window.problems
        if vmim in problem.objects or not any(obj in observed.facts.migrations for obj in problem.objects)
    ]
    refused = next((target for target in window.refused_targets if target.migration.uid == vmim.uid), None)
    if refused and refused in window.targets:
        stage = "the namespace is locked, they are raised, KubeVirt will create it"
        if window.lock is None:
            stage = "the namespace is about to be locked"
        elif window.next_to_raise() is not None:
            stage = "the namespace is locked, they are about to be raised"
        return [*problems, f"resource quotas {', '.join(refused.blocking)} refuse its target pod: {stage}"]
    if problems:
        return problems
    if refused and refused.wait_reason:
        return [refused.wait_reason]
    if is_refused(vmim):
        return ["resource quota refused its target pod, but would allow it now: KubeVirt will retry"]
    return ["resource quota has not refused its target pod: it waits for KubeVirt"]


def observe(snapshot: Snapshot, namespace: str) -> Observed:
    """Returns the input of a decision about the namespace, except whether it can be locked."""
    return observe_namespace(snapshot.observer, _locks(snapshot).get(namespace), namespace, snapshot.now)


def _locks(snapshot: Snapshot) -> dict[str, Lock]:
    """Returns the locks by their namespaces."""
    return {lock.namespace: lock for lock in map(recognise, snapshot.locks) if lock is not None}
