"""Beside Harvester: the fixpoint of its vmim and rq controllers, in one patch. Pure.

Sources: Harvester vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go. Entries are
written once and stay as they are; everything that upstream leaves alone is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.names import migrating_uid_key
from pkg.util.quantity import ZERO, Quantity, QuantityError
from pkg.util.resourcequota import entry_rules
from pkg.util.resourcequota.annotations import Journal
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.calculator import difference, limits_are_empty, quantity_of, scaled_hard
from pkg.util.resourcequota.compensation import MemoryState, compensation_for
from pkg.util.resourcequota.demand import Demand, Standing, demands, is_finished
from pkg.util.resourcequota.errors import (
    InvalidEntry,
    InvalidNamespaceAnnotation,
    NoLimits,
    ResourceQuotaError,
)
from pkg.util.resourcequota.exact import target_usage
from pkg.util.resourcequota.model import EstimateKind, Memory, Observed, Plan, Policy
from pkg.util.resourcequota.participation import is_off
from pkg.util.resourcequota.sides import assign, sides_by_vm

SCALED = (LIMITS_CPU, LIMITS_MEMORY)
"""The resources that Harvester scales."""


def plan(observed: Observed, policy: Policy) -> Plan:
    """The patch for one default ResourceQuota; one that is switched off is only restored."""
    return _Planning(observed, policy).run()


@dataclass(frozen=True, slots=True)
class _Base:
    """The non-zero limits that entries are added to; none: spec.hard is not ours to scale."""

    limits: Mapping[str, Quantity]


class _Planning:
    """One run of `plan`: the journal as it changes, and what has been found on the way."""

    def __init__(self, observed: Observed, policy: Policy) -> None:
        self.observed = observed
        self.policy = policy
        self.quota = observed.quota
        self.journal = Journal(observed.quota.annotations)
        self.off = is_off(observed.quota.annotations, policy.mode)
        self.problems: list[ResourceQuotaError] = []
        self.hard: Mapping[str, str | None] = {}
        self.short_since: float | None = None
        self.look_again: float | None = None

    def run(self) -> Plan:
        claims = demands(self.observed.migrations, self.observed.instances)
        dropped, waiting = self._drop(claims)
        base = None if self.off else self._base()
        if base is not None and base.limits:
            self._add(claims, base.limits)
            self._scale(claims, base.limits)
        self._flag(dropped, settled=base is not None)
        return Plan(
            annotations=self.journal.changes(),
            hard=self.hard,
            problems=self.problems,
            memory=Memory(waiting, self.short_since),
            look_again=self.look_again,
        )

    def _drop(self, claims: Mapping[str, Demand]) -> tuple[bool, dict[str, float]]:
        """Entries that are no longer needed go; with them, beside Harvester, the compensation (as upstream)."""
        dropped = entry_rules.drop_finished(self.journal, claims.values())
        waiting: dict[str, float] = {}
        if not self.off:
            orphaned, waiting = entry_rules.drop_unexplained(
                self.journal,
                entry_rules.unexplained(
                    self.journal,
                    entry_rules.explained_keys(self.journal, claims.values()),
                    uids_unknown=any(
                        c.vmi is None and c.standing is not Standing.FINISHED for c in claims.values()
                    ),
                ),
                self.observed.memory.unexplained,
                ours=False,
                now=self.observed.now,
                grace=self.policy.foreign_grace,
            )
            dropped |= orphaned
        if waiting:
            self._wait(min(waiting.values()) + self.policy.foreign_grace - self.observed.now)
        if dropped:
            self.journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
        return dropped, waiting

    def _base(self) -> _Base | None:
        """What the namespace grants. None: its annotation is garbage, and the resync flag stays as it is."""
        if not self.observed.limits:
            return _Base({})
        try:
            limits = parse_base(self.observed.limits)
        except InvalidNamespaceAnnotation as exc:
            self.problems.append(exc)
            return None
        except ResourceQuotaError as exc:
            self.problems.append(exc)
            return _Base({})
        if self.policy.render:
            return _Base(limits)
        if limits_are_empty(self.quota.hard):
            return _Base({})
        return _Base({name: limits[name] for name in SCALED if name in limits and not limits[name].is_zero()})

    def _add(self, claims: Mapping[str, Demand], base: Mapping[str, Quantity]) -> None:
        """An entry for every VM that needs one and has none yet."""
        for claim in claims.values():
            if claim.standing is not Standing.WANTED or claim.vmi is None:
                continue
            if self.journal.keys_of(claim.vm_name, claim.vmi_uid):
                continue
            need = self._need(claim.vmi)
            if need is None:
                self.problems.append(NoLimits(f"VM {claim.vm_name} has neither a cpu nor a memory limit"))
            else:
                self.journal.put(migrating_uid_key(claim.vmi_uid), need)

    def _need(self, vmi: VirtualMachineInstance) -> Mapping[str, Quantity] | None:
        try:
            if self.policy.estimate is EstimateKind.EXACT:
                return self._exact(vmi)
            return self.observed.estimate(vmi, self.quota.hard)
        except QuantityError as exc:
            self.problems.append(NoLimits(f"VM {vmi.name}: {exc}"))
            return None

    def _exact(self, vmi: VirtualMachineInstance) -> Mapping[str, Quantity]:
        """What quota will count of the target, of the two resources that Harvester reads in an entry."""
        active = {m.uid for m in self.observed.migrations if not is_finished(m)}
        placed = assign(sides_by_vm(self.observed.pods).get(vmi.name, ()), vmi, active)
        usage = target_usage(vmi, placed.main, self.observed.rendering, self.quota.spec)
        return {name: usage[name] for name in SCALED if name in usage and name in self.quota.hard}

    def _scale(self, claims: Mapping[str, Demand], base: Mapping[str, Quantity]) -> None:
        """spec.hard = base + entries + compensation. Garbage in an entry: spec.hard is left alone."""
        deltas = self._deltas()
        self._compensate(claims, base, deltas)
        compensation = self._compensation()
        if deltas is not None and compensation is not None:
            self.hard = difference(self.quota.hard, scaled_hard(base, deltas, compensation))

    def _compensate(
        self,
        claims: Mapping[str, Demand],
        base: Mapping[str, Quantity],
        deltas: Sequence[Mapping[str, Quantity]] | None,
    ) -> None:
        """Room for refused target pods whose entry does not suffice (limits.memory only, as upstream)."""
        needs = self._refused_needs(claims)
        if not needs:
            return
        hard = quantity_of(self.quota.hard, LIMITS_MEMORY)
        if hard.is_zero() or LIMITS_MEMORY not in base:
            return
        need = max(needs)
        used = quantity_of(self.quota.used, LIMITS_MEMORY)
        standing = self._compensation()
        stands = None if standing is None else standing.get(LIMITS_MEMORY, ZERO)
        if deltas is None or stands is None:
            state = MemoryState(used, hard, ZERO, fixed=True)
        else:
            state = MemoryState(used, scaled_hard(base, deltas, {})[LIMITS_MEMORY], stands)
        wanted = compensation_for(state, need)
        if wanted != (stands or ZERO) and self._shortage_lasts(state, hard):
            self.journal.put(constants.ANNOTATION_MIGRATING_COMPENSATION, {LIMITS_MEMORY: wanted})

    def _refused_needs(self, claims: Mapping[str, Demand]) -> list[Quantity]:
        """limits.memory of the target pods that quota refused, of the VMs whose entry stands."""
        needs = []
        for claim in claims.values():
            if claim.refused and claim.vmi and self.journal.keys_of(claim.vm_name, claim.vmi_uid):
                need = self._need(claim.vmi) or {}
                needs.append(need.get(LIMITS_MEMORY, ZERO))
        return [need for need in needs if not need.is_zero()]

    def _compensation(self) -> Mapping[str, Quantity] | None:
        """The one that stands. None: it is garbage, which is said once."""
        try:
            return self.journal.compensation
        except InvalidEntry as exc:
            if str(exc) not in map(str, self.problems):
                self.problems.append(exc)
            return None

    def _shortage_lasts(self, state: MemoryState, hard: Quantity) -> bool:
        """Whether to believe in a shortage now.

        One that is seen before the room was made is real. Afterwards KubeVirt may just have created the target
        pod: status.used counts it already while the condition still says refused. That passes by itself.
        """
        if hard != state.limit(state.stands):
            return True
        since = self.observed.memory.short_since
        self.short_since = self.observed.now if since is None else since
        left = self.short_since + self.policy.settle - self.observed.now
        if left > 0:
            self._wait(left)
        return left <= 0

    def _deltas(self) -> list[Mapping[str, Quantity]] | None:
        try:
            return [entry.resources for entry in self.journal.entries()]
        except InvalidEntry as exc:
            self.problems.append(exc)
            return None

    def _flag(self, dropped: bool, *, settled: bool) -> None:
        """migratingScalingResyncNeeded: "true" is the order to Harvester's rq controller to compute again.

        One patch does both here, so the order is only left standing where spec.hard was not looked at.
        """
        if not settled and dropped:
            self.journal.set(constants.ANNOTATION_RESYNC_NEEDED, "true")
        elif settled and self.journal.is_true(constants.ANNOTATION_RESYNC_NEEDED):
            self.journal.set(constants.ANNOTATION_RESYNC_NEEDED, "false")

    def _wait(self, seconds: float) -> None:
        self.look_again = max(0.0, seconds if self.look_again is None else min(self.look_again, seconds))
