"""The delay of a ResourceQuota's next decision and of its next patch. Pure.

With many migrations under way in a namespace the next event is close by: waiting saves a decision, and often a patch,
for each event. A migration that is about to be tried, or that was refused, waits for a patch before it, a moment only:
KubeVirt tries it within milliseconds.

A patch that only gives headroom back can wait until KubeVirt has tried the pending migrations: quota admission counts a
pod with an update of the quota, which conflicts with a patch of that moment, four times at most. The pod is then
refused with a conflict instead of "exceeded quota": KubeVirt sets no condition, no event of a quota has it try again,
and its back-off was seen to take minutes. And it waits until quota no longer counts the pod that has ended: below
status.used every pod is refused, also one of a tenant that the base has room for. The targets that are just being tried
have to fit beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kubeloop.api.core import ResourceQuota
from kubeloop.api.resource_list import ResourceList, total
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, keys_of, read
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.observe import Reader

MOMENT = 0.04
"""Seconds where something is urgent and there is an entry beside it."""
STEP = 0.1
"""Seconds added for each entry beyond the first, where nothing is urgent."""
SHORTEST = 0.05
"""Seconds, where nothing is urgent."""
LONGEST = 0.25
"""Seconds, however many migrations are under way."""
UNTIL_TRIED = 0.25
"""Seconds that giving headroom back waits at most for migrations that are about to be tried."""
UNTIL_COUNTED = 1.0
"""Seconds that it waits at most for status.used; a VM that has grown may keep that above the base."""


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
    quota: ResourceQuota,
    migrations: Iterable[VirtualMachineInstanceMigration],
    instances: Reader[VirtualMachineInstance],
) -> bool:
    """Reports whether a migration was refused, was just created, or is about to be tried and has no entry yet."""
    for migration in migrations:
        if migration.phase == constants.PHASE_UNSET or is_refused(migration):
            return True  # an entry that stands may be for what an earlier migration left
        if migration.phase == constants.PHASE_PENDING:
            name = migration.spec.vmi_name
            if not keys_of(quota.annotations, name, instances.get(name=name, namespace=quota.namespace)):
                return True
    return False


def waiting_for_target(facts: Facts, decided: Plan) -> ResourceList:
    """Returns what the targets of Pending migrations may count, which KubeVirt tries at any moment: the entries that a
    plan leaves them."""
    entries = read(decided.annotations_of(facts.quota)).by_key
    names = {
        migration.spec.vmi_name for migration in facts.migrations if _is_waiting(migration) and not migration.deleting
    }
    keys = {key for name in names for key in keys_of(entries, name, facts.instances.get(name))}
    return total(entries[key] for key in keys)


def _is_waiting(migration: VirtualMachineInstanceMigration) -> bool:
    return migration.phase in (constants.PHASE_UNSET, constants.PHASE_PENDING)


def may_lower_after(
    wanted_since: float,
    now: float,
    migrations: Sequence[VirtualMachineInstanceMigration],
    *,
    still_counted: bool = False,
) -> float:
    """Returns in how many seconds headroom may be given back that was to be given back since `wanted_since`; 0: now.

    Migrations that were refused are not held up: the patch is the event that has KubeVirt try them again.
    `still_counted`: status.used, with the targets that wait, is above what the limits are to be. Below it every pod is
    refused, theirs too, and the update by which it falls is as good an event."""
    is_tried = any(
        not migration.deleting and not is_refused(migration) for migration in migrations if _is_waiting(migration)
    )
    longest = UNTIL_COUNTED if still_counted else UNTIL_TRIED if is_tried else 0.0
    delay = wanted_since + longest - now
    return delay if 0 < delay <= longest else 0.0  # more than that: the clock was set back
