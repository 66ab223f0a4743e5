"""The decision about one ResourceQuota: from what is observed to one patch. Pure, and the only place that decides.

Level-triggered: the truth is the migrations, the annotations are the journal. The same observation always
gives the same plan, and a plan applied gives an observation whose plan is empty.
Sources: Harvester vmim_controller.go and resourcequota_controller.go, of which this is the fixpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pkg.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import RawResourceList
from pkg.util import constants
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota import entry_rules
from pkg.util.resourcequota.annotations import Journal
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.calculator import (
    LIMITS_CPU,
    LIMITS_MEMORY,
    difference,
    limits_are_empty,
    quantity_of,
    scaled_hard,
)
from pkg.util.resourcequota.compensation import MemoryState, compensation_for
from pkg.util.resourcequota.demand import Demand, Standing, demands
from pkg.util.resourcequota.errors import (
    InvalidEntry,
    InvalidNamespaceAnnotation,
    NoLimits,
    ResourceQuotaError,
)

SCALED = (LIMITS_CPU, LIMITS_MEMORY)
"""The resources that Harvester scales."""


class Mode(StrEnum):
    """`assist` runs beside Harvester's controllers and agrees with them, `takeover` replaces them."""

    ASSIST = "assist"
    TAKEOVER = "takeover"


class Estimate(Protocol):
    """How much a migration of a VM adds under a quota with this spec.hard; None: the VM has no limits."""

    def __call__(
        self, vmi: VirtualMachineInstance, hard: RawResourceList
    ) -> Mapping[str, Quantity] | None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator chose. Durations in seconds."""

    mode: Mode
    foreign_grace: float = 60.0
    """An entry that no migration explains and that is not ours goes after this long."""
    settle: float = 0.25
    """A shortage seen right after the room was made is looked at again after this long: KubeVirt's condition
    is older than its target pod, and status.used then already counts the pod."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a decision looks at. `limits` is the namespace annotation's text, "" when there is none;
    `instances` is by VMI name; times are seconds on one clock."""

    quota: ResourceQuota
    limits: str
    migrations: Sequence[VirtualMachineInstanceMigration]
    instances: Mapping[str, VirtualMachineInstance]
    estimate: Estimate
    now: float = 0.0
    memory: Memory = field(default_factory=lambda: Memory())


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision leaves for the next: only waiting times, nothing that a restart may not forget."""

    unexplained: Mapping[str, float] = field(default_factory=dict)
    """Entry key to the time when it was first seen without a migration that explains it."""
    short_since: float | None = None
    """Since when a refused migration is seen not to fit although its entry is applied."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write (nothing, if both maps are empty), what to tell people, and when to look again (seconds)."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    hard: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[ResourceQuotaError] = ()
    memory: Memory = field(default_factory=Memory)
    look_again: float | None = None

    def __bool__(self) -> bool:
        return bool(self.annotations or self.hard)

    def patch(self, quota: ResourceQuota) -> dict[str, Any]:
        """The JSON merge patch, bound to the version that was observed."""
        patch: dict[str, Any] = {"metadata": {"resourceVersion": quota.metadata.resource_version}}
        if self.annotations:
            patch["metadata"]["annotations"] = dict(self.annotations)
        if self.hard:
            patch["spec"] = {"hard": dict(self.hard)}
        return patch


def takes_part(quota: ResourceQuota) -> bool:
    """Whether a ResourceQuota is ours to scale: Rancher's default one, and not on its way out."""
    return not quota.deleting and quota.labels.get(constants.LABEL_DEFAULT_RESOURCE_QUOTA) == "true"


def is_off(annotations: Mapping[str, str], mode: Mode) -> bool:
    """Whether auto-scaling is switched off there. In takeover mode our own mark says that the skip is ours."""
    skipped = annotations.get(constants.ANNOTATION_SKIP_AUTO_SCALING) == "true"
    return skipped and (mode is Mode.ASSIST or constants.ANNOTATION_OWNER not in annotations)


def plan(observed: Observed, policy: Policy) -> Plan:
    """The one patch that brings a ResourceQuota to where its namespace's migrations want it."""
    if not takes_part(observed.quota):
        return Plan()
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
        self.takeover = policy.mode is Mode.TAKEOVER and not self.off
        self.problems: list[ResourceQuotaError] = []
        self.hard: Mapping[str, str] = {}
        self.short_since: float | None = None
        self.look_again: float | None = None

    def run(self) -> Plan:
        claims = demands(self.observed.migrations, self.observed.instances)
        if self.takeover:
            self.journal.set(constants.ANNOTATION_SKIP_AUTO_SCALING, "true")
            self.journal.set(constants.ANNOTATION_OWNER, constants.OWNER)
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
        dropped = entry_rules.drop_finished(self.journal, claims.values(), without_vmi=self.takeover)
        waiting: dict[str, float] = {}
        if not self.off:
            orphaned, waiting = entry_rules.drop_unexplained(
                self.journal,
                entry_rules.unexplained(self.journal, claims),
                self.observed.memory.unexplained,
                ours=self.takeover and constants.ANNOTATION_OWNER in self.quota.annotations,
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
        if limits_are_empty(self.quota.hard):
            return _Base({})
        return _Base({name: limits[name] for name in SCALED if name in limits and not limits[name].is_zero()})

    def _add(self, claims: Mapping[str, Demand], base: Mapping[str, Quantity]) -> None:
        """An entry for every VM that needs one and has none yet."""
        for claim in claims.values():
            if claim.standing is not Standing.FINISHED and self.takeover:
                entry_rules.adopt(self.journal, claim)
            if claim.standing is not Standing.WANTED or claim.vmi is None:
                continue
            if self.journal.keys_of(claim.vm_name, claim.vmi_uid):
                continue
            need = self.observed.estimate(claim.vmi, self.quota.hard)
            if need is None:
                self.problems.append(NoLimits(f"VM {claim.vm_name} has neither a cpu nor a memory limit"))
            else:
                self.journal.put(entry_rules.entry_key(claim, by_uid=not self.takeover), need)

    def _scale(self, claims: Mapping[str, Demand], base: Mapping[str, Quantity]) -> None:
        """spec.hard = base + entries + compensation. Garbage in an entry: spec.hard is left alone."""
        deltas = self._deltas()
        self._compensate(claims, base, deltas)
        if deltas is not None:
            with suppress(InvalidEntry):  # said already
                wanted = scaled_hard(base, deltas, self.journal.compensation)
                self.hard = difference(self.quota.hard, wanted)

    def _compensate(
        self,
        claims: Mapping[str, Demand],
        base: Mapping[str, Quantity],
        deltas: Sequence[Mapping[str, Quantity]] | None,
    ) -> None:
        """Room for refused target pods whose entry does not suffice (limits.memory only, as upstream)."""
        needs = self._refused_needs(claims)
        if not needs:
            if self.takeover:
                self.journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
            return
        hard = quantity_of(self.quota.hard, LIMITS_MEMORY)
        if hard.is_zero() or LIMITS_MEMORY not in base:
            return
        need = sum(needs, ZERO) if self.takeover else max(needs)
        used = quantity_of(self.quota.used, LIMITS_MEMORY)
        stands = self._standing_compensation()
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
                need = self.observed.estimate(claim.vmi, self.quota.hard) or {}
                needs.append(need.get(LIMITS_MEMORY, ZERO))
        return [need for need in needs if not need.is_zero()]

    def _standing_compensation(self) -> Quantity | None:
        """None: what stands there is garbage."""
        try:
            return self.journal.compensation.get(LIMITS_MEMORY, ZERO)
        except InvalidEntry as exc:
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
