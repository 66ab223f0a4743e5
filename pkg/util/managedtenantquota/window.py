"""What is going on in a namespace: what is raised, the lock, and what both are for now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubeloop.api.core import ResourceQuota
from pkg.util.constants import (
    EVENT_INVALID_BUDGET,
    EVENT_LOCK_LIMIT,
    EVENT_LOCK_UNAVAILABLE,
    EVENT_SEVERAL_BUDGETS,
    EVENT_UPSTREAM,
)
from pkg.util.managedtenantquota.lock import Lock, age_of, entry_of
from pkg.util.managedtenantquota.model import Observed, Policy, Problem, Timers
from pkg.util.managedtenantquota.record import (
    Record,
    is_enforced,
    is_in_use,
    members_of,
    records_of,
    said_by,
    to_raise,
    to_restore,
)
from pkg.util.managedtenantquota.releasable import Releasable, Releases, releases
from pkg.util.resource_list import format_resource_list, maximum, parse_resource_list


def is_overdue(lock: Lock, now: float, policy: Policy) -> bool:
    """Whether a lock has to end now, whatever else stands in the way."""
    return age_of(lock, now) >= policy.lock_limit + policy.grace


@dataclass(frozen=True, slots=True)
class Window:
    """The namespace as the table of `sequence` looks at it.

    `wanted` is empty when the window, if one is open, is to be closed. `records`: how the raised quotas were; `left`:
    the same of those without a record, by a status: KubeVirt's own controller may have left them raised.
    """

    observed: Observed
    policy: Policy
    records: Mapping[str, Record]
    left: Mapping[str, Record]
    contradicted: Collection[str] = ()
    """Quotas of whose record a status says otherwise."""
    wanted: Sequence[Releasable] = ()
    problems: Sequence[Problem] = ()
    timers: Timers = field(default_factory=Timers)
    recheck_after: float | None = None
    found: Releases = field(default_factory=Releases)
    """What `wanted` is taken from."""

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
        return bool(self.observed.upstream) and not self.records and not (lock is not None and lock.ours)

    def quota(self, name: str) -> ResourceQuota | None:
        return next((quota for quota in self.observed.quotas if quota.name == name), None)

    @property
    def members(self) -> Mapping[str, Sequence[str]]:
        """The migrations that share the window, by name, and the quotas that refused each."""
        found: dict[str, Sequence[str]] = {}
        for budget in self.observed.budgets:
            found |= members_of(budget)
        return found | {each.migration.name: each.blocking for each in self.wanted}

    @property
    def admitted(self) -> set[str]:
        """The migrations that it is open for, as the lock names them."""
        return {entry_of(each.migration.uid, each.migration.spec.vmi_name) for each in self.wanted}

    def to_record(self) -> Mapping[str, Record]:
        """What is raised, and what is to be: how each quota was, and what is added to it in all."""
        found = dict(self.records)
        for name, more in self.found.added.items():
            quota, known = self.quota(name), self.records.get(name)
            if known is not None:
                added = maximum(parse_resource_list(known.added), parse_resource_list(more))
                found[name] = Record(known.hard, format_resource_list(added))
            elif quota is not None:
                found[name] = Record(quota.hard, more)
        return found

    def next_to_raise(self) -> tuple[ResourceQuota, dict[str, str], Record] | None:
        """A quota that says less than it shall, what it shall say, and what it shall record."""
        for name, record in self.to_record().items():
            quota = self.quota(name)
            if quota is not None and name in self.found.added and (change := to_raise(quota.hard, record)):
                return quota, change, record
        return None

    def to_restore(self) -> Iterator[tuple[ResourceQuota, dict[str, str], Record | None]]:
        """The quotas that say more than they said originally, or record that they do, what they shall say again, and
        what they record until the status that contradicts it is cleared: it would be restored to next.

        Only a limit that says what it was raised to goes back. Under another program's lock all that is
        above the original goes back: no other client can have written it, and the budget may have changed since."""
        lock = self.observed.lock
        exactly = lock is None or lock.ours or self.overdue
        for name, record in {**self.left, **self.records}.items():
            quota = self.quota(name)
            if quota is None:
                continue
            change = to_restore(quota.hard, record, exactly=exactly or name in self.records)
            kept = record if name in self.contradicted else None
            if change or self.records.get(name) != kept:
                yield quota, change, kept

    def next_to_restore(self) -> tuple[ResourceQuota, dict[str, str], Record | None] | None:
        """The first of them whose restore was not refused just now."""
        refused = self.observed.not_restored
        return next((found for found in self.to_restore() if found[0].name not in refused), None)

    @property
    def raised(self) -> tuple[str, ...]:
        """The names of those that say more, for people."""
        return tuple(sorted({quota.name for quota, change, _ in self.to_restore() if change}))

    def is_in_force(self) -> bool:
        """Whether quota admission goes by the limits that were restored; not waited for without a lock."""
        return not self.locked or all(map(is_enforced, self.observed.quotas))


def window_of(observed: Observed, policy: Policy) -> Window:
    """Work out what the namespace needs."""
    records, problems = records_of(observed.quotas), []
    left: dict[str, Record] = {}
    contradicted: set[str] = set()
    for budget in observed.budgets:
        said, unreadable = said_by(budget)
        others = {name: record for name, record in said.items() if name not in records}
        left |= others
        contradicted |= {n for n in said if n in records and said[n].hard != records[n].hard}
        if others and unreadable:
            names = ", ".join(unreadable)
            message = f"the status of {budget.name} has no quantities for {names}: {_COMPARE}"
            problems.append(observed.problem(EVENT_INVALID_BUDGET, message, f"{budget.name}/{names}"))
    window = Window(observed, policy, records, left, contradicted, problems=problems, timers=observed.timers)
    if observed.upstream:
        return _closed(window, _upstream(observed), policy.sweep)
    if not observed.exists or not observed.budgets or problems:
        return window
    if len(observed.budgets) > 1:
        return _closed(window, _several(observed), None)
    if _has_to_go_back(window):
        return window
    late = window.age >= policy.open_to_others or (window.locked and not observed.can_lock)
    closed = late and not observed.timers.refused
    found = releases(observed, policy, records, window.members, closed=closed)
    paused = {uid: until for uid, until in observed.timers.paused.items() if until > observed.now}
    timers = replace(observed.timers, short_since=found.short_since, paused=paused, refused="")
    return _with_purpose(
        replace(window, found=found, problems=found.problems, timers=timers, recheck_after=found.recheck_after)
    )


def _has_to_go_back(window: Window) -> bool:
    """Whether everything goes back to what it was before a window is opened, or opened anew."""
    (budget,) = window.observed.budgets
    if budget.deleting or window.observed.not_restored:
        return True
    if not window.locked and (window.records or is_in_use(budget)):
        return True  # the lock was deleted
    return any(quota.name not in window.records for quota, _, _ in window.to_restore())


def _with_purpose(window: Window) -> Window:
    """What of the releasable the window is opened, or kept open, for."""
    observed, policy = window.observed, window.policy
    wanted = window.found.releasable
    if wanted and observed.timers.refused:
        return _refused(window, wanted)
    if window.age >= policy.lock_limit:
        return _at_the_limit(window, wanted)
    if wanted and not window.locked and not observed.can_lock:
        return _closed(window, _no_lock(observed), policy.recheck)
    # What is raised already stays under the lock that stands: the API server enforces it without an answer of ours.
    again = window.recheck_after if observed.can_lock else policy.recheck
    opened = replace(window, wanted=wanted, recheck_after=again)
    if wanted and opened.locked and opened.next_to_raise() is None:
        return replace(opened, timers=replace(opened.timers, refusals=0))
    return opened


def _refused(window: Window, wanted: Sequence[Releasable]) -> Window:
    """What cannot be raised is no reason to keep the namespace locked: it is closed, and tried again later."""
    observed, policy, timers = window.observed, window.policy, window.timers
    # An answer that is long in coming keeps the namespace locked: it is left open for as long first, then for longer.
    first = max(policy.first_pause, window.age)
    seconds = min(first * 2.0**timers.refusals, first * policy.sweep / policy.first_pause, policy.longest_pause)
    paused = {**timers.paused, **{each.migration.uid: observed.now + seconds for each in wanted}}
    timers = replace(timers, paused=paused, refusals=min(timers.refusals + 1, 20))
    why = observed.timers.refused
    message = (
        f"the quotas of namespace {observed.namespace} cannot be raised, the migrations are retried in "
        f"{seconds:.1f} s: {why}"
    )
    problem = observed.problem(EVENT_LOCK_UNAVAILABLE, message, why.partition(":")[0])
    return _closed(window, problem, seconds, timers)


def _at_the_limit(window: Window, wanted: Sequence[Releasable]) -> Window:
    """The target pods did not come in time.

    When everything was raised for them, they are left alone for a while: otherwise the namespace would be locked again
    at once, and so for ever. A window during which we did not run, says nothing about them.
    """
    observed, policy = window.observed, window.policy
    if not wanted:
        return window
    was_raised = replace(window, wanted=wanted).next_to_raise() is None
    until = observed.now + policy.longest_pause
    paused = {each.migration.uid: until for each in wanted} if was_raised else {}
    paused = {**window.timers.paused, **paused}
    names = ", ".join(each.migration.name for each in wanted)
    left = policy.lock_limit + policy.grace - window.age
    ends = f"in {left:.0f} s at the latest" if left > 0 else "now"
    message = (
        f"namespace {observed.namespace} has been locked for {int(window.age)} s and no target pod has appeared for "
        f"{names}: the quotas are being restored, the lock ends {ends}"
        + (f"; the migrations are retried in {policy.longest_pause:g} s" if was_raised else "")
    )
    since = observed.lock.since if observed.lock else 0.0
    problem = observed.problem(EVENT_LOCK_LIMIT, message, f"{since}", *(each.migration for each in wanted))
    timers = replace(window.timers, paused=paused)
    return _closed(window, problem, policy.longest_pause if was_raised else window.recheck_after, timers)


def _upstream(observed: Observed) -> Problem:
    message = (
        f"{observed.upstream}: headroom leaves namespace {observed.namespace} to it; to migrate to headroom, remove "
        "that controller"
    )
    return observed.problem(EVENT_UPSTREAM, message, "")


def _several(observed: Observed) -> Problem:
    names = ", ".join(sorted(budget.name for budget in observed.budgets))
    message = f"namespace {observed.namespace} has more than one ({names}): none of them is used until one is left"
    return observed.problem(EVENT_SEVERAL_BUDGETS, message, names)


def _no_lock(observed: Observed) -> Problem:
    message = f"namespace {observed.namespace} cannot be locked, its quotas are not raised: {observed.why_not}"
    # What the API server says behind the colon differs each time, by the name of the probe's object.
    return observed.problem(EVENT_LOCK_UNAVAILABLE, message, observed.why_not.partition(":")[0])


def _closed(window: Window, problem: Problem, recheck_after: float | None, timers: Timers | None = None) -> Window:
    problems = [*window.problems, problem]
    timers = timers or window.timers
    return replace(window, wanted=(), problems=problems, timers=timers, recheck_after=recheck_after)


_COMPARE = "compare spec.hard with what it should be"
