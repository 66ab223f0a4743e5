"""The sequence as a table: what is observed → the next write. Pure.

    lock → save → raise → (target pods come) → restore → clear → unlock

Each row follows from what stands on the API server alone, so the process may end after any write: the next look goes
on from there, or takes back what was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pkg.api.core import ResourceQuota
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.managedtenantquota.lock import Lock, fits
from pkg.util.managedtenantquota.model import Memory, Observed, Policy, Problem
from pkg.util.managedtenantquota.window import Journal, Window, look


@dataclass(frozen=True, slots=True)
class MakeLock:
    """Create the lock; `reason` are the VMs that it is for."""

    reason: str


@dataclass(frozen=True, slots=True)
class MendLock:
    """A lock stands that is not as it shall be: another installation's, or the CA has changed."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Save:
    """Put the originals into the budget's status; a JSON merge patch bound to its version."""

    budget: VirtualMachineMigrationResourceQuota
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Raise:
    """Add to a quota; a JSON merge patch bound to its version."""

    quota: ResourceQuota
    hard: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Restore:
    """Take back what was added to a quota."""

    quota: ResourceQuota
    hard: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Clear:
    """Empty the budget's status: nothing is raised any more."""

    budget: VirtualMachineMigrationResourceQuota
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unlock:
    """Delete the lock."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to write; look again in `seconds` at the latest (None: when something happens)."""

    seconds: float | None
    why: str = ""


Write = MakeLock | MendLock | Save | Raise | Restore | Clear | Unlock
Step = Write | Wait


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, what to tell people, and what to remember."""

    step: Step
    problems: Sequence[Problem] = ()
    memory: Memory = field(default_factory=Memory)

    @property
    def writes(self) -> bool:
        return not isinstance(self.step, Wait)


def decide(observed: Observed, policy: Policy) -> Decision:
    """The next step in a namespace. Raises QuantityError when the journal holds no quantities."""
    window = look(observed, policy)
    table = OPENING if window.wanted else CLOSING
    step = next(step for row in table if (step := row(window)) is not None)
    return Decision(step, window.problems, window.memory)


# While there are migrations to be released.


def _lock(window: Window) -> Step | None:
    if window.locked:
        return None
    vms = sorted({each.migration.spec.vmi_name for each in window.wanted})
    return MakeLock(", ".join(vms[:_SHOWN]) + (f" and {len(vms) - _SHOWN} more" if len(vms) > _SHOWN else ""))


def _mend(window: Window) -> Step | None:
    lock, wanted = window.observed.lock, window.observed.wanted_lock
    return MendLock(lock) if lock is not None and wanted is not None and not fits(lock, wanted) else None


def _settle(window: Window) -> Step | None:
    left = window.policy.settle - window.age
    return Wait(left, "the lock reaches every API server") if left > 0 else None


def _save(window: Window) -> Step | None:
    if not window.unsaved():
        return None
    journal = window.journal
    originals = dict(journal.originals)
    for name in window.blocking:
        quota = window.quota(name)
        if name not in originals and quota is not None:
            originals[name] = quota.spec
    members = {each.migration.name: list(each.blocking) for each in window.wanted}
    status = {
        "originalBlockingResourceQuotas": [
            {"name": name, "spec": msgspec.to_builtins(originals[name])} for name in sorted(originals)
        ],
        "migrationsToBlockingResourceQuotas": {**{n: list(q) for n, q in journal.members.items()}, **members},
        "additionalMigrationResources": {**_stale(journal), **journal.additional},
    }
    return Save(journal.budget, _bound(journal.budget, status))


def _stale(journal: Journal) -> dict[str, None]:
    """What the status says to be added and is not: a merge patch has to take it out by name."""
    stands = journal.budget.status.additional_migration_resources or {}
    return dict.fromkeys(name for name in stands if name not in journal.additional)


def _raise(window: Window) -> Step | None:
    """To the saved limits and the budget, whatever it says now: under the lock the saved limits are the truth."""
    found = window.next_to_raise()
    return Raise(*found) if found else None


def _await_targets(window: Window) -> Step:
    left = window.policy.lock_limit - window.age
    return Wait(max(0.0, min(left, window.policy.sweep)), "the target pods are to come")


# While there are none.


def _restore(window: Window) -> Step | None:
    found = window.next_to_restore()
    return Restore(*found) if found else None


def _await_enforcement(window: Window) -> Step | None:
    """Unlocked before admission goes by the old limits, the room would be open to everybody for a moment."""
    if window.is_in_force():
        return None
    return Wait(_ENFORCEMENT_POLL, "quota admission goes by the raised limits still")


def _clear(window: Window) -> Step | None:
    for journal in window.saved:
        return Clear(journal.budget, _bound(journal.budget, dict.fromkeys(_STATUS_FIELDS)))
    return None


def _unlock(window: Window) -> Step | None:
    lock = window.observed.lock
    return Unlock(lock) if lock is not None else None


def _rest(window: Window) -> Step:
    return Wait(window.look_again, "nothing to do")


_SHOWN = 10
_ENFORCEMENT_POLL = 1.0
"""Seconds. An event of the quota comes first, usually."""
_STATUS_FIELDS = (
    "originalBlockingResourceQuotas",
    "migrationsToBlockingResourceQuotas",
    "additionalMigrationResources",
)

Row = Callable[[Window], Step | None]
OPENING: Final[Sequence[Row]] = (_lock, _mend, _settle, _save, _raise, _await_targets)
CLOSING: Final[Sequence[Row]] = (_restore, _await_enforcement, _clear, _unlock, _rest)
"""The first row that has something to say is the next step; the last one of each always has."""


def _bound(budget: VirtualMachineMigrationResourceQuota, status: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": budget.metadata.resource_version}, "status": dict(status)}
