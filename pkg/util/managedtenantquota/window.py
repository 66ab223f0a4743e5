"""What is going on in a namespace: what is raised, the lock, and what both are for now. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.resource_list import format_resource_list, maximum, parse_resource_list
from pkg.util.constants import (
    EVENT_INVALID_BUDGET,
    EVENT_LOCK_LIMIT,
    EVENT_LOCK_UNAVAILABLE,
    EVENT_SEVERAL_BUDGETS,
    EVENT_UPSTREAM,
)
from pkg.util.managedtenantquota.model import Observed, Policy, Problem
from pkg.util.managedtenantquota.record import Record, is_in_use, members_of, record_of, said_by
from pkg.util.managedtenantquota.releases import Releasable, Releases


class Change(NamedTuple):
    """Of a quota: the limits that it shall say instead, and what it shall record; None: nothing."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record | None


class Window:
    """The namespace as the table of `sequence` looks at it."""

    def __init__(self, observed: Observed, policy: Policy) -> None:
        self.observed, self.policy, self.lock = observed, policy, observed.lock
        self.age = self.lock.age(observed.now) if self.lock else 0.0
        """Seconds since the lock was made, 0 without one."""
        self.left = policy.longest - self.age
        """Seconds until the lock has to end."""
        self.overdue = self.lock is not None and self.left <= 0
        self.timers = observed.timers
        self.problems: list[Problem] = []
        self.recheck_after = math.inf
        self.records = {q.name: record for q in observed.quotas if (record := record_of(q))}
        """How the raised quotas were."""
        self.said: dict[str, Record] = {}
        """The same by a status. It counts for quotas without a record: KubeVirt's own controller may have left them
        raised."""
        for budget in observed.budgets:
            said, unreadable = said_by(budget)
            self.said |= said
            if unreadable and said.keys() - self.records.keys():
                names = ", ".join(unreadable)
                said_so = f"the status of {budget.name} has no quantities for {names}"
                message = f"{said_so}: compare spec.hard with what it should be"
                self._close(math.inf, EVENT_INVALID_BUDGET, message, f"{budget.name}/{names}")
        self.found = Releases(observed, policy)
        self.wanted: Sequence[Releasable] = ()
        """What it is opened, or kept open, for; none: it is closed, if one is open."""
        self.wanted = self._purpose()

    @property
    def members(self) -> Mapping[str, Sequence[str]]:
        """The migrations that share the window, by name, and the quotas that refused each."""
        found: dict[str, Sequence[str]] = {}
        for budget in self.observed.budgets:
            found |= members_of(budget)
        return found | {each.migration.name: each.blocking for each in self.wanted}

    def to_record(self) -> dict[str, Record]:
        """What is raised, and what is to be: how each quota was, and what is added to it in all."""
        found = dict(self.records)
        for quota in self.observed.quotas:
            if (more := self.found.added.get(quota.name)) is not None:
                known = self.records.get(quota.name, Record(quota.hard, {}))
                added = maximum(parse_resource_list(known.added), parse_resource_list(more))
                found[quota.name] = Record(known.hard, format_resource_list(added))
        return found

    def next_to_raise(self) -> Change | None:
        """A quota that says less than it shall."""
        records = self.to_record()
        for quota in self.observed.quotas:
            if quota.name in self.found.added and (hard := records[quota.name].to_raise(quota.hard)):
                return Change(quota, hard, records[quota.name])
        return None

    def to_restore(self) -> list[Change]:
        """The quotas that say more than they said originally, or record that they do. One that a status contradicts
        goes on to record it until that is cleared: it would be restored to that next.

        Only a limit that says what it was raised to goes back. Under another program's lock all that is
        above the original goes back: no other client can have written it, and the budget may have changed since."""
        exactly = self.lock is None or self.lock.ours or self.overdue
        found = []
        for quota in self.observed.quotas:
            recorded, said = self.records.get(quota.name), self.said.get(quota.name)
            if (was := recorded or said) is None:
                continue
            hard = was.to_restore(quota.hard, exactly=exactly or recorded is not None)
            kept = recorded if recorded and said and said.hard != recorded.hard else None
            if hard or recorded != kept:
                found.append(Change(quota, hard, kept))
        return found

    # ---- what it is for --------------------------------------------------------------------------------------

    def _purpose(self) -> Sequence[Releasable]:
        observed, policy = self.observed, self.policy
        where = f"namespace {observed.namespace}"
        if observed.upstream:
            said = f"{observed.upstream}: headroom leaves {where} to it; to migrate to headroom, remove that controller"
            return self._close(policy.sweep, EVENT_UPSTREAM, said)
        if not observed.exists or not observed.budgets or self.problems:
            return ()
        if len(observed.budgets) > 1:
            names = ", ".join(sorted(budget.name for budget in observed.budgets))
            said = f"{where} has more than one ({names}): none of them is used until one is left"
            return self._close(math.inf, EVENT_SEVERAL_BUDGETS, said, names)
        if self._has_to_go_back():
            return ()
        wanted = self._releasable()
        if wanted and self.age >= policy.lock_limit:
            return self._at_the_limit(wanted)
        if wanted and observed.why_not and self.lock is None:
            said = f"{where} cannot be locked, its quotas are not raised: {observed.why_not}"
            # What the API server says behind the colon differs each time, by the name of the probe's object.
            key = observed.why_not.partition(":")[0]
            return self._close(policy.recheck, EVENT_LOCK_UNAVAILABLE, said, key)
        if observed.why_not:  # what is raised stays: the API server enforces the lock without an answer of ours
            self.recheck_after = policy.recheck
        if wanted and self.lock is not None and self.next_to_raise() is None:
            self.timers = replace(self.timers, refusals=0)
        return wanted

    def _has_to_go_back(self) -> bool:
        """Whether everything goes back to what it was before a window is opened, or opened anew."""
        (budget,) = self.observed.budgets
        if budget.deleting or self.observed.refused:
            return True
        if self.lock is None and (self.records or is_in_use(budget)):
            return True  # the lock was deleted
        return any(change.quota.name not in self.records for change in self.to_restore())

    def _releasable(self) -> Sequence[Releasable]:
        observed, found = self.observed, self.found
        late = self.age >= self.policy.open_to_others or (self.lock is not None and bool(observed.why_not))
        found.find(self.records, self.members, closed=late)
        self.problems += found.problems
        self.recheck_after = found.recheck_after
        paused = {uid: until for uid, until in self.timers.paused.items() if until > observed.now}
        self.timers = replace(self.timers, short_since=found.short_since, paused=paused)
        return found.releasable

    def _at_the_limit(self, wanted: Sequence[Releasable]) -> Sequence[Releasable]:
        """The target pods did not come in time. When everything was raised for them, they are left alone for a while:
        otherwise the namespace would be locked again at once, and so for ever. A window during which we did not run,
        says nothing about them."""
        observed, pause = self.observed, self.policy.longest_pause
        names = ", ".join(each.migration.name for each in wanted)
        message = (
            f"namespace {observed.namespace} has been locked for {int(self.age)} s and no target pod has appeared for "
            f"{names}: the quotas are being restored, the lock ends "
            + (f"in {self.left:.0f} s at the latest" if self.left > 0 else "now")
        )
        if self.next_to_raise() is None:
            message += f"; the migrations are retried in {pause:g} s"
            self._pause(wanted, observed.now + pause)
            self.recheck_after = pause
        assert self.lock is not None
        about = [each.migration for each in wanted]
        return self._close(self.recheck_after, EVENT_LOCK_LIMIT, message, self.lock.configuration.uid, *about)

    def refused(self, why: str, now: float) -> None:
        """A write that was to open it was refused. What cannot be raised is no reason to keep the namespace locked: it
        is closed, for its migrations are left alone for a while."""
        policy, refusals = self.policy, self.timers.refusals
        # An answer that is long in coming keeps the namespace locked: it is left open as long first, then longer.
        first = max(policy.first_pause, self.lock.age(now) if self.lock else 0.0)
        seconds = min(first * 2.0 ** min(refusals, 20), first * policy.sweep / policy.first_pause, policy.longest_pause)
        self._pause(self.wanted, now + seconds)
        self.timers = replace(self.timers, refusals=refusals + 1)
        message = (
            f"the quotas of namespace {self.observed.namespace} cannot be raised, the migrations are retried in "
            f"{seconds:.1f} s: {why}"
        )
        self.wanted = self._close(seconds, EVENT_LOCK_UNAVAILABLE, message, why.partition(":")[0])

    def _pause(self, releasable: Sequence[Releasable], until: float) -> None:
        paused = {each.migration.uid: until for each in releasable}
        self.timers = replace(self.timers, paused={**self.timers.paused, **paused})

    def _close(self, seconds: float, reason: str, message: str, key: str = "", *about: Object) -> tuple[()]:
        """Nothing is wanted, for a reason that people have to know."""
        self.problems.append(self.observed.problem(reason, message, key, *about))
        self.recheck_after = seconds
        return ()
