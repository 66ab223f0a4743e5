"""What a decision about a ResourceQuota looks at, and what comes out. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pkg.api.core import LimitRange, Pod, ResourceQuota
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import RawResourceList
from pkg.util.memory_overhead import DEFAULT_PROFILE, OverheadProfile
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.errors import ResourceQuotaError


class Mode(StrEnum):
    """`assist` runs beside Harvester's controllers and agrees with them, `takeover` replaces them."""

    ASSIST = "assist"
    TAKEOVER = "takeover"


class EstimateKind(StrEnum):
    """How much a migration needs: Harvester's formula, or what quota will count."""

    HARVESTER = "harvester"
    EXACT = "exact"


class Estimate(Protocol):
    """Harvester's formula: what a migration of a VM adds under a quota with this spec.hard; None: the VM has no
    limits. Raises QuantityError for a VM whose quantities are garbage."""

    def __call__(
        self, vmi: VirtualMachineInstance, hard: RawResourceList
    ) -> Mapping[str, Quantity] | None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator chose. Durations in seconds."""

    mode: Mode
    estimate: EstimateKind = EstimateKind.HARVESTER
    foreign_grace: float = 60.0
    """An entry that no migration explains and that is not ours goes after this long."""
    settle: float = 0.25
    """A shortage seen right after the room was made is looked at again after this long: KubeVirt's condition
    is older than its target pod, and status.used then already counts the pod."""
    hold_limit: float = 600.0
    """A source pod that never ends keeps its room no longer than this after its migration."""
    compensate: bool = True
    """A migration that is refused although its entry is applied gets what is missing."""
    render: bool = False
    """Every limit of the namespace annotation is kept in spec.hard, not only what is scaled."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What decides how KubeVirt would render a launcher pod now. `ratio` is the overhead ratio, "" for none;
    `memory_limits_ratio` is what a limit of memory that a quota asks for is of the request."""

    ratio: str = ""
    profile: OverheadProfile = DEFAULT_PROFILE
    kubevirt: KubeVirtConfiguration = field(default_factory=KubeVirtConfiguration)
    limit_ranges: Sequence[LimitRange] = ()
    memory_limits_ratio: float = 2.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision leaves for the next: only waiting times, nothing that a restart may not forget."""

    unexplained: Mapping[str, float] = field(default_factory=dict)
    """Entry key to the time when it was first seen without a migration that explains it."""
    short_since: float | None = None
    """Since when a refused migration is seen not to fit although its entry is applied."""
    held_since: Mapping[str, float] = field(default_factory=dict)
    """VM name to the time when its migration was first seen over with a pod of the old side left."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a decision looks at.

    `limits` is the namespace annotation's text ("" when there is none), `max_extra` the namespace's cap likewise;
    `instances` is by VMI name; `pods` are the namespace's launcher and attachment pods; `now` is in seconds on
    one clock.
    """

    quota: ResourceQuota
    limits: str
    migrations: Sequence[VirtualMachineInstanceMigration]
    instances: Mapping[str, VirtualMachineInstance]
    estimate: Estimate
    now: float = 0.0
    memory: Memory = field(default_factory=Memory)
    pods: Sequence[Pod] = ()
    rendering: Rendering = field(default_factory=Rendering)
    max_extra: str = ""
    mtq: bool = False
    """The namespace has a migration budget (VirtualMachineMigrationResourceQuota): its quotas are that strategy's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write (nothing, if both maps are empty), what to tell people, and when to look again (seconds)."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    hard: Mapping[str, str | None] = field(default_factory=dict)
    """Resource name to quantity; None removes it."""
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
