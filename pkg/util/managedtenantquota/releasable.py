"""Which refused migrations the budget can release, and which quotas are in their way. Pure.

    blocking = refused with today's spec.hard, admitted with what the budget adds

A quota that refuses even then leaves the migration where it is, and nothing is changed for its sake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import ResourceQuota, ResourceQuotaSpec
from kubeloop.api.meta import Object, RawResourceList
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util import constants
from pkg.util.amounts import compared
from pkg.util.kubevirt.parallel_migrations import hindrance, limits_of
from pkg.util.managedtenantquota.budget import exceeded, with_budget
from pkg.util.managedtenantquota.constants import EVENT_INVALID_BUDGET, EVENT_NOT_ENOUGH
from pkg.util.managedtenantquota.missing_targets import Missing, missing_targets, need_of
from pkg.util.managedtenantquota.model import Memory, Observed, Policy, Problem
from pkg.util.quantity import ZERO, QuantityError
from pkg.util.resource_list import ResourceList, parse_resource_list
from pkg.util.resourcequota.entries import has_migrating_vm


@dataclass(frozen=True, slots=True)
class Releasable:
    """A migration that can be released by raising these quotas."""

    migration: VirtualMachineInstanceMigration
    blocking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Releases:
    """Which of a namespace's refused migrations can be released. `recheck_after` in seconds."""

    releasable: Sequence[Releasable] = ()
    problems: Sequence[Problem] = ()
    short_since: Mapping[str, float] | None = None
    recheck_after: float | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Why a migration that could be released is not, now, by its name: for people."""

    @property
    def blocking(self) -> set[str]:
        """The quotas that are to be raised."""
        return {name for found in self.releasable for name in found.blocking}


def releases(
    observed: Observed,
    policy: Policy,
    additional: RawResourceList,
    originals: Mapping[str, ResourceQuotaSpec],
) -> Releases:
    """`additional` is what the budget adds, `originals` how the raised quotas were before."""
    try:
        negative = [name for name, added in parse_resource_list(additional).items() if added < ZERO]
    except QuantityError as exc:
        return Releases(problems=[_invalid(observed.budgets, str(exc))])
    if negative:
        return Releases(problems=[_invalid(observed.budgets, f"{', '.join(negative)}: less than nothing")])
    return _Run(observed, policy, additional, originals).run()


@dataclass(frozen=True, slots=True)
class _Shortage:
    """A quota that refuses a pod although all was added that may be."""

    quota: str
    resource: str
    text: str


class _Run:
    """One run of `releases`."""

    def __init__(
        self,
        observed: Observed,
        policy: Policy,
        additional: RawResourceList,
        originals: Mapping[str, ResourceQuotaSpec],
    ) -> None:
        self.observed = observed
        self.policy = policy
        self.additional = additional
        self.originals = originals
        self.limits = limits_of(observed.surroundings.rendering.kubevirt)
        self.releasable: list[Releasable] = []
        self.problems: list[Problem] = []
        self.short_since: dict[str, float] = {}
        self.recheck_after: float | None = None
        self.waiting: dict[str, str] = {}

    def run(self) -> Releases:
        for missing in missing_targets(self.observed.surroundings):
            if not self._has_to_wait(missing):
                self._judge(missing)
        return Releases(self.releasable, self.problems, self.short_since, self.recheck_after, self.waiting)

    def _has_to_wait(self, missing: Missing) -> bool:
        memory: Memory = self.observed.memory
        left = memory.resting.get(missing.migration.uid, 0.0) - self.observed.now
        if left > 0:
            why = f"a window for it was closed without a target pod, it is retried in {left:.0f} s"
            return self._let_wait(missing, left, why)
        node = missing.vmi.status.node_name or ""
        hindered = missing.launcher and hindrance(self.observed.surroundings.running, node, self.limits)
        return bool(hindered) and self._let_wait(missing, self.policy.busy, f"KubeVirt's limits: {hindered}")

    def _let_wait(self, missing: Missing, seconds: float, why: str) -> bool:
        self.waiting[missing.migration.name] = why
        self._wait(seconds)
        return True

    def _judge(self, missing: Missing) -> None:
        blocking: list[str] = []
        shortages: list[_Shortage] = []
        try:
            for quota in self.observed.quotas:
                refused = self._evaluate(missing, quota, shortages)
                if refused and is_taken(quota):
                    # The other strategy is about to give it back: its limits are not the original ones.
                    self._let_wait(missing, self.policy.sweep, _TAKEN.format(quota.name))
                    return
                if refused:
                    blocking.append(quota.name)
        except QuantityError as exc:
            self._say(missing, [_Shortage("", "", f"what it needs cannot be determined: {exc}")])
            return
        if shortages:
            self._fall_short(missing, shortages)
        elif blocking:
            self.releasable.append(Releasable(missing.migration, tuple(sorted(blocking))))

    def _evaluate(self, missing: Missing, quota: ResourceQuota, shortages: list[_Shortage]) -> bool:
        """Whether the quota refuses the pod as it was before; what it refuses even when raised goes to `shortages`."""
        spec = self.originals.get(quota.name, quota.spec)
        if quota.deleting or not spec.hard:
            return False
        next_pod, all_pods = need_of(missing, self.observed.surroundings.rendering, spec)
        used = parse_resource_list(quota.used)
        hard, most = parse_resource_list(spec.hard), with_budget(spec.hard, self.additional)
        shortages += [
            _Shortage(quota.name, name, _text(quota.name, name, all_pods, used, hard, most))
            for name in exceeded(all_pods, used, most)
        ]
        return bool(exceeded(next_pod, used, hard))

    def _fall_short(self, missing: Missing, shortages: Sequence[_Shortage]) -> None:
        """A shortage is reported once it lasts."""
        now, uid = self.observed.now, missing.migration.uid
        since = self.observed.memory.short_since.get(uid, now)
        self.short_since[uid] = since
        left = since + self.policy.shortage - now
        if left > 0:
            self._wait(left)
            return
        self._say(missing, shortages)

    def _say(self, missing: Missing, shortages: Sequence[_Shortage]) -> None:
        migration = missing.migration
        budgets: Sequence[VirtualMachineMigrationResourceQuota] = self.observed.budgets
        about: list[Object] = [migration, *budgets]
        names = ", ".join(budget.name for budget in budgets)
        reasons = "; ".join(shortage.text for shortage in shortages)
        message = (
            f"{names} does not have enough resources to release migration {migration.name} of VM "
            f"{migration.spec.vmi_name}: {reasons}"
        )
        cause = ",".join(sorted({f"{shortage.quota}/{shortage.resource}" for shortage in shortages}))
        self.problems.append(
            Problem(EVENT_NOT_ENOUGH, message, about, f"{EVENT_NOT_ENOUGH}/{migration.uid}/{cause}")
        )

    def _wait(self, seconds: float) -> None:
        self.recheck_after = seconds if self.recheck_after is None else min(self.recheck_after, seconds)


def is_taken(quota: ResourceQuota) -> bool:
    """Whether the annotation strategy, ours or Harvester's own, has something on the quota: it is not to be raised
    by both."""
    annotations = quota.annotations
    return (
        has_migrating_vm(annotations)
        or constants.ANNOTATION_MIGRATING_COMPENSATION in annotations
        or constants.ANNOTATION_OWNER in annotations
    )


_TAKEN = "resource quota {} still holds what was added for migrations by annotations"


def _text(
    quota: str, name: str, need: ResourceList, used: ResourceList, hard: ResourceList, most: ResourceList
) -> str:
    amounts = compared(name, need[name], used.get(name, ZERO), hard[name], most[name])
    return "{} of quota {}: requested {}, used {}, limited {}, with what may be added {}".format(
        name, quota, *amounts
    )


def _invalid(budgets: Sequence[VirtualMachineMigrationResourceQuota], why: str) -> Problem:
    message = f"spec.additionalMigrationResources: {why}"
    return Problem(EVENT_INVALID_BUDGET, message, list(budgets), f"{EVENT_INVALID_BUDGET}/{message}")
