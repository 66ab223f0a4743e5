"""Beside Harvester: the fixpoint of its vmim and rq controllers, in one patch. Pure.

Sources: Harvester vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go. Entries are
written once and stay as they are; everything that upstream leaves alone is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkg.util import constants
from pkg.util.amounts import shown
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.migration import Demand, Stage, demands
from pkg.util.names import migrating_uid_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota.base import (
    difference,
    limits_are_empty,
    parse_base,
    quantity_of,
    scaled_hard,
)
from pkg.util.resourcequota.claims import Claim, claims
from pkg.util.resourcequota.compensation import MemoryState, Settled, compensation_for, settled
from pkg.util.resourcequota.errors import (
    InvalidEntry,
    InvalidNamespaceAnnotation,
    NotServed,
    ResourceQuotaError,
)
from pkg.util.resourcequota.journal import (
    Journal,
    drop_finished,
    drop_unexplained,
    explained_keys,
    unexplained,
)
from pkg.util.resourcequota.managed import is_off
from pkg.util.resourcequota.model import Memory, Observed, Plan, earliest
from pkg.util.resourcequota.policy import EstimateKind, Policy

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
        self.settled = Settled()
        self.look_again: float | None = None
        self.claims: Mapping[str, Claim] = {}

    def run(self) -> Plan:
        asked = demands(self.observed.migrations, self.observed.instances)
        dropped, waiting = self._drop(asked)
        base = None if self.off else self._base()
        if base is not None:
            self._claim()
        if base is not None and base.limits:
            self._add(asked)
            self._scale(base.limits)
        self._report_unserved()
        self._flag(dropped, settled=base is not None)
        return Plan(
            annotations=self.journal.changes(),
            hard=self.hard,
            problems=self.problems,
            memory=Memory(waiting, self.settled.since),
            look_again=earliest(self.look_again, self.settled.look_again),
        )

    def _drop(self, asked: Mapping[str, Demand]) -> tuple[bool, dict[str, float]]:
        """Entries that are no longer needed go; with them, beside Harvester, the compensation (as upstream)."""
        dropped = drop_finished(self.journal, asked.values())
        waiting: dict[str, float] = {}
        if not self.off:
            orphaned, waiting = drop_unexplained(
                self.journal,
                unexplained(
                    self.journal,
                    explained_keys(self.journal, asked.values()),
                    uids_unknown=any(c.vmi is None and c.stage is not Stage.FINISHED for c in asked.values()),
                ),
                self.observed.memory.unexplained,
                ours=False,
                now=self.observed.now,
                grace=self.policy.foreign_grace,
            )
            dropped |= orphaned
        if waiting:
            self.look_again = min(waiting.values()) + self.policy.foreign_grace - self.observed.now
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

    def _claim(self) -> None:
        found = claims(self.observed, self.policy)
        self.claims = found.by_vm
        self.problems += found.problems

    def _add(self, asked: Mapping[str, Demand]) -> None:
        """An entry for every VM that needs one and has none yet."""
        for claim in self.claims.values():
            wanted = claim.stage >= Stage.WANTED and asked[claim.vm_name].vmi is not None
            if not wanted or self.journal.keys_of(claim.vm_name, claim.vmi_uid):
                continue
            need = self._need(claim)
            if need is not None:
                self.journal.put(migrating_uid_key(claim.vmi_uid), need)

    def _need(self, claim: Claim) -> Mapping[str, Quantity] | None:
        """Of the two resources that Harvester reads in an entry. None: the VM limits neither."""
        need = claim.room if self.policy.estimate is EstimateKind.EXACT else claim.formula
        if need is None:
            return None
        return {name: need[name] for name in SCALED if name in need and name in self.quota.hard}

    def _scale(self, base: Mapping[str, Quantity]) -> None:
        """spec.hard = base + entries + compensation. Garbage in an entry: spec.hard is left alone."""
        deltas = self._deltas()
        self._compensate(base, deltas)
        compensation = self._compensation()
        if deltas is not None and compensation is not None:
            self.hard = difference(self.quota.hard, scaled_hard(base, deltas, compensation))

    def _compensate(
        self, base: Mapping[str, Quantity], deltas: Sequence[Mapping[str, Quantity]] | None
    ) -> None:
        """Room for refused target pods whose entry does not suffice (limits.memory only, as upstream)."""
        needs = self._refused_needs()
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
        if deltas is None and wanted.is_zero():
            return  # beside garbage Harvester adds what is missing, and takes nothing away
        if wanted != (stands or ZERO):
            applied = hard == state.limit(state.stands)
            self.settled = settled(self.observed, self.policy, applied=applied)
            if self.settled.believed:
                self.journal.put(constants.ANNOTATION_MIGRATING_COMPENSATION, {LIMITS_MEMORY: wanted})

    def _report_unserved(self) -> None:
        """What a refused migration lacks that Harvester's rules never add. limits.memory is compensated in time."""
        hard = self.quota.hard | {name: limit for name, limit in self.hard.items() if limit is not None}
        for claim in self.claims.values():
            if claim.stage is not Stage.REFUSED:
                continue
            lacks = {
                name: missing
                for name, need in sorted(claim.to_come.items())
                if name in hard and not (name == LIMITS_MEMORY and claim.formula)
                if (missing := quantity_of(self.quota.used, name) + need - quantity_of(hard, name)) > ZERO
            }
            if lacks:
                what = ", ".join(f"{shown(amount, name)} of {name}" for name, amount in lacks.items())
                self.problems.append(
                    NotServed(
                        f"VM {claim.vm_name}: mode assist does not add what its migration lacks ({what}); "
                        "--mode takeover does",
                        vm=claim.vm_name,
                    )
                )

    def _refused_needs(self) -> list[Quantity]:
        """limits.memory of the target pods that quota refused, of the VMs whose entry stands."""
        refused = [
            claim
            for claim in self.claims.values()
            if claim.stage is Stage.REFUSED and self.journal.keys_of(claim.vm_name, claim.vmi_uid)
        ]
        needs = [(self._need(claim) or {}).get(LIMITS_MEMORY, ZERO) for claim in refused]
        return [need for need in needs if not need.is_zero()]

    def _compensation(self) -> Mapping[str, Quantity] | None:
        """The one that stands. None: it is garbage, which is said once."""
        try:
            return self.journal.compensation
        except InvalidEntry as exc:
            if str(exc) not in map(str, self.problems):
                self.problems.append(exc)
            return None

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
