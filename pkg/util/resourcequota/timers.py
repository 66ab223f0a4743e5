"""The times that are kept of a ResourceQuota, and the delay of its next decision and its next patch. Pure.

With many migrations under way in a namespace the next event is close by: waiting saves a decision, and often a patch,
for each event. A migration that is about to be tried, or that was refused, waits for a patch before it, a moment only:
KubeVirt tries it within milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, keys_of

MOMENT = 0.04
"""Seconds where something is urgent and there is an entry beside it."""
STEP = 0.1
"""Seconds added for each entry beyond the first, where nothing is urgent."""
SHORTEST = 0.05
"""Seconds, where nothing is urgent."""
LONGEST = 0.25
"""Seconds, however many migrations are under way."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Rancher's denial of a request for lack of room in the project: nothing as large is requested again until
    `siblings` or the person's `limits` change, or it is `until`."""

    siblings: Hashable
    limits: str
    amounts: tuple[ResourceList, ...] = ()
    """Each is what was to be added by one request."""
    excess: bool = False
    """The person's own request beyond the grant was part of one."""
    until: float = float("-inf")
    pause: float = 0.0
    """Seconds; twice as long after the next denial."""


@dataclass(frozen=True, slots=True)
class Timers:
    """The times since which something has been observed (seconds), from one decision to the next. A restart may lose
    them, and a plan that is not written changes none of them: the quota alone records what was done."""

    unexplained: Mapping[str, float] = field(default_factory=dict)
    """By entry key: without a migration that explains it, or found at takeover where there is no base."""
    held_since: Mapping[str, float] = field(default_factory=dict)
    """By uid of a launcher pod or a claim: a migration has left it behind."""
    refused: Mapping[str, float] = field(default_factory=dict)
    """By uid: a migration is refused although status.hard shows its headroom."""
    enforced_since: float | None = None
    """spec.hard and status.hard are what they shall be; only while a migration is refused."""
    denial: Denial | None = None
    """Rancher's last answer, if it was no."""
    exceeds_since: float | None = None
    """The namespace's annotation requests more than Rancher has granted."""


def batch_until(annotations: Mapping[str, str], since: float, *, urgent: bool = False) -> float:
    """Returns until when events are gathered that follow a decision or a patch, on the clock of `since` (seconds)."""
    if _extra_entries(annotations) < 1:
        return since
    return since + (MOMENT if urgent else pause(annotations))


def pause(annotations: Mapping[str, str]) -> float:
    """Returns for how many seconds an event that is not urgent waits for others."""
    return max(SHORTEST, min(LONGEST, STEP * _extra_entries(annotations)))


def _extra_entries(annotations: Mapping[str, str]) -> int:
    """Returns how many entries there are beyond the first."""
    return sum(key.startswith(ENTRY_PREFIXES) for key in annotations) - 1


def is_urgent(
    annotations: Mapping[str, str],
    migrations: Iterable[VirtualMachineInstanceMigration],
    instance: Callable[[str], VirtualMachineInstance | None],
) -> bool:
    """Reports whether a migration was refused, was just created, or is about to be tried and has no entry yet.
    `instance` gives a VMI by name."""
    for migration in migrations:
        if migration.phase == constants.PHASE_UNSET or is_refused(migration):
            return True  # an entry that stands may be for what an earlier migration left
        if migration.phase == constants.PHASE_PENDING:
            name = migration.spec.vmi_name
            if not keys_of(annotations, name, instance(name)):
                return True
    return False
