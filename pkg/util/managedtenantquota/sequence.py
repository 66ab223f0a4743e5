"""The sequence as a table: what is observed → the next write. Pure.

    lock → save → raise → (target pods come) → restore → clear → unlock

Each row follows from what stands on the API server alone, so the process may end after any write: the next reconcile
goes on from there, or takes back what was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import msgspec

from kubeloop.api.core import ResourceQuota, ResourceQuotaSpec
from kubeloop.api.meta import RawQuantity
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.managedtenantquota.lock import Lock, Webhook, admitted_by, admitting, fits
from pkg.util.managedtenantquota.model import Observed, Policy, Problem, Timers
from pkg.util.managedtenantquota.record import Record, is_in_use, members_of
from pkg.util.managedtenantquota.window import Window, window_of
from pkg.util.resource_list import format_resource_list, maximum, parse_resource_list


@dataclass(frozen=True, slots=True)
class MakeLock:
    """Create the lock with this webhook; `reason` are the VMs that it is for."""

    webhook: Webhook
    reason: str
    longest: float = 0.0
    """Seconds that it lasts at most."""


@dataclass(frozen=True, slots=True)
class UpdateLock:
    """A lock stands that is not as it shall be: another installation's, the CA has changed, or it is for others."""

    lock: Lock
    webhook: Webhook


@dataclass(frozen=True, slots=True)
class Save:
    """Put the originals into the budget's status; a JSON merge patch bound to its version."""

    budget: VirtualMachineMigrationResourceQuota
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Raise:
    """Add to a quota, which records how it was; a JSON merge patch bound to its version."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record


@dataclass(frozen=True, slots=True)
class Restore:
    """Take back what was added to a quota; `record` is what it records further on, None: nothing."""

    quota: ResourceQuota
    hard: Mapping[str, str]
    record: Record | None


@dataclass(frozen=True, slots=True)
class Clear:
    """Empty the budget's status: nothing is raised any more."""

    budget: VirtualMachineMigrationResourceQuota
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unlock:
    """Delete the lock; `raised` are the quotas that are still to be restored."""

    lock: Lock
    raised: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to write; re-check in `seconds` at the latest (None: when something happens)."""

    seconds: float | None
    why: str = ""


Opening = MakeLock | UpdateLock | Save | Raise
Write = Opening | Restore | Clear | Unlock
Step = Write | Wait


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, what to tell people, and what to remember."""

    step: Step
    problems: Sequence[Problem] = ()
    timers: Timers = field(default_factory=Timers)

    @property
    def writes(self) -> bool:
        return not isinstance(self.step, Wait)


def decide(observed: Observed, policy: Policy) -> Decision:
    """The next step in a namespace; never raises for what stands in an object."""
    window = window_of(observed, policy)
    table = HANDS_OFF if window.left_to_upstream else OPENING if window.wanted else CLOSING
    step = next(step for row in table if (step := row(window)) is not None)
    return Decision(step, window.problems, window.timers)


# Whatever else there is to be done.


def _overdue(window: Window) -> Step | None:
    """A lock ends in time, whatever stands in the way of everything else."""
    return _unlock(window) if window.overdue else None


def _leave_alone(window: Window) -> Step:
    policy, lock = window.policy, window.observed.lock
    left = policy.lock_limit + policy.grace - window.age if lock is not None else policy.sweep
    return Wait(min(left, policy.sweep), "KubeVirt's own controller does it")


# While there are migrations to be released.


def _lock(window: Window) -> Step | None:
    if window.locked:
        return None
    vms = sorted({each.migration.spec.vmi_name for each in window.wanted})
    reason = ", ".join(vms[:_SHOWN]) + (f" and {len(vms) - _SHOWN} more" if len(vms) > _SHOWN else "")
    webhook = admitting(window.observed.wanted_lock or {}, window.admitted)
    return MakeLock(webhook, reason, window.policy.lock_limit + window.policy.grace)


def _update(window: Window) -> Step | None:
    lock, wanted = window.observed.lock, window.observed.wanted_lock
    if lock is None or wanted is None:
        return None
    # Whose target is on its way stays: neither a refusal nor a pod shows it.
    kept = {each for each in admitted_by(lock) if each.partition("/")[0] not in window.found.left_out}
    webhook = admitting(wanted, kept | window.admitted)
    return None if fits(lock, webhook) else UpdateLock(lock, webhook)


def _settle(window: Window) -> Step | None:
    seen = window.observed.lock.seen if window.observed.lock else 0.0
    left = window.policy.settle - (window.observed.now - seen)
    return Wait(left, "the lock reaches every API server") if left > 0 else None


def _save(window: Window) -> Step | None:
    """For people, and for KubeVirt's own controller, should it replace us: nothing here is read from it."""
    budget, records = window.observed.budgets[0], window.to_record()
    added = [parse_resource_list(record.added) for record in records.values()]
    additional = format_resource_list(reduce(maximum, added, {}))
    said, status = budget.status, _status(window, records)
    known = {each.name for each in said.original_blocking_resource_quotas or ()}
    is_complete = known >= records.keys() and members_of(budget).keys() >= window.members.keys()
    if is_complete and (said.additional_migration_resources or {}) == additional:
        return None
    status["additionalMigrationResources"] = _instead_of(budget, additional)
    return Save(budget, _bound(budget, status))


def _status(window: Window, records: Mapping[str, Record]) -> dict[str, Any]:
    saved = []
    for name in sorted(records):
        quota = window.quota(name)
        spec = quota.spec if quota is not None else ResourceQuotaSpec()
        was = msgspec.structs.replace(spec, hard=records[name].hard)
        saved.append({"name": name, "spec": msgspec.to_builtins(was)})
    members = {name: list(quotas) for name, quotas in window.members.items()}
    return {"originalBlockingResourceQuotas": saved, "migrationsToBlockingResourceQuotas": members}


def _instead_of(budget: VirtualMachineMigrationResourceQuota, additional: Mapping[str, RawQuantity]) -> dict[str, Any]:
    """What the status says to be added; a merge patch has to take out by name what it says and is not."""
    return dict.fromkeys(budget.status.additional_migration_resources or {}) | dict(additional)


def _raise(window: Window) -> Step | None:
    found = window.next_to_raise()
    return Raise(*found) if found else None


def _await_targets(window: Window) -> Step:
    left = window.policy.lock_limit - window.age
    again = window.policy.sweep if window.recheck_after is None else window.recheck_after
    return Wait(max(0.0, min(left, window.policy.sweep, again)), "waiting for the target pods")


# While there are none.


def _restore(window: Window) -> Step | None:
    found = window.next_to_restore()
    return Restore(*found) if found else None


def _await_restore(window: Window) -> Step | None:
    """The others are restored; those that could not be are tried again soon."""
    refused = window.observed.not_restored
    return Wait(None, "; ".join(f"{name}: {why}" for name, why in sorted(refused.items()))) if refused else None


def _await_enforcement(window: Window) -> Step | None:
    """Unlocked before admission goes by the old limits, every tenant could take the headroom for a moment."""
    if window.is_in_force():
        return None
    return Wait(_ENFORCEMENT_POLL, "quota admission still uses the raised limits")


def _clear(window: Window) -> Step | None:
    """Nothing is raised any more."""
    saved = [budget for budget in window.observed.budgets if is_in_use(budget)]
    return _cleared(saved[0]) if saved else None


def _unlock(window: Window) -> Step | None:
    lock = window.observed.lock
    return Unlock(lock, window.raised) if lock is not None and not window.observed.not_unlocked else None


def _mirror(window: Window) -> Step | None:
    """Upstream keeps in the status what may be added, and people read it there. No lock waits for that."""
    budgets = window.observed.budgets
    if len(budgets) != 1 or not window.observed.exists or budgets[0].deleting:
        return None
    said = budgets[0].status.additional_migration_resources or {}
    return _cleared(budgets[0]) if said != budgets[0].additional else None


def _cleared(budget: VirtualMachineMigrationResourceQuota) -> Clear:
    status = {**dict.fromkeys(_JOURNAL), "additionalMigrationResources": _instead_of(budget, budget.additional) or None}
    return Clear(budget, _bound(budget, status))


def _idle(window: Window) -> Step:
    return Wait(window.recheck_after, "nothing to do")


_SHOWN = 10
_ENFORCEMENT_POLL = 1.0
"""Seconds. An event of the quota comes first, usually."""
_JOURNAL = ("originalBlockingResourceQuotas", "migrationsToBlockingResourceQuotas")

Row = Callable[[Window], Step | None]
HANDS_OFF: Final[Sequence[Row]] = (_overdue, _leave_alone)
OPENING: Final[Sequence[Row]] = (_lock, _update, _settle, _save, _raise, _await_targets)
CLOSING: Final[Sequence[Row]] = (
    _overdue,
    _restore,
    _await_restore,
    _await_enforcement,
    _clear,
    _unlock,
    _mirror,
    _idle,
)
"""The first row that has something to say is the next step; the last one of each always has."""


def _bound(budget: VirtualMachineMigrationResourceQuota, status: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": budget.metadata.resource_version}, "status": dict(status)}
