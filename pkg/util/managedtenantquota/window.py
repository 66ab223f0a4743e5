"""The window of a namespace: what is raised, the lock, and the refused migrations that it is for. Pure.

    blocking = refused with today's spec.hard, admitted with what a window adds

A quota that refuses even then leaves the migration where it is, and nothing is changed for its sake."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.quantity import ZERO, QuantityError
from kubeloop.api.resource_list import ResourceList, format_resource_list, maximum, parse_resource_list
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import parallel_limit_reason
from pkg.util.managedtenantquota import model
from pkg.util.managedtenantquota.lock import admitted_by
from pkg.util.managedtenantquota.model import Observed, Record, WindowPolicy
from pkg.util.managedtenantquota.targets import RefusedTarget, WindowQuota, WindowShortage, refused_targets
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.vm import vms_one_by_one


class Change(NamedTuple):
    """A change of a quota: its new limits and its new record; None removes the record."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record | None


class Window:
    """The namespace as the table of `sequence` reads it."""

    def __init__(self, observed: Observed, policy: WindowPolicy) -> None:
        self.observed, self.policy, self.lock = observed, policy, observed.lock
        self.age = self.lock.age(observed.now) if self.lock else 0.0
        """Seconds since the lock was made, 0 without one."""
        self.seconds_left = policy.longest - self.age
        """Seconds until the lock has to end."""
        self.overdue = self.lock is not None and self.seconds_left <= 0
        self.problems: list[Problem] = []
        self.recheck_after = math.inf
        self.records = {q.name: record for q in observed.quotas if (record := model.record_of(q))}
        """How the raised quotas were."""
        self.status_records = model.status_records(observed.budgets)
        """The same by a status, for quotas without a record: KubeVirt's own controller may have left them raised."""
        self.refused_targets: Sequence[RefusedTarget] = ()
        """The refused migrations; none are looked for where no window may be open."""
        self.headroom: Mapping[str, ResourceList] = {}
        """What is added to each of the quotas that block those that are released, by name."""
        self.targets: Sequence[RefusedTarget] = ()
        """Those that it is opened, or kept open, for; none: it is closed, if one is open."""
        self.timers = observed.timers
        """The waiting times for the next decision."""
        self.targets = self._purpose()

    @property
    def released_migrations(self) -> Mapping[str, Sequence[str]]:
        """Returns the migrations that share the window, by name, and the quotas that refused each."""
        released = {target.migration.name: target.blocking for target in self.targets}
        return model.recorded_migrations(self.observed.budgets) | released

    def to_record(self) -> dict[str, Record]:
        """Returns the records of the quotas that are raised or shall be: the original limits and all that is added."""
        records = dict(self.records)
        for quota in self.observed.quotas:
            if quota.name in self.headroom:
                record = self.records.get(quota.name, Record(quota.hard, {}))
                headroom = maximum(parse_resource_list(record.additional), self.headroom[quota.name])
                records[quota.name] = Record(record.hard, format_resource_list(headroom))
        return records

    def next_to_raise(self) -> Change | None:
        """Returns the change of a quota whose limits are below the raised ones."""
        records = self.to_record()
        for quota in self.observed.quotas:
            if quota.name in self.headroom and (hard := records[quota.name].to_raise(quota.hard)):
                return Change(quota, hard, records[quota.name])
        return None

    def to_restore(self) -> list[Change]:
        """Returns the changes of quotas with limits above their original ones, or with a record. A quota that a status
        contradicts keeps its record until the status is cleared: it would be restored to that next. Only a limit that
        says what it was raised to goes back. Under another program's lock all that is above the original goes back: no
        other client can have written it, and the budget may have changed since."""
        exactly = self.lock is None or self.lock.is_own or self.overdue
        changes = []
        for quota in self.observed.quotas:
            recorded, status_record = self.records.get(quota.name), self.status_records.get(quota.name)
            if (record := recorded or status_record) is None:
                continue
            hard = record.to_restore(quota.hard, exactly=exactly or recorded is not None)
            new_record = recorded if recorded and status_record and status_record.hard != recorded.hard else None
            if recorded is None and hard:
                # Recorded while it is lowered: no quota that nobody manages is changed without a record.
                new_record = status_record
            if hard or recorded != new_record:
                changes.append(Change(quota, hard, new_record))
        return changes

    def close_after_refusal(self, reason: str, now: float) -> None:
        """Closes the window after a write that opens it was refused: its migrations are left alone for a while."""
        policy = self.policy
        # An answer that is long in coming keeps the namespace locked: it is left open as long first, then longer.
        first_pause = max(policy.first_pause, self.lock.age(now) if self.lock else 0.0)
        factor = min(2**self.timers.refusals, policy.sweep / policy.first_pause)
        seconds = min(first_pause * factor, policy.longest_pause)
        self._pause(self.targets, now + seconds)
        self.timers = replace(self.timers, refusals=self.timers.refusals + 1)
        message = (
            f"the quotas of namespace {self.observed.namespace} cannot be raised, the migrations are retried in "
            f"{seconds:.1f} s: {reason}"
        )
        self.targets = self._close(seconds, constants.EVENT_LOCK_UNAVAILABLE, message, reason.partition(":")[0])

    def _purpose(self) -> Sequence[RefusedTarget]:
        observed, unavailable = self.observed, self.observed.lock_unavailable_reason
        if not observed.exists or not observed.budgets:
            return ()
        if len(observed.budgets) > 1:
            names = ", ".join(sorted(budget.name for budget in observed.budgets))
            message = (
                f"namespace {observed.namespace} has more than one ({names}): none of them is used until one is left"
            )
            return self._close(math.inf, constants.EVENT_SEVERAL_BUDGETS, message, names)
        if self._has_to_go_back():
            return ()
        targets = self._releasable()
        if targets and self.age >= self.policy.lock_limit:
            return self._at_the_limit(targets)
        if targets and unavailable and self.lock is None:
            message = f"namespace {observed.namespace} cannot be locked, its quotas are not raised: {unavailable}"
            # What the API server says behind the colon differs each time, by the name of the probe's object.
            key = unavailable.partition(":")[0]
            return self._close(self.policy.recheck, constants.EVENT_LOCK_UNAVAILABLE, message, key)
        if unavailable:  # what is raised stays: the API server enforces the lock without an answer of ours
            self.recheck_after = self.policy.recheck
        if targets and self.lock is not None and self.next_to_raise() is None:
            self.timers = replace(self.timers, refusals=0)
        return targets

    def _has_to_go_back(self) -> bool:
        """Reports whether all quotas are restored before a window is opened, or opened anew."""
        (budget,) = self.observed.budgets
        was_deleted = self.lock is None and (self.records or model.is_in_use(budget))
        if budget.deleting or self.observed.refused_writes or was_deleted:
            return True
        return any(change.quota.name not in self.records for change in self.to_restore())

    def _at_the_limit(self, targets: Sequence[RefusedTarget]) -> Sequence[RefusedTarget]:
        """Closes the window: the target pods did not come in time. When everything was raised for them, they are left
        alone for a while: the namespace would be locked again at once, and so for ever."""
        names, seconds = ", ".join(target.migration.name for target in targets), self.recheck_after
        end = f"in {self.seconds_left:.0f} s at the latest" if self.seconds_left > 0 else "now"
        message = (
            f"namespace {self.observed.namespace} has been locked for {int(self.age)} s and no target pod has appeared "
            f"for {names}: the quotas are being restored, the lock ends {end}"
        )
        if self.next_to_raise() is None:
            seconds = self.policy.longest_pause
            message += f"; the migrations are retried in {seconds:g} s"
            self._pause(targets, self.observed.now + seconds)
        key = self.lock.configuration.uid if self.lock else ""
        return self._close(seconds, constants.EVENT_LOCK_LIMIT, message, key, *(target.migration for target in targets))

    def _releasable(self) -> Sequence[RefusedTarget]:
        """Returns the refused migrations that the budget can release together; others get a reason or a problem."""
        observed = self.observed
        latest = observed.now + self.policy.longest_pause  # what is later is from before the clock was set back
        paused = {uid: until for uid, until in self.timers.paused.items() if observed.now < until <= latest}
        self.timers = replace(self.timers, paused=paused, short_since={})
        present = admitted_by(self.lock) if self.lock else ()
        targets = refused_targets(observed.facts)
        self.refused_targets = sorted(targets, key=lambda target: target.admission_key not in present)
        try:
            max_headroom = parse_resource_list(observed.budgets[0].additional)
            if negative := ", ".join(name for name, amount in max_headroom.items() if amount < ZERO):
                raise QuantityError(f"{negative}: less than nothing")
            window_quotas = self._window_quotas(max_headroom) if targets else []
        except QuantityError as exc:
            message = f"spec.additionalMigrationResources: {exc}"
            return self._close(math.inf, constants.EVENT_INVALID_BUDGET, message, message)
        # Whether others join an open window goes by when we saw it, not by its age: where the clocks of API servers
        # differ, a lock that is new would be for nobody.
        seconds_open = observed.now - self.lock.known_since if self.lock else 0.0
        is_too_late = seconds_open >= self.policy.open_to_others or bool(self.lock and observed.lock_unavailable_reason)
        members = self.released_migrations
        for target in self.refused_targets:
            is_member = target.migration.name in members
            seconds, target.wait_reason = self._has_to_wait(target, is_too_late and not is_member)
            if target.wait_reason:
                self._recheck(seconds)
            else:
                self._judge(target, window_quotas, is_member)
        blocking = {name for target in self.refused_targets for name in target.blocking}
        self.headroom = {wq.quota.name: wq.headroom for wq in window_quotas if wq.quota.name in blocking}
        return [target for target in self.refused_targets if target.blocking]

    def _window_quotas(self, max_headroom: ResourceList) -> list[WindowQuota]:
        """Returns the quotas, each as it was before it was raised."""
        observed, window_quotas = self.observed, []
        for quota in observed.quotas:
            if quota.hard and not quota.deleting:
                hard = self.records[quota.name].hard if quota.name in self.records else quota.hard
                was = structs.replace(quota, spec=structs.replace(quota.spec, hard=hard))
                vms = vms_one_by_one(replace(observed.facts, quota=was, now=observed.now), EXACT, Base(None))
                window_quotas.append(WindowQuota(was, vms, max_headroom))
        return window_quotas

    def _has_to_wait(self, target: RefusedTarget, too_late: bool) -> tuple[float, str]:
        """Returns for how many seconds a target waits, and why; "" if it does not. `too_late`: the window is open for
        others."""
        seconds = self.timers.paused.get(target.migration.uid, 0.0) - self.observed.now
        if seconds > 0:
            return seconds, f"a window for it was closed without a target pod, it is retried in {seconds:.0f} s"
        if too_late:
            return self.policy.sweep, "a window is open for other migrations: it is for the next one"
        facts, node = self.observed.facts, trusted_status(target.vmi).node_name or ""
        limits = facts.rendering.kubevirt.migrations
        limit_reason = parallel_limit_reason(facts.running, node, limits) if target.launcher else ""
        return self.policy.recheck, limit_reason and f"KubeVirt's limits: {limit_reason}"

    def _judge(self, target: RefusedTarget, window_quotas: Sequence[WindowQuota], is_member: bool) -> None:
        try:
            blocking = sorted(wq.quota.name for wq in window_quotas if wq.refuses(target))
            shortages = [shortage for wq in window_quotas for shortage in wq.shortages(target)]
        except QuantityError as exc:
            self._report_shortages(target, [WindowShortage("/", f"what it needs cannot be determined: {exc}")])
            return
        if names := ", ".join(wq.quota.name for wq in window_quotas if wq.quota.name in blocking and wq.is_taken):
            # The other strategy is about to give it back: its limits are not the original ones.
            target.wait_reason = f"resource quota {names} still holds what was added for migrations by annotations"
            self._recheck(self.policy.sweep)
            return
        if shortages:
            self._await_room(target, shortages, is_member)
        if blocking and not target.lacks_room:
            for window_quota in window_quotas:
                window_quota.admit(target)
            target.blocking = blocking

    def _await_room(self, target: RefusedTarget, shortages: Sequence[WindowShortage], is_member: bool) -> None:
        """Leaves a migration for a later window, and reports the shortage once it lasts. One that has a part in the
        window keeps it for a moment if status.used may count a target pod that the cache does not show yet."""
        is_by_others = all(shortage.is_by_others for shortage in shortages)
        now, key, policy = self.observed.now, (target.migration.uid, is_by_others), self.policy
        since = self.observed.timers.short_since.get(key, now)
        self.timers = replace(self.timers, short_since={**self.timers.short_since, key: since})
        is_certain = all(shortage.is_certain for shortage in shortages)
        target.lacks_room = is_certain or not is_member or now - since >= policy.cache_delay
        if not target.lacks_room:
            self._recheck(since + policy.cache_delay - now)
        seconds_left = since + (policy.crowding if is_by_others else policy.cache_delay) - now
        if seconds_left <= 0:
            self._report_shortages(target, shortages)
        else:
            self._recheck(seconds_left)

    def _report_shortages(self, target: RefusedTarget, shortages: Sequence[WindowShortage]) -> None:
        migration = target.migration
        message = (
            f"{self.observed.budgets[0].name} does not have enough resources to release migration {migration.name} of "
            f"VM {migration.spec.vmi_name}: {'; '.join(shortage.text for shortage in shortages)}"
        )
        key = f"{migration.uid}/{','.join(sorted(shortage.key for shortage in shortages))}"
        self._report(constants.EVENT_NOT_ENOUGH, message, key, migration)

    def _recheck(self, seconds: float) -> None:
        self.recheck_after = min(self.recheck_after, seconds)

    def _pause(self, targets: Sequence[RefusedTarget], until: float) -> None:
        paused = {target.migration.uid: until for target in targets}
        self.timers = replace(self.timers, paused={**self.timers.paused, **paused})

    def _close(self, seconds: float, reason: str, message: str, key: str, *objects: Object) -> tuple[()]:
        """Closes the window, for a reason that people have to know."""
        self._report(reason, message, key, *objects)
        self.recheck_after = seconds
        return ()

    def _report(self, reason: str, message: str, key: str, *objects: Object) -> None:
        self.problems.append(self.observed.problem(reason, message, key, *objects))
