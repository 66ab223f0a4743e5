"""The window of a namespace: what is raised, the lock, the refused migrations that it is for; and its sequence as a
table: what is observed → the next write. Pure.

    lock → save → raise → (target pods come) → restore → clear → unlock

Each row follows from what stands on the API server alone, so the process may end after any write: the next reconcile
goes on from there, or takes back what was begun."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, Literal, NamedTuple

import msgspec

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object, RawQuantity
from kubeloop.api.resource_list import format_resource_list, maximum, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.managedtenantquota.lock import admitted_by, lock_body
from pkg.util.managedtenantquota.model import Observed, Record, WindowPolicy, is_in_use, is_lowering_enforced
from pkg.util.managedtenantquota.targets import Selection


class Change(NamedTuple):
    """A change of a quota: its new limits and its new record; None removes the record."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record | None


class Window(Selection):
    """The namespace as the table reads it: where a window may be open, with the migrations that it is selected for."""

    def __init__(self, observed: Observed, policy: WindowPolicy) -> None:
        super().__init__(observed, policy)
        self.lock = observed.lock
        self.age = self.lock.age(observed.now) if self.lock else 0.0
        self.seconds_left = policy.lock_limit + policy.grace - self.age  # until the lock has to end
        self.overdue = self.lock is not None and self.seconds_left <= 0
        self.records, self.status_records, self.members = observed.recorded()
        self._select_targets()

    @property
    def released_migrations(self) -> Mapping[str, Sequence[str]]:
        """Returns the migrations that share the window, by name, and the quotas that refused each."""
        return self.members | {target.migration.name: target.blocking for target in self.targets}

    def wait_reasons(self, vmim: VirtualMachineInstanceMigration) -> list[str]:
        """Returns why a migration of the namespace has no target pod yet, or what is done about it."""
        problems = [
            problem.message
            for problem in self.problems
            if vmim in problem.objects or not any(obj in self.observed.facts.migrations for obj in problem.objects)
        ]
        refused = next((target for target in self.refused_targets if target.migration.uid == vmim.uid), None)
        if refused and refused in self.targets:
            stage = "is locked until KubeVirt has created it" if self.lock else "is about to be locked"
            names = ", ".join(refused.blocking)
            return [*problems, f"resource quotas {names} refuse its target pod: the namespace {stage}"]
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
        """Returns the changes of quotas with limits that were raised, or with a record."""
        changes = []
        for quota in self.observed.quotas:
            recorded, stated = self.records.get(quota.name), self.status_records.get(quota.name)
            if record := recorded or stated:
                hard = record.to_restore(quota.hard)
                # It keeps a record until a status that contradicts it is cleared: it would be restored to that next. It
                # gets one while it is lowered: no quota that nobody manages is changed without a record.
                has_record = stated and (stated.hard != recorded.hard if recorded else hard)
                new_record = record if has_record else None
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
        self._pause_targets(now + seconds)
        self.timers = replace(self.timers, refusals=self.timers.refusals + 1)
        text = f"the quotas of namespace {self.observed.namespace} cannot be raised, the migrations are retried in"
        key = reason.partition(":")[0]
        self._close(seconds, constants.EVENT_LOCK_UNAVAILABLE, f"{text} {seconds:.1f} s: {reason}", key)

    def _select_targets(self) -> None:
        """Selects the migrations that a window is opened, or kept open, for; where none is left, it is closed."""
        observed, unavailable = self.observed, self.observed.lock_unavailable_reason
        if not observed.exists or not observed.budgets:
            return
        if len(observed.budgets) > 1:
            names = ", ".join(sorted(budget.name for budget in observed.budgets))
            text = f"namespace {observed.namespace} has more than one ({names}): none of them is used until one is left"
            self._close(math.inf, constants.EVENT_SEVERAL_BUDGETS, text, names)
            return
        was_deleted = self.lock is None and (self.records or self.status_records or self.members)
        if observed.budgets[0].deleting or observed.refused_writes or was_deleted:
            return
        if any(change.quota.name not in self.records for change in self.to_restore()):
            return  # all quotas are restored before a window is opened, or opened anew
        self.select(self.records, self.members)
        if self.targets and self.age >= self.policy.lock_limit:
            self._close_at_the_limit()
        elif self.targets and unavailable and self.lock is None:
            message = f"namespace {observed.namespace} cannot be locked, its quotas are not raised: {unavailable}"
            # What the API server says behind the colon differs each time, by the name of the probe's object.
            key = unavailable.partition(":")[0]
            self._close(self.policy.recheck, constants.EVENT_LOCK_UNAVAILABLE, message, key)
        elif unavailable:  # what is raised stays: the API server enforces the lock without an answer of ours
            self.recheck_after = self.policy.recheck
        if self.targets and self.lock is not None and self.next_to_raise() is None:
            self.timers = replace(self.timers, refusals=0)

    def _close_at_the_limit(self) -> None:
        """Closes the window: the target pods did not come in time. When everything was raised for them, they are left
        alone for a while: the namespace would be locked again at once, and so for ever."""
        migrations, seconds = [target.migration for target in self.targets], self.recheck_after
        names = ", ".join(migration.name for migration in migrations)
        end = f"in {self.seconds_left:.0f} s at the latest" if self.seconds_left > 0 else "now"
        message = (
            f"namespace {self.observed.namespace} has been locked for {int(self.age)} s and no target pod has appeared "
            f"for {names}: the quotas are being restored, the lock ends {end}"
        )
        if self.next_to_raise() is None:
            seconds = self.policy.longest_pause
            message += f"; the migrations are retried in {seconds:g} s"
            self._pause_targets(self.observed.now + seconds)
        key = self.lock.configuration.uid if self.lock else ""
        self._close(seconds, constants.EVENT_LOCK_LIMIT, message, key, *migrations)

    def _pause_targets(self, until: float) -> None:
        paused = {target.migration.uid: until for target in self.targets}
        self.timers = replace(self.timers, paused={**self.timers.paused, **paused})

    def _close(self, seconds: float, reason: str, message: str, key: str, *objects: Object) -> None:
        """Closes the window, for a reason that people have to know."""
        self.problems.append(self.observed.problem(reason, message, key, *objects))
        self.recheck_after, self.targets = seconds, ()


@dataclass(frozen=True, slots=True)
class Write:
    """The next write. Its `name` is a metric's label."""

    name: Literal["MakeLock", "UpdateLock", "Save", "Raise", "Restore", "Clear", "Unlock"]
    subject: Object | None  # a quota, a budget or a lock; None: a lock that is to be made
    body: Mapping[str, Any]
    """A JSON merge patch that is bound to its version, or the new lock; empty: a lock that is to be deleted."""
    text: str
    migrations: Sequence[Object] = ()  # that it concerns besides the namespace's budgets

    @property
    def opens(self) -> bool:
        """Reports whether the write opens or widens a window."""
        return self.name in ("MakeLock", "UpdateLock", "Save", "Raise")


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause: nothing to write; re-check in `seconds` at the latest (infinite: when something happens)."""

    seconds: float
    reason: str


Step = Write | Wait


def next_step(window: Window) -> Step:
    """Returns the next step in a namespace; no contents of an object make it raise."""
    for row in OPENING if window.targets else OVERDUE if window.overdue else CLOSING:
        if (step := row(window)) is not None:
            return step
    if not window.targets:
        return Wait(window.recheck_after, "nothing to do")
    seconds_left = min(window.policy.lock_limit - window.age, window.policy.sweep, window.recheck_after)
    return Wait(max(0.0, seconds_left), "waiting for the target pods")


def _lock(window: Window) -> Step | None:
    observed, lock = window.observed, window.lock
    if lock is not None and observed.render_webhook is None:
        return None
    # Whose target is on its way stays: no pod shows it, and maybe a refusal of before, for which there is no room.
    present = admitted_by(lock) if lock else ()
    left_out = {t.migration.uid for t in window.refused_targets if not (t.blocking or t.lacks_room)}
    admitted = {target.admission_key for target in window.targets}
    admitted |= {entry for entry in present if entry.partition("/")[0] not in left_out}
    webhook = observed.render_webhook(admitted) if observed.render_webhook else {}  # none: the caches suggest it
    if lock is None:
        vms = sorted({target.migration.spec.vmi_name for target in window.targets})
        reason = ", ".join(vms[:_SHOWN]) + (f" and {len(vms) - _SHOWN} more" if len(vms) > _SHOWN else "")
        owner, longest = observed.lock_owner, window.seconds_left
        body = lock_body(observed.namespace, webhook, now=observed.now, owner=owner, reason=reason, longest=longest)
        return Write("MakeLock", None, body, f"locked for the migration of {reason}")
    if len(webhooks := lock.configuration.webhooks or []) == 1 and webhook.items() <= webhooks[0].items():
        return None
    # It is another installation's, the CA has changed, or it is for others.
    configuration, annotations = lock.configuration, {constants.ANNOTATION_HOLDER: observed.lock_owner}
    version = configuration.metadata.resource_version
    metadata = {"resourceVersion": version, "labels": constants.LOCK_LABELS, "annotations": annotations}
    body = {"metadata": metadata, "webhooks": [webhook]}
    return Write("UpdateLock", configuration, body, f"lock {configuration.name} updated")


def _save(window: Window) -> Step | None:
    """Saves to the status what is raised: for people, and for KubeVirt's own controller, should it replace us."""
    (budget,), records, released = window.observed.budgets, window.to_record(), window.released_migrations
    additions = [parse_resource_list(record.additional) for record in records.values()]
    additional = format_resource_list(reduce(maximum, additions, {}))
    status = budget.status
    originals = {original.name: original.spec.hard for original in status.original_blocking_resource_quotas or ()}
    is_complete = all(originals.get(name) == record.hard for name, record in records.items())
    is_complete = is_complete and window.members.keys() >= released.keys()
    if is_complete and (status.additional_migration_resources or {}) == additional:
        return None
    specs = {quota.name: msgspec.to_builtins(quota.spec) for quota in window.observed.quotas}
    saved = [{"name": name, "spec": {**specs[name], "hard": record.hard}} for name, record in sorted(records.items())]
    return _status_write(budget, additional, saved, {name: list(quotas) for name, quotas in released.items()})


def _raise(window: Window) -> Step | None:
    """Raises the next quota, once every API server knows the lock."""
    known_since = window.lock.known_since if window.lock else 0.0
    seconds_left = window.policy.settle - (window.observed.now - known_since)
    if seconds_left > 0:
        return Wait(seconds_left, "the lock reaches every API server")
    if (change := window.next_to_raise()) is None:
        return None
    name, released = change.quota.name, window.released_migrations
    migrations = [vmim for vmim in window.observed.facts.migrations if name in released.get(vmim.name, ())]
    return _change_write("Raise", change, f"resource quota {name} raised until the target pods exist", migrations)


def _restore(window: Window) -> Step | None:
    """Restores the next quota whose restore was not refused just now: those are tried again soon."""
    changes = window.to_restore()
    change = next((undone for undone in changes if undone.quota.key not in window.observed.refused_writes), None)
    if change is None:
        return Wait(math.inf, "some are still raised") if changes else None
    return _change_write("Restore", change, f"resource quota {change.quota.name} restored")


def _clear(window: Window) -> Step | None:
    """Clears the status: nothing is raised any more."""
    in_use = next(filter(is_in_use, window.observed.budgets), None)
    return _status_write(in_use, in_use.additional) if in_use else None


def _unlock(window: Window) -> Step | None:
    """Unlocks once admission goes by the old limits: before that, any tenant could take the headroom."""
    if window.lock is None or window.lock.configuration.key in window.observed.refused_writes:
        return None
    if not (window.overdue or all(map(is_lowering_enforced, window.observed.quotas))):
        return Wait(_ENFORCEMENT_POLL, "quota admission still uses the raised limits")
    raised = ", ".join(sorted(change.quota.name for change in window.to_restore() if change.hard))
    state = f"still to be restored: {raised}" if raised else "as before"
    return Write("Unlock", window.lock.configuration, {}, f"unlocked, the resource quotas are {state}")


def _mirror(window: Window) -> Step | None:
    """Mirrors to the status what may be added: upstream keeps it there, and people read it. No lock waits for that."""
    budgets = window.observed.budgets
    if len(budgets) != 1 or not window.observed.exists or budgets[0].deleting:
        return None
    current, additional = budgets[0].status.additional_migration_resources or {}, budgets[0].additional
    return _status_write(budgets[0], additional) if current != additional else None


_SHOWN = 10
_ENFORCEMENT_POLL = 1.0  # seconds; an event of the quota comes first, usually

Row = Callable[[Window], Step | None]
OPENING: Final[Sequence[Row]] = (_lock, _save, _raise)
CLOSING: Final[Sequence[Row]] = (_restore, _clear, _unlock, _mirror)
OVERDUE: Final[Sequence[Row]] = (_unlock, *CLOSING)
"""The rows by which a window is opened and kept open, closed, and closed in time whatever stands in the way. The first
row that has something to say is the next step; where none has, it waits. What the status says is written while a lock
reaches every API server, and while a restored quota reaches admission."""


def _change_write(
    name: Literal["Raise", "Restore"], change: Change, text: str, migrations: Sequence[Object] = ()
) -> Write:
    quota, hard, record = change
    annotations = {constants.ANNOTATION_ORIGINALS: record.text(quota.name) if record else None}
    metadata = {"resourceVersion": quota.metadata.resource_version, "annotations": annotations}
    if changes := ", ".join(f"{name} {quota.hard.get(name)} -> {limit}" for name, limit in hard.items()):
        text = f"{text}: {changes}"
    return Write(name, quota, {"metadata": metadata, "spec": {"hard": dict(hard)}}, text, migrations)


def _status_write(
    budget: VirtualMachineMigrationResourceQuota,
    additional: Mapping[str, RawQuantity],
    saved: Sequence[Any] | None = None,
    blocking: Mapping[str, Sequence[str]] | None = None,
) -> Write:
    """Returns the write of the status. It removes by name what the status says to be added and is not."""
    additions = dict.fromkeys(budget.status.additional_migration_resources or {}) | dict(additional)
    status = {
        "originalBlockingResourceQuotas": saved,
        "migrationsToBlockingResourceQuotas": blocking,
        "additionalMigrationResources": additions or None,
    }
    body = {"metadata": {"resourceVersion": budget.metadata.resource_version}, "status": status}
    text = f"{budget.name} says {'what is' if saved else 'that nothing is'} raised"
    return Write("Save" if saved else "Clear", budget, body, text)
