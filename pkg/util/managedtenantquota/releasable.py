"""Which refused migrations the budget can release together, and which quotas are in their way. Pure.

    blocking = refused with today's spec.hard, admitted with what a window adds

A quota that refuses even then leaves the migration where it is, and nothing is changed for its sake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.amounts import compared
from pkg.util.constants import EVENT_INVALID_BUDGET, EVENT_NOT_ENOUGH
from pkg.util.kubevirt.installed import hindrance, limits_of
from pkg.util.managedtenantquota.grants import Grant
from pkg.util.managedtenantquota.missing_targets import Missing, missing_targets
from pkg.util.managedtenantquota.model import Observed, Policy, Problem, Timers
from pkg.util.managedtenantquota.record import Record
from pkg.util.quantity import ZERO, QuantityError
from pkg.util.resource_list import format_resource_list, parse_resource_list
from pkg.util.resourcequota.entries import has_migrating_vm


@dataclass(frozen=True, slots=True)
class Releasable:
    """A migration that can be released by raising these quotas."""

    migration: VirtualMachineInstanceMigration
    blocking: tuple[str, ...]


@dataclass(slots=True)
class Releases:
    """Which of a namespace's refused migrations can be released. `recheck_after` in seconds."""

    releasable: list[Releasable] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    short_since: dict[str, float] = field(default_factory=dict)
    recheck_after: float | None = None
    waiting: dict[str, str] = field(default_factory=dict)
    """Why a migration that could be released is not, now, by its name: for people."""
    left_out: Collection[str] = ()
    """The uids of the refused migrations that are not released."""
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What is added to each of the blocking quotas, by name."""

    @property
    def blocking(self) -> set[str]:
        """The quotas that are to be raised."""
        return {name for found in self.releasable for name in found.blocking}


def releases(
    observed: Observed, policy: Policy, records: Mapping[str, Record], members: Collection[str], *, closed: bool = False
) -> Releases:
    """`records`: how the raised quotas were before; `members`: the names of the migrations that the open window is for,
    `closed` to others."""
    (budget,) = observed.budgets
    try:
        most = parse_resource_list(budget.additional)
        negative = [name for name, added in most.items() if added < ZERO]
    except QuantityError as exc:
        return _invalid(observed, str(exc))
    if negative:
        return _invalid(observed, f"{', '.join(negative)}: less than nothing")
    grants = [
        Grant(quota, records.get(quota.name), observed, most)
        for quota in observed.quotas
        if quota.spec.hard and not quota.deleting
    ]
    return _Run(observed, policy, grants, members, closed).run()


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of `releases`."""

    observed: Observed
    policy: Policy
    grants: Sequence[Grant]
    members: Collection[str]
    closed: bool
    found: Releases = field(default_factory=Releases, init=False)

    def run(self) -> Releases:
        refused = missing_targets(self.observed.facts)
        for missing in refused:
            if not self._has_to_wait(missing):
                self._judge(missing)
        found, blocking = self.found, self.found.blocking
        found.left_out = {m.migration.uid for m in refused} - {r.migration.uid for r in found.releasable}
        found.added = {g.name: format_resource_list(g.added) for g in self.grants if g.name in blocking}
        return found

    def _has_to_wait(self, missing: Missing) -> bool:
        timers: Timers = self.observed.timers
        left = timers.paused.get(missing.migration.uid, 0.0) - self.observed.now
        if left > 0:
            why = f"a window for it was closed without a target pod, it is retried in {left:.0f} s"
            return self._let_wait(missing, left, why)
        if self.closed and missing.migration.name not in self.members:
            return self._let_wait(missing, self.policy.sweep, _LATE)
        node = missing.vmi.status.node_name or ""
        limits = limits_of(self.observed.facts.rendering.kubevirt)
        hindered = missing.launcher and hindrance(self.observed.facts.running, node, limits)
        return bool(hindered) and self._let_wait(missing, self.policy.recheck, f"KubeVirt's limits: {hindered}")

    def _let_wait(self, missing: Missing, seconds: float, why: str) -> bool:
        self.found.waiting[missing.migration.name] = why
        self._wait(seconds)
        return True

    def _judge(self, missing: Missing) -> None:
        try:
            blocking = [grant for grant in self.grants if grant.refuses(missing)]
            taken = next((grant.name for grant in blocking if is_taken(grant.quota)), None)
            if taken is not None:
                # The other strategy is about to give it back: its limits are not the original ones.
                self._let_wait(missing, self.policy.sweep, _TAKEN.format(taken))
                return
            shortages = {
                f"{grant.name}/{name}": _text(grant, missing, name)
                for grant in self.grants
                for name in grant.lacks(missing)
            }
            if shortages and not self._is_being_let_in(missing, shortages):
                return
            if blocking:
                self._let_in(missing, blocking, pending=not shortages)
        except QuantityError as exc:
            self._say(missing, {"/": f"what it needs cannot be determined: {exc}"})

    def _let_in(self, missing: Missing, blocking: Sequence[Grant], *, pending: bool) -> None:
        for grant in self.grants:
            grant.let_in(missing, pending=pending)
        names = tuple(sorted(grant.name for grant in blocking))
        self.found.releasable.append(Releasable(missing.migration, names))

    def _is_being_let_in(self, missing: Missing, shortages: Mapping[str, str]) -> bool:
        """A shortage is reported once it lasts. Until then a migration keeps its part in the window: status.used counts
        a target pod before the cache shows it."""
        now, uid = self.observed.now, missing.migration.uid
        since = self.observed.timers.short_since.get(uid, now)
        self.found.short_since[uid] = since
        left = since + self.policy.shortage - now
        if left <= 0:
            self._say(missing, shortages)
            return False
        self._wait(left)
        return missing.migration.name in self.members

    def _say(self, missing: Missing, shortages: Mapping[str, str]) -> None:
        """`shortages`: by quota and resource that refuse the pod although all was added that may be, a text each."""
        migration = missing.migration
        names = ", ".join(budget.name for budget in self.observed.budgets)
        message = (
            f"{names} does not have enough resources to release migration {migration.name} of VM "
            f"{migration.spec.vmi_name}: {'; '.join(shortages.values())}"
        )
        key = f"{migration.uid}/{','.join(sorted(shortages))}"
        self.found.problems.append(self.observed.problem(EVENT_NOT_ENOUGH, message, key, migration))

    def _wait(self, seconds: float) -> None:
        again = self.found.recheck_after
        self.found.recheck_after = seconds if again is None else min(again, seconds)


def is_taken(quota: ResourceQuota) -> bool:
    """Whether the annotation strategy, ours or Harvester's own, has something on the quota: it is not to be raised
    by both."""
    annotations = quota.annotations
    return (
        has_migrating_vm(annotations)
        or constants.ANNOTATION_MIGRATING_COMPENSATION in annotations
        or constants.ANNOTATION_OWNER in annotations
    )


_LATE = "a window is open for other migrations: it is for the next one"
_TAKEN = "resource quota {} still holds what was added for migrations by annotations"


def _text(grant: Grant, missing: Missing, name: str) -> str:
    amounts = compared(name, *grant.compared(missing, name))
    return "{} of quota {}: requested {}, used {}, limited {}, with what may be added {}".format(
        name, grant.name, *amounts
    )


def _invalid(observed: Observed, why: str) -> Releases:
    message = f"spec.additionalMigrationResources: {why}"
    return Releases(problems=[observed.problem(EVENT_INVALID_BUDGET, message, message)])
