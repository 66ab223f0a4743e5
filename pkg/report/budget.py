"""Reports about namespaces with a budget: what is raised, for whom, and why a migration waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import field, structs

from kubeloop.api.meta import rfc3339
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.explain import Explanation, Verdict, explain
from pkg.report.fit import asked_for, with_migrations
from pkg.report.snapshot import Document, Snapshot
from pkg.util.kubevirt.migration import is_finished, is_refused
from pkg.util.kubevirt.sides import target_launchers
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.model import observe as observe_namespace
from pkg.util.managedtenantquota.window import Window

_AT_ONCE = Policy(shortage=0.0)
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


class Report(Document, frozen=True):
    """A namespace. `additional` is what its budget may add; `problems` are sentences for people."""

    namespace: str
    budgets: Sequence[str]
    additional: dict[str, Any]
    lock: Locked | None
    raised: Sequence[Raised]
    problems: Sequence[str]


def report(observed: Observed) -> Report:
    """The namespace at this moment."""
    window = Window(observed, _AT_ONCE)
    lock = observed.lock
    raised = []
    hards = {quota.name: quota.hard for quota in observed.quotas}
    for name, record in (window.said | window.records).items():
        blocked = sorted(each for each, quotas in window.members.items() if name in quotas)
        raised.append(Raised(name, hards.get(name, {}), dict(record.hard), blocked))
    return Report(
        namespace=observed.namespace,
        budgets=sorted(budget.name for budget in observed.budgets),
        additional=dict(observed.budgets[0].additional) if observed.budgets else {},
        lock=Locked(lock.configuration.name, rfc3339(lock.since, "microseconds"), lock.holder, lock.reason)
        if lock
        else None,
        raised=raised,
        problems=[problem.message for problem in window.problems],
    )


def why_it_waits(observed: Observed, migration: str) -> list[str]:
    """Why the migration of that name has no target pod yet, or what is done about it; empty when it does not wait."""
    found = next((each for each in observed.facts.migrations if each.name == migration), None)
    if found is None or is_finished(found):
        return []
    vmi = observed.facts.instances.get(found.spec.vmi_name)
    if vmi is None:
        return [f"VM {found.spec.vmi_name} does not run"]
    if target_launchers(found, vmi, observed.facts.pods):
        return []
    window = Window(observed, _AT_ONCE)
    said = [
        problem.message
        for problem in window.problems
        if found in problem.objects or not any(obj in observed.facts.migrations for obj in problem.objects)
    ]
    missing = next((each for each in window.missing if each.migration.uid == found.uid), None)
    if missing and missing in window.wanted:
        return [*said, f"resource quotas {', '.join(missing.blocking)} refuse its target pod: {_stage(window)}"]
    if said:
        return said
    if missing and missing.waits:
        return [missing.waits]
    if is_refused(found):
        return ["resource quota refused its target pod, but would allow it now: KubeVirt will retry"]
    return ["resource quota has not refused its target pod: it waits for KubeVirt"]


def _stage(window: Window) -> str:
    if window.lock is None:
        return "the namespace is about to be locked"
    if window.next_to_raise() is not None:
        return "the namespace is locked, they are about to be raised"
    return "the namespace is locked, they are raised, KubeVirt will create it"


def reports(snapshot: Snapshot) -> list[Report]:
    """Every namespace that has a budget, or is locked, by name."""
    locks = filter(None, map(recognise, snapshot.locks))
    names = {budget.namespace for budget in snapshot.budgets} | {lock.namespace for lock in locks}
    shown = names & {namespace.name for namespace in snapshot.namespaces}
    return [report(observe(snapshot, name)) for name in sorted(shown)]


def observe(snapshot: Snapshot, namespace: str) -> Observed:
    """The input of a decision about the namespace, except whether it can be locked."""
    locks = filter(None, map(recognise, snapshot.locks))
    lock = next((lock for lock in locks if lock.namespace == namespace), None)
    return observe_namespace(snapshot.observer, lock, namespace, snapshot.now)


def explained(snapshot: Snapshot, instance: VirtualMachineInstance) -> Explanation:
    """The VM of a VMI, in a namespace with a budget or without."""
    found = explain(snapshot, instance)
    if not any(budget.namespace == instance.namespace for budget in snapshot.budgets):
        return found
    if found.verdict is Verdict.WAITS_FOR_QUOTA and found.migration is not None:
        return _with(found, why_it_waits(observe(snapshot, instance.namespace), found.migration.name))
    if found.verdict is Verdict.COULD_NOT_MIGRATE:
        return _prospect(snapshot, instance, found)
    return found


def _prospect(snapshot: Snapshot, instance: VirtualMachineInstance, found: Explanation) -> Explanation:
    """A VM that does not migrate: what the budget would do for it."""
    asked = asked_for(instance)
    seen = observe(with_migrations(snapshot, [instance]), instance.namespace)
    wanted = Window(seen, _AT_ONCE).wanted
    blocking = next((each.blocking for each in wanted if each.migration.uid == asked.uid), ())
    if not blocking:
        return _with(found, why_it_waits(seen, asked.name))
    budgets = ", ".join(sorted(budget.name for budget in seen.budgets))
    summary = (
        "it does not migrate; a target pod would not fit, "
        f"{budgets} would be added to {', '.join(blocking)} under a lock"
    )
    return structs.replace(found, verdict=Verdict.COULD_WITH_HEADROOM, summary=summary)


def _with(found: Explanation, said: Sequence[str]) -> Explanation:
    return structs.replace(found, summary="; ".join([found.summary, *said]))
