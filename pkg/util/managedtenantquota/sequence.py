"""The sequence as a table: what is observed → the next write. Pure.

    lock → save → raise → (target pods come) → restore → clear → unlock

Each row follows from what stands on the API server alone, so the process may end after any write: the next reconcile
goes on from there, or takes back what was begun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal

import msgspec

from kubeloop.api.meta import Object, RawQuantity
from kubeloop.api.resource_list import format_resource_list, maximum, parse_resource_list
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.constants import ANNOTATION_HOLDER, ANNOTATION_ORIGINALS, LOCK_LABELS
from pkg.util.managedtenantquota.lock import admitted_by, entry_of, fits, lock_body
from pkg.util.managedtenantquota.record import is_enforced, is_in_use, members_of
from pkg.util.managedtenantquota.window import Change, Window


@dataclass(frozen=True, slots=True)
class Write:
    """The next write. Its `name` is a metric's label."""

    name: Literal["MakeLock", "UpdateLock", "Save", "Raise", "Restore", "Clear", "Unlock"]
    what: Object | None
    """A quota, a budget or a lock, as it stands; None: a lock that is to be made."""
    body: Mapping[str, Any]
    """A JSON merge patch that is bound to its version, or the new lock; empty: a lock that is to be deleted."""
    text: str
    """What it does, for people."""
    about: Sequence[Object] = ()
    """Whom it concerns beside the namespace's budgets."""

    @property
    def opens(self) -> bool:
        """Whether it is to open a window, or to widen it."""
        return self.name in ("MakeLock", "UpdateLock", "Save", "Raise")


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to write; re-check in `seconds` at the latest (infinite: when something happens)."""

    seconds: float
    why: str


Step = Write | Wait


def next_step(window: Window) -> Step:
    """The next step in a namespace; never raises for what stands in an object."""
    for row in OPENING if window.wanted else CLOSING:
        if (step := row(window)) is not None:
            return step
    if not window.wanted:
        return Wait(window.recheck_after, "nothing to do")
    left = min(window.policy.lock_limit - window.age, window.policy.sweep, window.recheck_after)
    return Wait(max(0.0, left), "waiting for the target pods")


# While there are migrations to be released.


def _lock(window: Window) -> Step | None:
    seen, lock = window.observed, window.lock
    if lock is not None and seen.wanted_lock is None:
        return None
    admitted = {entry_of(each.migration.uid, each.migration.spec.vmi_name) for each in window.wanted}
    # Whose target is on its way stays: neither a refusal nor a pod shows it.
    kept, left_out = admitted_by(lock) if lock else (), {m.migration.uid for m in window.missing if not m.blocking}
    admitted |= {each for each in kept if each.partition("/")[0] not in left_out}
    webhook = seen.wanted_lock(admitted) if seen.wanted_lock else {}  # none: the caches suggest it
    if lock is None:
        vms = sorted({each.migration.spec.vmi_name for each in window.wanted})
        reason = ", ".join(vms[:_SHOWN]) + (f" and {len(vms) - _SHOWN} more" if len(vms) > _SHOWN else "")
        longest = window.policy.longest
        body = lock_body(seen.namespace, webhook, now=seen.now, holder=seen.holder, reason=reason, longest=longest)
        return Write("MakeLock", None, body, f"locked for the migration of {reason}")
    if fits(lock, webhook):
        return None
    # It is another installation's, the CA has changed, or it is for others.
    known, annotations = lock.configuration, {ANNOTATION_HOLDER: seen.holder}
    metadata = {"resourceVersion": known.metadata.resource_version, "labels": LOCK_LABELS, "annotations": annotations}
    return Write("UpdateLock", known, {"metadata": metadata, "webhooks": [webhook]}, f"lock {known.name} updated")


def _settle(window: Window) -> Step | None:
    seen = window.lock.seen if window.lock else 0.0
    left = window.policy.settle - (window.observed.now - seen)
    return Wait(left, "the lock reaches every API server") if left > 0 else None


def _save(window: Window) -> Step | None:
    """For people, and for KubeVirt's own controller, should it replace us: nothing here is read from it."""
    (budget,), records, members = window.observed.budgets, window.to_record(), window.members
    added = [parse_resource_list(record.added) for record in records.values()]
    additional = format_resource_list(reduce(maximum, added, {}))
    said = budget.status
    known = {each.name for each in said.original_blocking_resource_quotas or ()}
    is_complete = known >= records.keys() and members_of(budget).keys() >= members.keys()
    if is_complete and (said.additional_migration_resources or {}) == additional:
        return None
    specs = {quota.name: quota.spec for quota in window.observed.quotas}
    was = {name: msgspec.structs.replace(specs[name], hard=record.hard) for name, record in sorted(records.items())}
    saved = [{"name": name, "spec": msgspec.to_builtins(spec)} for name, spec in was.items()]
    blocking = {name: list(quotas) for name, quotas in members.items()}
    return Write("Save", budget, _status(budget, saved, blocking, additional), f"{budget.name} says what is raised")


def _raise(window: Window) -> Step | None:
    change, members = window.next_to_raise(), window.members
    if change is None:
        return None
    name = change.quota.name
    about = [each for each in window.observed.facts.migrations if name in members.get(each.name, ())]
    return _written("Raise", change, f"resource quota {name} raised until the target pods exist", about)


# While there are none.


def _overdue(window: Window) -> Step | None:
    """A lock ends in time, whatever stands in the way of everything else."""
    return _unlock(window) if window.overdue else None


def _restore(window: Window) -> Step | None:
    """The next one that was not refused just now: those are tried again soon."""
    changes = window.to_restore()
    change = next((each for each in changes if each.quota.key not in window.observed.refused), None)
    if change is None:
        return Wait(math.inf, "some are still raised") if changes else None
    return _written("Restore", change, f"resource quota {change.quota.name} restored")


def _await_enforcement(window: Window) -> Step | None:
    """Unlocked before admission goes by the old limits, every tenant could take the headroom for a moment."""
    if window.lock is None or all(map(is_enforced, window.observed.quotas)):
        return None
    return Wait(_ENFORCEMENT_POLL, "quota admission still uses the raised limits")


def _clear(window: Window) -> Step | None:
    """Nothing is raised any more."""
    return next((_cleared(budget) for budget in window.observed.budgets if is_in_use(budget)), None)


def _unlock(window: Window) -> Step | None:
    if window.lock is None or window.lock.configuration.key in window.observed.refused:
        return None
    raised = ", ".join(sorted(change.quota.name for change in window.to_restore() if change.hard))
    state = f"still to be restored: {raised}" if raised else "as before"
    return Write("Unlock", window.lock.configuration, {}, f"unlocked, the resource quotas are {state}")


def _mirror(window: Window) -> Step | None:
    """Upstream keeps in the status what may be added, and people read it there. No lock waits for that."""
    if len(window.observed.budgets) != 1 or not window.observed.exists:
        return None
    (budget,) = window.observed.budgets
    said = budget.status.additional_migration_resources or {}
    return _cleared(budget) if said != budget.additional and not budget.deleting else None


_SHOWN = 10
_ENFORCEMENT_POLL = 1.0
"""Seconds. An event of the quota comes first, usually."""

Row = Callable[[Window], Step | None]
OPENING: Final[Sequence[Row]] = (_lock, _settle, _save, _raise)
CLOSING: Final[Sequence[Row]] = (_overdue, _restore, _await_enforcement, _clear, _unlock, _mirror)
"""The first row that has something to say is the next step; where none has, it waits."""


# What is written.


def _written(name: Literal["Raise", "Restore"], change: Change, what: str, about: Sequence[Object] = ()) -> Write:
    quota, hard, record = change
    metadata = {
        "resourceVersion": quota.metadata.resource_version,
        "annotations": {ANNOTATION_ORIGINALS: record.text(quota.name) if record else None},
    }
    if changes := ", ".join(f"{name} {quota.hard.get(name)} -> {to}" for name, to in hard.items()):
        what = f"{what}: {changes}"
    return Write(name, quota, {"metadata": metadata, "spec": {"hard": dict(hard)}}, what, about)


def _cleared(budget: VirtualMachineMigrationResourceQuota) -> Write:
    patch = _status(budget, None, None, budget.additional)
    return Write("Clear", budget, patch, f"{budget.name} says that nothing is raised")


def _status(
    budget: VirtualMachineMigrationResourceQuota,
    saved: Sequence[Any] | None,
    members: Mapping[str, Any] | None,
    additional: Mapping[str, RawQuantity],
) -> dict[str, Any]:
    """A merge patch has to take out by name what the status says to be added and is not."""
    added = dict.fromkeys(budget.status.additional_migration_resources or {}) | dict(additional)
    status = {
        "originalBlockingResourceQuotas": saved,
        "migrationsToBlockingResourceQuotas": members,
        "additionalMigrationResources": added or None,
    }
    return {"metadata": {"resourceVersion": budget.metadata.resource_version}, "status": status}
