"""The times that are kept of a ResourceQuota, and how long its next decision and its next patch wait. Pure.

With many migrations under way in a namespace the next event is close by: waiting saves a decision, and often a patch,
for each event. A migration that is about to be tried, or that was refused, waits for a patch before it, a moment only:
KubeVirt tries it within milliseconds.

A patch that only gives headroom back can wait for their try: quota admission counts a pod with an update of the quota,
which conflicts with a patch of that moment, four times at most. The pod is then refused with a conflict instead of
"exceeded quota": KubeVirt sets no condition, no event of a quota has it try again, and its back-off was seen to take
minutes. And it waits until quota no longer counts the pod that has ended: below status.used every pod is refused, also
one of a tenant that the base has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
LONGEST = 0.25
"""Seconds, however many migrations are under way."""
UNTIL_TRIED = 0.25
"""Seconds that giving headroom back waits at most for migrations that are about to be tried."""
UNTIL_COUNTED = 1.0
"""Seconds that it waits at most for status.used; a VM that has grown may keep that above the base."""


@dataclass(frozen=True, slots=True)
class Denial:
    """The project has no room for what was requested: nothing as large is requested again until `siblings` or the
    person's `limits` change, or it is `until`."""

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
    """Since when something is seen (seconds), from one decision to the next. A restart may lose it, and a plan that is
    not written changes nothing of it: what was done stands on the quota alone."""

    unexplained: Mapping[str, float] = field(default_factory=dict)
    """By entry key: without a migration that explains it."""
    held_since: Mapping[str, float] = field(default_factory=dict)
    """By uid of a launcher pod or a claim: a migration has left it behind."""
    refused: Mapping[str, float] = field(default_factory=dict)
    """By uid: a migration is refused although status.hard shows its headroom."""
    shown_since: float | None = None
    """spec.hard and status.hard are what they shall be; only while a migration is refused."""
    denial: Denial | None = None
    """Rancher's last answer, if it was no."""
    exceeds_since: float | None = None
    """The namespace's annotation requests more than Rancher has granted."""


def batch_until(annotations: Mapping[str, str], since: float, *, urgent: bool = False) -> float:
    """Until when events are gathered that follow a decision or a patch, on the clock of `since` (seconds)."""
    others = sum(key.startswith(ENTRY_PREFIXES) for key in annotations) - 1
    if others < 1:
        return since
    return since + (MOMENT if urgent else min(LONGEST, STEP * others))


def is_urgent(
    annotations: Mapping[str, str],
    migrations: Iterable[VirtualMachineInstanceMigration],
    instance: Callable[[str], VirtualMachineInstance | None],
) -> bool:
    """Whether a migration was refused, was just created, or is about to be tried and has no entry yet. `instance` gives
    a VMI by name."""
    for migration in migrations:
        if migration.phase == constants.PHASE_UNSET or is_refused(migration):
            return True  # an entry that stands may be for what an earlier migration left
        if migration.phase == constants.PHASE_PENDING:
            name = migration.spec.vmi_name
            if not keys_of(annotations, name, instance(name)):
                return True
    return False


def may_lower_after(
    wanted_since: float,
    now: float,
    migrations: Sequence[VirtualMachineInstanceMigration],
    *,
    still_counted: bool = False,
) -> float:
    """In how many seconds headroom may be given back that was to be given back since `wanted_since`; 0: now.

    Migrations that were refused are not held up: the patch is the event that has KubeVirt try them again.
    `still_counted`: status.used is above what the limits are to be. Below it every pod is refused, theirs too, and the
    update by which it falls is as good an event.
    """
    waiting = [each for each in migrations if each.phase in (constants.PHASE_UNSET, constants.PHASE_PENDING)]
    is_tried = any(not each.deleting and not is_refused(each) for each in waiting)
    longest = UNTIL_COUNTED if still_counted else UNTIL_TRIED if is_tried else 0.0
    left = wanted_since + longest - now
    return left if 0 < left <= longest else 0.0  # more than that: the clock was set back
