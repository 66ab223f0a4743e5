"""The report about a namespace with a budget: what is raised, for whom, and why a migration waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pkg.util.kubevirt.migration import is_finished, is_refused
from pkg.util.managedtenantquota.lock import Lock, timestamp
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.target import target_pods
from pkg.util.managedtenantquota.window import Window, window_of


@dataclass(frozen=True, slots=True)
class Raised:
    """A quota that is raised, or about to be: its limits now and as they were."""

    quota: str
    hard: dict[str, Any]
    original: dict[str, Any]
    migrations: Sequence[str]


@dataclass(frozen=True, slots=True)
class Report:
    """A namespace. `additional` is what its budget may add; `problems` are sentences for people."""

    namespace: str
    budgets: Sequence[str]
    additional: dict[str, Any]
    lock: Lock | None
    raised: Sequence[Raised]
    problems: Sequence[str]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        lock = self.lock
        return {
            "namespace": self.namespace,
            "budgets": list(self.budgets),
            "additional": self.additional,
            "lock": lock
            and {
                "name": lock.name,
                "since": timestamp(lock.since),
                "holder": lock.holder,
                "for": lock.reason,
            },
            "raised": [
                {
                    "quota": raised.quota,
                    "hard": raised.hard,
                    "original": raised.original,
                    "migrations": list(raised.migrations),
                }
                for raised in self.raised
            ],
            "problems": list(self.problems),
        }


def report(observed: Observed, policy: Policy | None = None) -> Report:
    """The namespace at this moment. Raises QuantityError when the journal holds no quantities."""
    window = window_of(observed, _at_once(policy))
    raised = []
    for journal in window.saved:
        for name, original in journal.originals.items():
            quota = window.quota(name)
            blocked = sorted(each for each, quotas in journal.members.items() if name in quotas)
            raised.append(Raised(name, quota.hard if quota else {}, original.hard or {}, blocked))
    return Report(
        namespace=observed.namespace,
        budgets=sorted(budget.name for budget in observed.budgets),
        additional=dict(window.journal.additional) if window.journals else {},
        lock=observed.lock,
        raised=raised,
        problems=[problem.message for problem in window.problems],
    )


def why_it_waits(observed: Observed, migration: str, policy: Policy | None = None) -> list[str]:
    """Why the migration of that name has no target pod yet, or what is done about it; empty when it does not wait."""
    found = next((each for each in observed.surroundings.migrations if each.name == migration), None)
    if found is None or is_finished(found):
        return []
    vmi = observed.surroundings.instances.get(found.spec.vmi_name)
    if vmi is None:
        return [f"VM {found.spec.vmi_name} does not run"]
    if target_pods(found, vmi, observed.surroundings.pods):
        return []
    window = window_of(observed, _at_once(policy))
    said = [
        problem.message
        for problem in window.problems
        if found in problem.about or not any(obj in observed.surroundings.migrations for obj in problem.about)
    ]
    wanted = next((each for each in window.wanted if each.migration.uid == found.uid), None)
    if wanted is not None:
        return [
            *said,
            f"resource quotas {', '.join(wanted.blocking)} refuse its target pod: {_stage(window)}",
        ]
    if said:
        return said
    if found.name in window.waiting:
        return [window.waiting[found.name]]
    if is_refused(found):
        return ["resource quota refused its target pod, but has room for it now: KubeVirt will retry"]
    return ["resource quota has not refused its target pod: it waits for KubeVirt"]


def _stage(window: Window) -> str:
    if not window.locked:
        return "the namespace is about to be locked"
    if window.unsaved() or window.next_to_raise() is not None:
        return "the namespace is locked, they are about to be raised"
    return "the namespace is locked, they are raised, KubeVirt will create it"


def _at_once(policy: Policy | None) -> Policy:
    """A report shows a shortage without waiting whether it lasts."""
    return replace(policy or Policy(), shortage=0.0)
