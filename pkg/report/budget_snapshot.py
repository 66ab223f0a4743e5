"""Reports for namespaces with a budget: what is raised, and why a migration waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.budget import Report, report, why_it_waits
from pkg.report.explain import Explanation, Verdict
from pkg.report.fit import asked_for, with_migrations
from pkg.report.snapshot import Snapshot
from pkg.util import constants
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.target import surroundings
from pkg.util.managedtenantquota.window import window_of


def reports(snapshot: Snapshot) -> list[Report]:
    """Every namespace that has a budget, or is locked, by name."""
    locks = filter(None, map(recognise, snapshot.locks))
    names = {budget.namespace for budget in snapshot.budgets} | {lock.namespace for lock in locks}
    shown = names & {namespace.name for namespace in snapshot.namespaces}
    return [report(observe(snapshot, name)) for name in sorted(shown)]


def observe(snapshot: Snapshot, namespace: str) -> Observed:
    """The input of a decision about the namespace, except whether it can be locked."""
    locks = [lock for lock in map(recognise, snapshot.locks) if lock and lock.namespace == namespace]
    started = {pod.labels.get(constants.LABEL_MIGRATION_JOB_UID) for pod in snapshot.pods}
    return Observed(
        namespace=namespace,
        exists=any(found.name == namespace and not found.deleting for found in snapshot.namespaces),
        budgets=[budget for budget in snapshot.budgets if budget.namespace == namespace],
        lock=min(locks, key=lambda lock: lock.name, default=None),
        quotas=snapshot.quotas_of(namespace),
        surroundings=surroundings(snapshot.source, namespace, lambda migration: migration.uid in started),
        now=snapshot.now,
    )


def managed(snapshot: Snapshot, instance: VirtualMachineInstance, found: Explanation) -> Explanation:
    """The explanation as it is in a namespace with a budget; unchanged in any other."""
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
    wanted = window_of(seen, Policy(shortage=0.0)).wanted
    blocking = next((each.blocking for each in wanted if each.migration.uid == asked.uid), ())
    if not blocking:
        return _with(found, why_it_waits(seen, asked.name))
    budgets = ", ".join(sorted(budget.name for budget in seen.budgets))
    summary = (
        "it does not migrate; a target pod would not fit, "
        f"{budgets} would be added to {', '.join(blocking)} under a lock"
    )
    return replace(found, verdict=Verdict.COULD_WITH_HEADROOM, summary=summary)


def _with(found: Explanation, said: Sequence[str]) -> Explanation:
    return replace(found, summary="; ".join([found.summary, *said]))
