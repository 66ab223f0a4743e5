"""What is going on in a namespace: what is raised, the lock, and which refused migrations the window is for. Pure.

    blocking = refused with today's spec.hard, admitted with what a window adds

A quota that refuses even then leaves the migration where it is, and nothing is changed for its sake.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.quantity import ZERO, QuantityError
from kubeloop.api.resource_list import ResourceList, format_resource_list, maximum, parse_resource_list
from pkg.util.constants import (
    ANNOTATION_MIGRATING_COMPENSATION,
    ANNOTATION_OWNER,
    EVENT_INVALID_BUDGET,
    EVENT_LOCK_LIMIT,
    EVENT_LOCK_UNAVAILABLE,
    EVENT_NOT_ENOUGH,
    EVENT_SEVERAL_BUDGETS,
)
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import parallel_limit_reason, parallel_limits_of
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.record import Record, is_in_use, members_of, record_of, said_by
from pkg.util.managedtenantquota.targets import Missing, Room, missing_targets, with_largest_defaults
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.vms import vms_one_by_one

Steps = Generator[None, None, Sequence[Missing]]


class Change(NamedTuple):
    """Of a quota: the limits that it shall say instead, and what it shall record; None: nothing."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record | None


class Window:
    """The namespace as the table of `sequence` looks at it."""

    def __init__(self, observed: Observed, policy: Policy, *, in_steps: bool = False) -> None:
        """`in_steps`: it is complete once `steps` has ended, each of which is short however many VMs migrate."""
        self.observed, self.policy, self.lock, self.timers = observed, policy, observed.lock, observed.timers
        self.age = self.lock.age(observed.now) if self.lock else 0.0
        """Seconds since the lock was made, 0 without one."""
        self.left = policy.longest - self.age
        """Seconds until the lock has to end."""
        self.overdue = self.lock is not None and self.left <= 0
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
                message = f"the status of {budget.name} has no quantities for {names}: compare spec.hard with what it"
                self._say(EVENT_INVALID_BUDGET, f"{message} should be", f"{budget.name}/{names}")
        self.missing: Sequence[Missing] = ()
        """The refused migrations; none are looked for where no window may be open."""
        self.added: Mapping[str, ResourceList] = {}
        """What is added to each of the quotas that block those that are released, by name."""
        self.wanted: Sequence[Missing] = ()
        """Those that it is opened, or kept open, for; none: it is closed, if one is open."""
        self.steps = self._decide()
        if not in_steps:
            deque(self.steps, maxlen=0)

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
            if quota.name in self.added:
                known = self.records.get(quota.name, Record(quota.hard, {}))
                added = maximum(parse_resource_list(known.added), self.added[quota.name])
                found[quota.name] = Record(known.hard, format_resource_list(added))
        return found

    def next_to_raise(self) -> Change | None:
        """A quota that says less than it shall."""
        records = self.to_record()
        for quota in self.observed.quotas:
            if quota.name in self.added and (hard := records[quota.name].to_raise(quota.hard)):
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
            if recorded is None and hard:
                kept = said  # recorded while it is lowered: no quota that nobody manages is changed without a record
            if hard or recorded != kept:
                found.append(Change(quota, hard, kept))
        return found

    def refused(self, why: str, now: float) -> None:
        """A write that was to open it was refused. What cannot be raised is no reason to keep the namespace locked: it
        is closed, for its migrations are left alone for a while."""
        policy, refusals = self.policy, self.timers.refusals
        # An answer that is long in coming keeps the namespace locked: it is left open as long first, then longer.
        first = max(policy.first_pause, self.lock.age(now) if self.lock else 0.0)
        seconds = min(first * min(2**refusals, policy.sweep / policy.first_pause), policy.longest_pause)
        self._pause(self.wanted, now + seconds)
        self.timers = replace(self.timers, refusals=refusals + 1)
        message = (
            f"the quotas of namespace {self.observed.namespace} cannot be raised, the migrations are retried in "
            f"{seconds:.1f} s: {why}"
        )
        self.wanted = self._close(seconds, EVENT_LOCK_UNAVAILABLE, message, why.partition(":")[0])

    # ---- what it is for --------------------------------------------------------------------------------------

    def _decide(self) -> Iterator[None]:
        self.wanted = yield from self._purpose()

    def _purpose(self) -> Steps:
        observed, policy = self.observed, self.policy
        where = f"namespace {observed.namespace}"
        if not observed.exists or not observed.budgets or self.problems:
            return ()
        if len(observed.budgets) > 1:
            names = ", ".join(sorted(budget.name for budget in observed.budgets))
            said = f"{where} has more than one ({names}): none of them is used until one is left"
            return self._close(math.inf, EVENT_SEVERAL_BUDGETS, said, names)
        if self._has_to_go_back():
            return ()
        wanted = yield from self._releasable()
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
        was_deleted = self.lock is None and (self.records or is_in_use(budget))
        if budget.deleting or self.observed.refused or was_deleted:
            return True
        return any(change.quota.name not in self.records for change in self.to_restore())

    def _at_the_limit(self, wanted: Sequence[Missing]) -> Sequence[Missing]:
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
        seconds = self.recheck_after
        if self.next_to_raise() is None:
            message += f"; the migrations are retried in {pause:g} s"
            self._pause(wanted, observed.now + pause)
            seconds = pause
        key = self.lock.configuration.uid if self.lock else ""
        return self._close(seconds, EVENT_LOCK_LIMIT, message, key, *(each.migration for each in wanted))

    # ---- which migrations are released -----------------------------------------------------------------------

    def _releasable(self) -> Steps:
        """The refused migrations that the budget can release together; of each of the others it is known why not."""
        observed, (budget,) = self.observed, self.observed.budgets
        paused = {uid: until for uid, until in self.timers.paused.items() if until > observed.now}
        self.timers = replace(self.timers, short_since={}, paused=paused)
        try:
            most = parse_resource_list(budget.additional)
            if negative := ", ".join(name for name, added in most.items() if added < ZERO):
                raise QuantityError(f"{negative}: less than nothing")
        except QuantityError as exc:
            message = f"spec.additionalMigrationResources: {exc}"
            return self._close(math.inf, EVENT_INVALID_BUDGET, message, message)
        rendering = with_largest_defaults(observed.facts.rendering)
        facts = replace(observed.facts, rendering=rendering, now=observed.now)
        self.missing = missing_targets(facts)
        quotas = [quota for quota in observed.quotas if self.missing and quota.hard and not quota.deleting]
        for quota in quotas:  # what the rooms find in the facts' cache then
            for _ in vms_one_by_one(replace(facts, quota=quota), EXACT, Base(None)):
                yield
        rooms = [Room(quota, self.records.get(quota.name), facts, most) for quota in quotas]
        members = self.members
        late = self.age >= self.policy.open_to_others or (self.lock is not None and bool(observed.why_not))
        for missing in self.missing:
            yield
            seconds, missing.waits = self._has_to_wait(missing, late and missing.migration.name not in members)
            if missing.waits:
                self._recheck(seconds)
            else:
                self._judge(missing, rooms, members)
        released = [missing for missing in self.missing if missing.blocking]
        blocking = {name for missing in released for name in missing.blocking}
        self.added = {room.quota.name: room.added for room in rooms if room.quota.name in blocking}
        return released

    def _has_to_wait(self, missing: Missing, too_late: bool) -> tuple[float, str]:
        """For how many seconds, and why; "" where it has not. `too_late`: the window is open for others."""
        left = self.timers.paused.get(missing.migration.uid, 0.0) - self.observed.now
        if left > 0:
            return left, f"a window for it was closed without a target pod, it is retried in {left:.0f} s"
        if too_late:
            return self.policy.sweep, "a window is open for other migrations: it is for the next one"
        limits = parallel_limits_of(self.observed.facts.rendering.kubevirt)
        node = trusted_status(missing.vmi).node_name or ""
        hindered = parallel_limit_reason(self.observed.facts.running, node, limits) if missing.launcher else ""
        return self.policy.recheck, hindered and f"KubeVirt's limits: {hindered}"

    def _judge(self, missing: Missing, rooms: Sequence[Room], members: Collection[str]) -> None:
        try:
            blocking = [room for room in rooms if room.refuses(missing)]
            if taken := ", ".join(room.quota.name for room in blocking if is_taken(room.quota)):
                # The other strategy is about to give it back: its limits are not the original ones.
                missing.waits = f"resource quota {taken} still holds what was added for migrations by annotations"
                self._recheck(self.policy.sweep)
                return
            short: dict[str, str] = {}
            for room in rooms:
                short |= room.shortages(missing)
            may_pass = not short or self._is_being_let_in(missing, short, members)
            if may_pass and blocking:
                for room in rooms:
                    room.let_in(missing)
                missing.blocking = sorted(room.quota.name for room in blocking)
        except QuantityError as exc:
            self._is_short(missing, {"/": f"what it needs cannot be determined: {exc}"})

    def _is_being_let_in(self, missing: Missing, short: Mapping[str, str], members: Collection[str]) -> bool:
        """A shortage is reported once it lasts. Until then a migration keeps its part in the window: status.used counts
        a target pod before the cache shows it."""
        now, uid = self.observed.now, missing.migration.uid
        since = self.observed.timers.short_since.get(uid, now)
        self.timers = replace(self.timers, short_since={**self.timers.short_since, uid: since})
        left = since + self.policy.shortage - now
        if left <= 0:
            self._is_short(missing, short)
            return False
        self._recheck(left)
        return missing.migration.name in members

    def _is_short(self, missing: Missing, short: Mapping[str, str]) -> None:
        """`short`: by quota and resource that refuse the pod although all was added that may be, a text each."""
        migration = missing.migration
        message = (
            f"{self.observed.budgets[0].name} does not have enough resources to release migration {migration.name} of "
            f"VM {migration.spec.vmi_name}: {'; '.join(short.values())}"
        )
        self._say(EVENT_NOT_ENOUGH, message, f"{migration.uid}/{','.join(sorted(short))}", migration)

    # ---- what is kept and said of it -------------------------------------------------------------------------

    def _recheck(self, seconds: float) -> None:
        self.recheck_after = min(self.recheck_after, seconds)

    def _pause(self, missing: Sequence[Missing], until: float) -> None:
        paused = {each.migration.uid: until for each in missing}
        self.timers = replace(self.timers, paused={**self.timers.paused, **paused})

    def _close(self, seconds: float, reason: str, message: str, key: str = "", *about: Object) -> tuple[()]:
        """Nothing is wanted, for a reason that people have to know."""
        self._say(reason, message, key, *about)
        self.recheck_after = seconds
        return ()

    def _say(self, reason: str, message: str, key: str, *about: Object) -> None:
        self.problems.append(self.observed.problem(reason, message, key, *about))


def is_taken(quota: ResourceQuota) -> bool:
    """Whether the annotation strategy, ours or Harvester's own, has something on the quota: it is not to be raised
    by both."""
    marks = {ANNOTATION_MIGRATING_COMPENSATION, ANNOTATION_OWNER}
    return has_migrating_vm(quota.annotations) or not marks.isdisjoint(quota.annotations)
