"""What is going on in a namespace: the journal in the budget's status, the lock, and what both are for now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pkg.api.core import ResourceQuota, ResourceQuotaSpec
from pkg.api.meta import RawResourceList
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.managedtenantquota.budget import is_enforced, to_raise, to_restore
from pkg.util.managedtenantquota.constants import (
    EVENT_LOCK_LIMIT,
    EVENT_LOCK_UNAVAILABLE,
    EVENT_SEVERAL_BUDGETS,
)
from pkg.util.managedtenantquota.model import Memory, Observed, Policy, Problem
from pkg.util.managedtenantquota.release import Releasable, Releases, releases

_UNLOCK_GRACE = 5.0
"""Seconds beyond the lock's limit in which quota admission may still go by the raised limits."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What a budget's status holds of the quotas that are raised."""

    budget: VirtualMachineMigrationResourceQuota
    originals: Mapping[str, ResourceQuotaSpec]
    members: Mapping[str, Sequence[str]]
    additional: RawResourceList

    @property
    def empty(self) -> bool:
        """Nothing is saved. What was added alone is no reason to look: upstream always keeps that in the status."""
        return not self.originals and not self.members


def journal_of(budget: VirtualMachineMigrationResourceQuota) -> Journal:
    """Reads the status. What upstream's controller left there is understood too."""
    status = budget.status
    originals = {saved.name: saved.spec for saved in status.original_blocking_resource_quotas or ()}
    members = {
        name: tuple(quotas or ())
        for name, quotas in (status.migrations_to_blocking_resource_quotas or {}).items()
    }
    added = status.additional_migration_resources if originals else None
    return Journal(budget, originals, members, added or budget.additional)


@dataclass(frozen=True, slots=True)
class Window:
    """The namespace as the table of `sequence` looks at it.

    `wanted` is empty when the window, if one is open, is to be closed.
    """

    observed: Observed
    policy: Policy
    journals: Sequence[Journal]
    wanted: Sequence[Releasable]
    problems: Sequence[Problem] = ()
    memory: Memory = field(default_factory=Memory)
    look_again: float | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)

    @property
    def journal(self) -> Journal:
        """The only one; IndexError when there is none, and then nothing is wanted."""
        return self.journals[0]

    @property
    def saved(self) -> Sequence[Journal]:
        """The journals that hold something."""
        return [journal for journal in self.journals if not journal.empty]

    @property
    def age(self) -> float:
        """Seconds since the lock was made, 0 without one. A clock that was set back must not keep a lock for ever."""
        lock = self.observed.lock
        return abs(self.observed.now - lock.since) if lock else 0.0

    @property
    def locked(self) -> bool:
        return self.observed.lock is not None

    def quota(self, name: str) -> ResourceQuota | None:
        return next((quota for quota in self.observed.quotas if quota.name == name), None)

    @property
    def blocking(self) -> Sequence[str]:
        """The quotas that the window raises, by name."""
        return sorted({name for found in self.wanted for name in found.blocking})

    def unsaved(self) -> bool:
        """Whether the journal lacks a quota, or a migration that shares the window."""
        journal = self.journal
        members = {found.migration.name for found in self.wanted}
        return not journal.originals.keys() >= set(self.blocking) or not journal.members.keys() >= members

    def next_to_raise(self) -> tuple[ResourceQuota, dict[str, str]] | None:
        """A quota that still says what it said originally, and what it shall say."""
        for name in self.blocking:
            quota, original = self.quota(name), self.journal.originals[name]
            if quota is not None:
                change = to_raise(quota.hard, original.hard or {}, self.journal.additional)
                if change:
                    return quota, change
        return None

    def next_to_restore(self) -> tuple[ResourceQuota, dict[str, str]] | None:
        """A quota that says more than it said originally, and what it shall say again."""
        for journal in self.saved:
            for name, original in journal.originals.items():
                quota = self.quota(name)
                if quota is None:
                    continue
                change = to_restore(quota.hard, original.hard or {}, journal.additional, locked=self.locked)
                if change:
                    return quota, change
        return None

    def is_in_force(self) -> bool:
        """Whether quota admission goes by the limits that were restored. Not waited for longer than a lock may last."""
        if self.age >= self.policy.lock_limit + _UNLOCK_GRACE:
            return True
        quotas = [(self.quota(name), journal) for journal in self.saved for name in journal.originals]
        return all(
            is_enforced(quota.hard, quota.status.hard or {}, journal.additional)
            for quota, journal in quotas
            if quota is not None
        )


def look(observed: Observed, policy: Policy) -> Window:
    """Work out what the namespace needs. Raises QuantityError for a journal that is garbage."""
    journals = [journal_of(budget) for budget in observed.budgets]
    if not observed.exists or not journals:
        return Window(observed, policy, journals, ())
    if len(journals) > 1:
        return Window(observed, policy, journals, (), [_several(observed)], observed.memory)
    journal = journals[0]
    if journal.budget.deleting:
        return Window(observed, policy, journals, ())
    found = releases(observed, policy, journal.additional, journal.originals)
    memory = Memory(found.short_since or {}, _still_resting(observed))
    window = Window(observed, policy, journals, (), found.problems, memory, found.look_again, found.waiting)
    return _with_purpose(window, journal, found)


def _with_purpose(window: Window, journal: Journal, found: Releases) -> Window:
    """What of the releasable the window is opened, or kept open, for."""
    observed, policy = window.observed, window.policy
    wanted = [*found.releasable]
    if observed.lock is None:
        if not journal.empty:
            wanted = []  # somebody took the lock away: first back to what was, then anew
    elif window.age >= policy.lock_limit:
        return _at_the_limit(window, wanted)
    elif window.age >= policy.joining:
        wanted = [each for each in wanted if each.migration.name in journal.members]
    if wanted and not observed.can_lock:
        return _replaced(window, (), _no_lock(observed), window.memory, policy.sweep)
    return _replaced(window, wanted, None, window.memory, window.look_again)


def _at_the_limit(window: Window, wanted: Sequence[Releasable]) -> Window:
    """The target pods did not come in time.

    When everything was raised for them, they are left alone for a while: otherwise the namespace would be locked again
    at once, and so for ever. A window that nobody looked after, because we did not run, says nothing about them.
    """
    observed, policy = window.observed, window.policy
    if not wanted:
        return window
    opened = _replaced(window, wanted, None, window.memory, None)
    was_raised = not opened.unsaved() and opened.next_to_raise() is None
    until = observed.now + policy.rest
    tired = {each.migration.uid: until for each in wanted} if was_raised else {}
    resting = {**window.memory.resting, **tired}
    names = ", ".join(each.migration.name for each in wanted)
    message = (
        f"namespace {observed.namespace} was locked for {policy.lock_limit:g} s and no target pod came for {names}: "
        "the quotas are restored and the namespace is unlocked"
        + (f", the next try is in {policy.rest:g} s" if was_raised else "")
    )
    about = [*(each.migration for each in wanted), *observed.budgets]
    since = observed.lock.since if observed.lock else 0.0
    problem = Problem(EVENT_LOCK_LIMIT, message, about, f"{EVENT_LOCK_LIMIT}/{since}")
    memory = Memory(window.memory.short_since, resting)
    return _replaced(window, (), problem, memory, policy.rest if was_raised else window.look_again)


def _still_resting(observed: Observed) -> dict[str, float]:
    return {uid: until for uid, until in observed.memory.resting.items() if until > observed.now}


def _several(observed: Observed) -> Problem:
    names = ", ".join(sorted(budget.name for budget in observed.budgets))
    message = (
        f"namespace {observed.namespace} has more than one ({names}): none of them is used until one is left"
    )
    return Problem(EVENT_SEVERAL_BUDGETS, message, list(observed.budgets), f"{EVENT_SEVERAL_BUDGETS}/{names}")


def _no_lock(observed: Observed) -> Problem:
    message = (
        f"namespace {observed.namespace} cannot be locked, its quotas are not raised: {observed.why_not}"
    )
    return Problem(
        EVENT_LOCK_UNAVAILABLE,
        message,
        list(observed.budgets),
        f"{EVENT_LOCK_UNAVAILABLE}/{observed.why_not}",
    )


def _replaced(
    window: Window,
    wanted: Sequence[Releasable],
    problem: Problem | None,
    memory: Memory,
    look_again: float | None,
) -> Window:
    problems = [*window.problems, *([problem] if problem else [])]
    return replace(window, wanted=wanted, problems=problems, memory=memory, look_again=look_again)
