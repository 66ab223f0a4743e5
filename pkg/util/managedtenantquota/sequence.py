"""The sequence as a table: what is observed → the next write. Pure.

    lock → save → raise → (target pods come) → restore → clear → unlock

Each row follows from what stands on the API server alone, so the process may end after any write: the next reconcile
goes on from there, or takes back what was begun."""

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
from pkg.util.managedtenantquota.lock import admitted_by, lock_body
from pkg.util.managedtenantquota.model import is_in_use, is_lowering_enforced
from pkg.util.managedtenantquota.window import Change, Window


@dataclass(frozen=True, slots=True)
class Write:
    """The next write. Its `name` is a metric's label."""

    name: Literal["MakeLock", "UpdateLock", "Save", "Raise", "Restore", "Clear", "Unlock"]
    subject: Object | None
    """A quota, a budget or a lock; None: a lock that is to be made."""
    body: Mapping[str, Any]
    """A JSON merge patch that is bound to its version, or the new lock; empty: a lock that is to be deleted."""
    text: str
    migrations: Sequence[Object] = ()
    """Whom it concerns besides the namespace's budgets."""

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
    version, annotations = lock.configuration.metadata.resource_version, {ANNOTATION_HOLDER: observed.lock_owner}
    metadata = {"resourceVersion": version, "labels": LOCK_LABELS, "annotations": annotations}
    body = {"metadata": metadata, "webhooks": [webhook]}
    return Write("UpdateLock", lock.configuration, body, f"lock {lock.configuration.name} updated")


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
    annotations = {ANNOTATION_ORIGINALS: record.text(quota.name) if record else None}
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
