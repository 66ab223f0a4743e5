"""Which refused migrations the budget can release together, and which quotas are in their way. Pure.

    blocking = refused with today's spec.hard, admitted with what a window adds

A quota that refuses even then leaves the migration where it is, and nothing is changed for its sake.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import ZERO, QuantityError
from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.constants import EVENT_INVALID_BUDGET, EVENT_NOT_ENOUGH
from pkg.util.kubevirt.installed import hindrance, limits_of
from pkg.util.managedtenantquota.model import Observed, Policy, Problem
from pkg.util.managedtenantquota.record import Record
from pkg.util.managedtenantquota.targets import Missing, Room, missing_targets, with_largest_defaults
from pkg.util.resourcequota.entries import has_migrating_vm


class Releasable(NamedTuple):
    """A migration that can be released by raising these quotas."""

    migration: VirtualMachineInstanceMigration
    blocking: Sequence[str]


@dataclass(slots=True)
class Releases:
    """Which of a namespace's refused migrations can be released: none until `find` looks. Seconds."""

    observed: Observed
    policy: Policy
    releasable: list[Releasable] = field(default_factory=list)
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What is added to each of the blocking quotas, by name."""
    left_out: Collection[str] = ()
    """The uids of the refused migrations that are not released."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Why a migration that could be released is not, now, by its name: for people."""
    problems: list[Problem] = field(default_factory=list)
    short_since: dict[str, float] = field(default_factory=dict)
    recheck_after: float = math.inf

    def find(self, records: Mapping[str, Record], members: Collection[str], *, closed: bool) -> None:
        """`records`: how the raised quotas were before; `members`: the names of the migrations that the open window is
        for, `closed` to others."""
        observed = self.observed
        (budget,) = observed.budgets
        try:
            most = parse_resource_list(budget.additional)
            if negative := ", ".join(name for name, added in most.items() if added < ZERO):
                raise QuantityError(f"{negative}: less than nothing")
        except QuantityError as exc:
            message = f"spec.additionalMigrationResources: {exc}"
            self.problems.append(observed.problem(EVENT_INVALID_BUDGET, message, message))
            return
        rendering = with_largest_defaults(observed.facts.rendering)
        facts = replace(observed.facts, rendering=rendering, now=observed.now)
        refused = missing_targets(facts)
        quotas = [quota for quota in observed.quotas if refused and quota.hard and not quota.deleting]
        rooms = [Room(quota, records.get(quota.name), facts, most) for quota in quotas]
        for missing in refused:
            seconds, why = self._has_to_wait(missing, members if closed else None)
            if why:
                self._let_wait(missing, seconds, why)
            else:
                self._judge(missing, rooms, members)
        self.left_out = {m.migration.uid for m in refused} - {r.migration.uid for r in self.releasable}
        blocking = {name for found in self.releasable for name in found.blocking}
        self.added = {room.name: format_resource_list(room.added) for room in rooms if room.name in blocking}

    def _has_to_wait(self, missing: Missing, only: Collection[str] | None) -> tuple[float, str]:
        """For how many seconds, and why; "" where it has not. `only`: the names of those that the window is for; None:
        for all."""
        left = self.observed.timers.paused.get(missing.migration.uid, 0.0) - self.observed.now
        if left > 0:
            return left, f"a window for it was closed without a target pod, it is retried in {left:.0f} s"
        if only is not None and missing.migration.name not in only:
            return self.policy.sweep, "a window is open for other migrations: it is for the next one"
        limits = limits_of(self.observed.facts.rendering.kubevirt)
        node = missing.vmi.status.node_name or ""
        hindered = hindrance(self.observed.facts.running, node, limits) if missing.launcher else ""
        return self.policy.recheck, hindered and f"KubeVirt's limits: {hindered}"

    def _let_wait(self, missing: Missing, seconds: float, why: str) -> None:
        self.waiting[missing.migration.name] = why
        self._recheck(seconds)

    def _judge(self, missing: Missing, rooms: Sequence[Room], members: Collection[str]) -> None:
        migration = missing.migration
        try:
            blocking = [room for room in rooms if room.refuses(missing)]
            if taken := [room.name for room in blocking if is_taken(room.quota)]:
                # The other strategy is about to give it back: its limits are not the original ones.
                why = f"resource quota {', '.join(taken)} still holds what was added for migrations by annotations"
                self._let_wait(missing, self.policy.sweep, why)
                return
            short: dict[str, str] = {}
            for room in rooms:
                short |= room.shortages(missing)
            may_pass = not short or self._is_being_let_in(missing, short, members)
            if may_pass and blocking:
                for room in rooms:
                    room.let_in(missing)
                self.releasable.append(Releasable(migration, sorted(room.name for room in blocking)))
        except QuantityError as exc:
            self._say(migration, {"/": f"what it needs cannot be determined: {exc}"})

    def _is_being_let_in(self, missing: Missing, short: Mapping[str, str], members: Collection[str]) -> bool:
        """A shortage is reported once it lasts. Until then a migration keeps its part in the window: status.used counts
        a target pod before the cache shows it."""
        now, uid = self.observed.now, missing.migration.uid
        self.short_since[uid] = self.observed.timers.short_since.get(uid, now)
        left = self.short_since[uid] + self.policy.shortage - now
        if left <= 0:
            self._say(missing.migration, short)
            return False
        self._recheck(left)
        return missing.migration.name in members

    def _say(self, migration: VirtualMachineInstanceMigration, short: Mapping[str, str]) -> None:
        """`short`: by quota and resource that refuse the pod although all was added that may be, a text each."""
        message = (
            f"{self.observed.budgets[0].name} does not have enough resources to release migration {migration.name} of "
            f"VM {migration.spec.vmi_name}: {'; '.join(short.values())}"
        )
        key = f"{migration.uid}/{','.join(sorted(short))}"
        self.problems.append(self.observed.problem(EVENT_NOT_ENOUGH, message, key, migration))

    def _recheck(self, seconds: float) -> None:
        self.recheck_after = min(self.recheck_after, seconds)


def is_taken(quota: ResourceQuota) -> bool:
    """Whether the annotation strategy, ours or Harvester's own, has something on the quota: it is not to be raised
    by both."""
    marks = (constants.ANNOTATION_MIGRATING_COMPENSATION, constants.ANNOTATION_OWNER)
    return has_migrating_vm(quota.annotations) or any(mark in quota.annotations for mark in marks)
