"""The window of a namespace: what is raised, the lock, and the refused migrations that it is for. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.resource_list import ResourceList, format_resource_list, maximum, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.managedtenantquota.model import Observed, Record, WindowPolicy
from pkg.util.managedtenantquota.targets import RefusedTarget, Selection
from pkg.util.problems import Problem


class Change(NamedTuple):
    """A change of a quota: its new limits and its new record; None removes the record."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record | None


class Window:
    """The namespace as the table of `sequence` reads it: where a window may be open, with what `Selection` found."""

    def __init__(self, observed: Observed, policy: WindowPolicy) -> None:
        self.observed, self.policy, self.lock = observed, policy, observed.lock
        self.age = self.lock.age(observed.now) if self.lock else 0.0
        """Seconds since the lock was made, 0 without one."""
        self.seconds_left = policy.lock_limit + policy.grace - self.age
        """Seconds until the lock has to end."""
        self.overdue = self.lock is not None and self.seconds_left <= 0
        self.records, self.status_records, self.members = observed.recorded()
        self.refused_targets: Sequence[RefusedTarget] = ()
        self.headroom: Mapping[str, ResourceList] = {}
        self.timers, self.recheck_after = observed.timers, math.inf
        self.problems: list[Problem] = []
        self.targets: Sequence[RefusedTarget] = ()
        """Those that it is opened, or kept open, for; none: it is closed, if one is open."""
        self.targets = self._purpose()

    @property
    def released_migrations(self) -> Mapping[str, Sequence[str]]:
        """Returns the migrations that share the window, by name, and the quotas that refused each."""
        released = {target.migration.name: target.blocking for target in self.targets}
        return self.members | released

    def wait_reasons(self, vmim: VirtualMachineInstanceMigration) -> list[str]:
        """Returns why a migration of the namespace has no target pod yet, or what is done about it."""
        problems = [
            problem.message
            for problem in self.problems
            if vmim in problem.objects or not any(obj in self.observed.facts.migrations for obj in problem.objects)
        ]
        refused = next((target for target in self.refused_targets if target.migration.uid == vmim.uid), None)
        if refused and refused in self.targets:
            stage = "the namespace is locked, they are raised, KubeVirt will create it"
            if self.lock is None:
                stage = "the namespace is about to be locked"
            elif self.next_to_raise() is not None:
                stage = "the namespace is locked, they are about to be raised"
            return [*problems, f"resource quotas {', '.join(refused.blocking)} refuse its target pod: {stage}"]
        if problems:
            return problems
        if refused and refused.wait_reason:
            return [refused.wait_reason]
        if is_refused(vmim):
            return ["resource quota refused its target pod, but would allow it now: KubeVirt will retry"]
        return ["resource quota has not refused its target pod: it waits for KubeVirt"]

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
        was_deleted = self.lock is None and (self.records or self.status_records or self.members)
        if observed.budgets[0].deleting or observed.refused_writes or was_deleted:
            return ()
        if any(change.quota.name not in self.records for change in self.to_restore()):
            return ()  # all quotas are restored before a window is opened, or opened anew
        selection = Selection(observed, self.policy, self.records, self.members)
        self.refused_targets, self.headroom = selection.refused_targets, selection.headroom
        self.problems, self.recheck_after = selection.problems, selection.recheck_after
        self.timers, targets = selection.timers, selection.targets
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

    def _pause(self, targets: Sequence[RefusedTarget], until: float) -> None:
        paused = {target.migration.uid: until for target in targets}
        self.timers = replace(self.timers, paused={**self.timers.paused, **paused})

    def _close(self, seconds: float, reason: str, message: str, key: str, *objects: Object) -> tuple[()]:
        """Closes the window, for a reason that people have to know."""
        self.problems.append(self.observed.problem(reason, message, key, *objects))
        self.recheck_after = seconds
        return ()
