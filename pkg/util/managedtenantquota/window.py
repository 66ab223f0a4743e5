"""What is going on in a namespace: the journal in the budget's status, the lock, and what both are for now. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kubeloop.api.core import ResourceQuota, ResourceQuotaSpec
from kubeloop.api.meta import RawResourceList
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.managedtenantquota.budget import is_enforced, to_raise, to_restore
from pkg.util.managedtenantquota.constants import (
    EVENT_INVALID_BUDGET,
    EVENT_LOCK_LIMIT,
    EVENT_LOCK_UNAVAILABLE,
    EVENT_SEVERAL_BUDGETS,
    EVENT_UPSTREAM,
)
from pkg.util.managedtenantquota.lock import Lock, Originals, originals_of
from pkg.util.managedtenantquota.model import Memory, Observed, Policy, Problem
from pkg.util.managedtenantquota.releasable import Releasable, Releases, releases
from pkg.util.quantity import Quantity, QuantityError


@dataclass(frozen=True, slots=True)
class Journal:
    """What is known of the quotas that are raised: from a budget's status, or from an annotation of the lock or of the
    quota (`budget` None). What cannot be read is left out, and named in `unreadable`; so are the quotas of which the
    status says otherwise than the quota or the lock records (`contradicted`)."""

    budget: VirtualMachineMigrationResourceQuota | None
    originals: Mapping[str, ResourceQuotaSpec]
    members: Mapping[str, Sequence[str]]
    additional: RawResourceList
    unreadable: Sequence[str] = ()
    contradicted: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Nothing is saved. What was added alone is no reason to look: upstream always keeps that in the status."""
        return not self.originals and not self.members

    def record(self, quota: str) -> Originals:
        """What a quota that is raised has to record of itself."""
        return Originals({quota: self.originals[quota].hard or {}}, self.additional)


def journal_of(budget: VirtualMachineMigrationResourceQuota) -> Journal:
    """Reads the status. What upstream's controller left there is understood too."""
    status = budget.status
    originals, unreadable = {}, []
    for saved in status.original_blocking_resource_quotas or ():
        hard, bad = _readable(saved.spec.hard or {})
        originals[saved.name] = msgspec.structs.replace(saved.spec, hard=hard)
        unreadable += [f"{name} of quota {saved.name}" for name in bad]
    members = {
        name: tuple(quotas or ())
        for name, quotas in (status.migrations_to_blocking_resource_quotas or {}).items()
    }
    if not originals:
        return Journal(budget, originals, members, budget.additional)
    added, bad = _readable(status.additional_migration_resources or budget.additional)
    unreadable += [f"{name} of what was added" for name in bad]
    return Journal(budget, originals, members, added, unreadable)


def recorded(originals: Originals) -> Journal:
    """What the annotation of a lock or of a quota says."""
    specs = {name: ResourceQuotaSpec(hard=_readable(hard)[0]) for name, hard in originals.quotas.items()}
    return Journal(None, specs, {}, _readable(originals.additional)[0])


def _readable(resources: RawResourceList) -> tuple[RawResourceList, list[str]]:
    """The resources whose quantities can be read, and the names of the others."""
    good: RawResourceList = {}
    bad = []
    for name, value in resources.items():
        try:
            Quantity.parse(value)
        except QuantityError:
            bad.append(name)
        else:
            good[name] = value
    return good, bad


def age_of(lock: Lock, now: float) -> float:
    """Seconds since it was made. A clock that was set back must not keep a lock for ever."""
    return abs(now - lock.since)


def is_overdue(lock: Lock, now: float, policy: Policy) -> bool:
    """Whether a lock has to end now, whatever else stands in the way."""
    return age_of(lock, now) >= policy.lock_limit + policy.grace


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
    recheck_after: float | None = None
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
        """Seconds since the lock was made, 0 without one."""
        lock = self.observed.lock
        return age_of(lock, self.observed.now) if lock else 0.0

    @property
    def overdue(self) -> bool:
        """Whether the lock has to end now."""
        lock = self.observed.lock
        return lock is not None and is_overdue(lock, self.observed.now, self.policy)

    @property
    def locked(self) -> bool:
        return self.observed.lock is not None

    @property
    def left_to_upstream(self) -> bool:
        """Whether KubeVirt's own controller is to do what is to be done. Not what we began: any user who may create a
        Lease can say that it runs, and would keep a quota raised by that."""
        lock = self.observed.lock
        ours = (lock is not None and lock.originals is not None) or any(
            map(originals_of, self.observed.quotas)
        )
        return bool(self.observed.upstream) and not ours

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

    def originals(self) -> Originals:
        """What the lock has to record."""
        specs = {name: quota.spec for name in self.blocking if (quota := self.quota(name)) is not None}
        specs |= self.journal.originals
        return Originals(
            quotas={name: spec.hard or {} for name, spec in specs.items()}, additional=self.journal.additional
        )

    def next_to_raise(self) -> tuple[ResourceQuota, dict[str, str], Originals] | None:
        """A quota that still says what it said originally, what it shall say, and what it shall record."""
        for name in self.blocking:
            quota, original = self.quota(name), self.journal.originals[name]
            if quota is not None:
                change = to_raise(quota.hard, original.hard or {}, self.journal.additional)
                if change:
                    return quota, change, self.journal.record(name)
        return None

    def to_restore(self) -> Iterator[tuple[ResourceQuota, dict[str, str], Originals | None]]:
        """The quotas that say more than they said originally, or record that they do, what they shall say again, and
        what they record until the status that contradicts it is cleared: it would be restored to next."""
        contradicted = {name for journal in self.journals for name in journal.contradicted}
        for journal in self.saved:
            for name, original in journal.originals.items():
                quota = self.quota(name)
                if quota is None:
                    continue
                # A lock may have recorded what another client changed before it held, and past its end the webhook
                # admits what others write: only what we wrote is taken back.
                all_of_it = self.locked and not self.overdue and journal.budget is not None
                change = to_restore(quota.hard, original.hard or {}, journal.additional, locked=all_of_it)
                records = originals_of(quota)
                kept = records if name in contradicted else None
                if change or records != kept:
                    yield quota, change, kept

    def next_to_restore(self) -> tuple[ResourceQuota, dict[str, str], Originals | None] | None:
        """The first of them whose restore was not refused just now."""
        refused = self.observed.not_restored
        return next((found for found in self.to_restore() if found[0].name not in refused), None)

    @property
    def raised(self) -> tuple[str, ...]:
        """The names of those that say more, for people."""
        return tuple(sorted({quota.name for quota, change, _ in self.to_restore() if change}))

    def is_in_force(self) -> bool:
        """Whether quota admission goes by the limits that were restored; not waited for without a lock."""
        if not self.locked:
            return True
        quotas = [(self.quota(name), journal) for journal in self.saved for name in journal.originals]
        return all(
            is_enforced(quota.hard, quota.status.hard or {}, journal.additional)
            for quota, journal in quotas
            if quota is not None
        )


def window_of(observed: Observed, policy: Policy) -> Window:
    """Work out what the namespace needs."""
    records = _records(observed)
    journals = [_believed(journal_of(budget), records) for budget in observed.budgets]
    orphans = _orphans(records, journals)
    by_budget = zip(observed.budgets, journals, strict=True)
    problems = [_unreadable(budget, journal) for budget, journal in by_budget if journal.unreadable]
    window = Window(observed, policy, [*journals, *orphans], (), problems, observed.memory)
    if observed.upstream:
        return _replaced(window, (), _upstream(observed), window.memory, policy.sweep)
    if not observed.exists or not observed.budgets or problems:
        return window
    if len(observed.budgets) > 1:
        return _replaced(window, (), _several(observed), window.memory, None)
    if observed.budgets[0].deleting or _are_raised(window, orphans):
        return window  # first back to what was, then anew
    journal = journals[0]
    found = releases(observed, policy, journal.additional, journal.originals)
    memory = replace(
        observed.memory, short_since=found.short_since or {}, resting=_still_resting(observed), refused=""
    )
    window = replace(
        window,
        problems=found.problems,
        memory=memory,
        recheck_after=found.recheck_after,
        waiting=found.waiting,
    )
    return _with_purpose(window, journal, found)


def _records(observed: Observed) -> dict[str, Originals]:
    """What is recorded beside the status, by quota: what a raised quota says of itself, else what the lock says."""
    found = (observed.lock.originals if observed.lock else None) or Originals()
    by_lock = {name: Originals({name: hard}, found.additional) for name, hard in found.quotas.items()}
    own = ((quota.name, originals_of(quota)) for quota in observed.quotas)
    return by_lock | {name: record for name, record in own if record is not None}


def _believed(journal: Journal, records: Mapping[str, Originals]) -> Journal:
    """A status that says otherwise than the records is garbage: they are written before a raise."""
    wrong = [name for name in journal.originals if records.get(name) not in (None, journal.record(name))]
    return replace(
        journal,
        originals={name: spec for name, spec in journal.originals.items() if name not in wrong},
        unreadable=[*journal.unreadable, *(f"quota {name}" for name in wrong)],
        contradicted=wrong,
    )


def _orphans(records: Mapping[str, Originals], journals: Sequence[Journal]) -> list[Journal]:
    """What only the records say: the budget is gone, or its status is garbage."""
    known = {name for journal in journals if not journal.unreadable for name in journal.originals}
    return [recorded(record) for name, record in records.items() if name not in known]


def _are_raised(window: Window, orphans: Sequence[Journal]) -> bool:
    """Whether a quota is raised, or said to be, that no budget knows of."""
    names = {name for journal in orphans for name in journal.originals}
    if names & window.observed.not_restored.keys():
        return True
    return replace(window, journals=orphans).next_to_restore() is not None


def _with_purpose(window: Window, journal: Journal, found: Releases) -> Window:
    """What of the releasable the window is opened, or kept open, for."""
    observed, policy = window.observed, window.policy
    wanted = [*found.releasable]
    if wanted and observed.memory.refused:
        return _refused(window, wanted)
    if observed.lock is None:
        if not journal.empty:
            wanted = []  # the lock was deleted: first back to what was, then anew
    elif window.age >= policy.lock_limit:
        return _at_the_limit(window, wanted)
    elif window.age >= policy.joining:
        wanted = [each for each in wanted if each.migration.name in journal.members]
    if wanted and not observed.can_lock:
        # What is raised already stays under the lock that stands: the API server enforces it without an answer of ours.
        locked = observed.lock is not None
        kept = [each for each in wanted if locked and each.migration.name in journal.members]
        problem = None if kept else _no_lock(observed)
        return _replaced(window, kept, problem, window.memory, policy.busy)
    opened = _replaced(window, wanted, None, window.memory, window.recheck_after)
    if wanted and opened.locked and not opened.unsaved() and opened.next_to_raise() is None:
        return replace(opened, memory=replace(opened.memory, refusals=0))
    return opened


def _refused(window: Window, wanted: Sequence[Releasable]) -> Window:
    """What cannot be raised is no reason to keep the namespace locked: it is closed, and tried again later."""
    observed, policy, memory = window.observed, window.policy, window.memory
    # An answer that is long in coming keeps the namespace locked: it is left open for as long first, then for longer.
    first = max(policy.first_rest, window.age)
    seconds = min(first * 2.0**memory.refusals, first * policy.sweep / policy.first_rest, policy.rest)
    resting = {**memory.resting, **{each.migration.uid: observed.now + seconds for each in wanted}}
    memory = replace(memory, resting=resting, refusals=min(memory.refusals + 1, 20))
    why = observed.memory.refused
    message = (
        f"the quotas of namespace {observed.namespace} cannot be raised, the migrations are retried in "
        f"{seconds:.1f} s: {why}"
    )
    key = f"{EVENT_LOCK_UNAVAILABLE}/{why.partition(':')[0]}"
    problem = Problem(EVENT_LOCK_UNAVAILABLE, message, list(observed.budgets), key)
    return _replaced(window, (), problem, memory, seconds)


def _at_the_limit(window: Window, wanted: Sequence[Releasable]) -> Window:
    """The target pods did not come in time.

    When everything was raised for them, they are left alone for a while: otherwise the namespace would be locked again
    at once, and so for ever. A window during which we did not run, says nothing about them.
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
    left = policy.lock_limit + policy.grace - window.age
    ends = f"in {left:.0f} s at the latest" if left > 0 else "now"
    message = (
        f"namespace {observed.namespace} has been locked for {int(window.age)} s and no target pod has appeared for "
        f"{names}: the quotas are being restored, the lock ends {ends}"
        + (f"; the migrations are retried in {policy.rest:g} s" if was_raised else "")
    )
    about = [*(each.migration for each in wanted), *observed.budgets]
    since = observed.lock.since if observed.lock else 0.0
    problem = Problem(EVENT_LOCK_LIMIT, message, about, f"{EVENT_LOCK_LIMIT}/{since}")
    memory = replace(window.memory, resting=resting)
    return _replaced(window, (), problem, memory, policy.rest if was_raised else window.recheck_after)


def _still_resting(observed: Observed) -> dict[str, float]:
    return {uid: until for uid, until in observed.memory.resting.items() if until > observed.now}


def _unreadable(budget: VirtualMachineMigrationResourceQuota, journal: Journal) -> Problem:
    names = ", ".join(journal.unreadable)
    message = (
        f"what the status of {budget.name} says of {names} is not believed: what was added is taken back by what the "
        "quota or the lock records; where neither does, compare spec.hard with what it should be"
    )
    return Problem(EVENT_INVALID_BUDGET, message, [budget], f"{EVENT_INVALID_BUDGET}/{budget.name}/{names}")


def _upstream(observed: Observed) -> Problem:
    message = (
        f"{observed.upstream}: headroom leaves namespace {observed.namespace} to it; to migrate to headroom, remove "
        "that controller"
    )
    return Problem(EVENT_UPSTREAM, message, list(observed.budgets), EVENT_UPSTREAM)


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
    # What the API server says behind the colon differs each time, by the name of the probe's object.
    key = f"{EVENT_LOCK_UNAVAILABLE}/{observed.why_not.partition(':')[0]}"
    return Problem(EVENT_LOCK_UNAVAILABLE, message, list(observed.budgets), key)


def _replaced(
    window: Window,
    wanted: Sequence[Releasable],
    problem: Problem | None,
    memory: Memory,
    recheck_after: float | None,
) -> Window:
    problems = [*window.problems, *([problem] if problem else [])]
    return replace(window, wanted=wanted, problems=problems, memory=memory, recheck_after=recheck_after)
