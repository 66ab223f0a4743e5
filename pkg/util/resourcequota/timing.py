"""The moments of a ResourceQuota's next decision, its next patch and the next touch. Pure."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import from_rfc3339, rfc3339
from kubeloop.api.resource_list import ResourceList, total
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import Migrations, is_refused
from pkg.util.resourcequota.entries import entry_keys, has_migrating_vm, keys_of, read
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import unenforced
from pkg.util.resourcequota.observe import Reader

# The next decision. With many migrations under way the next event is close by: waiting saves a decision, and often a
# patch, for each. One about to be tried, or refused, waits for it a moment only: KubeVirt tries within milliseconds.

MOMENT = 0.04
"""Seconds where something is urgent and there is an entry beside it."""
STEP, SHORTEST, LONGEST = 0.1, 0.05, 0.25
"""Seconds where nothing is urgent: for each entry beyond the first, at least, at most."""


def batch_until(annotations: Mapping[str, str], since: float, *, urgent: bool = False) -> float:
    """Returns until when events are gathered that follow a decision or a patch, on the clock of `since` (seconds)."""
    return since if len(entry_keys(annotations)) < 2 else since + (MOMENT if urgent else pause(annotations))


def pause(annotations: Mapping[str, str]) -> float:
    """Returns for how many seconds an event that is not urgent waits for others."""
    return max(SHORTEST, min(LONGEST, STEP * (len(entry_keys(annotations)) - 1)))


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


# The patch that gives headroom back. It can wait until KubeVirt has tried the pending migrations: quota admission
# counts a pod with an update of the quota, which conflicts with a patch of that moment, four times at most. The pod
# is then refused with a conflict instead of "exceeded quota": KubeVirt sets no condition, no event of a quota has it
# try again, and its back-off was seen to take minutes. And it waits until quota no longer counts the pod that has
# ended: below status.used every pod is refused, also one of a tenant that the base has room for. The targets that are
# just being tried have to fit beside it.

UNTIL_TRIED = 0.25
"""Seconds that giving headroom back waits at most for migrations that are about to be tried."""
UNTIL_COUNTED = 1.0
"""Seconds that it waits at most for status.used; a VM that has grown may keep that above the base."""


def _waiting(migrations: Migrations) -> Migrations:
    """Returns the migrations whose target KubeVirt has not created, and may at any moment."""
    return [vmim for vmim in migrations if vmim.phase in constants.WAITING_PHASES and not vmim.deleting]


def waiting_for_target(facts: Facts, decided: Plan) -> ResourceList:
    """Returns what the targets that KubeVirt tries at any moment may count: the entries that a plan leaves them."""
    entries = read(decided.annotations_of(facts.quota)).by_key
    names = {migration.spec.vmi_name for migration in _waiting(facts.migrations)}
    keys = {key for name in names for key in keys_of(entries, name, facts.instances.get(name))}
    return total(entries[key] for key in keys)


def may_lower_after(wanted_since: float, now: float, migrations: Migrations, *, still_counted: bool = False) -> float:
    """Returns in how many seconds headroom may be given back that was to be given back since `wanted_since`; 0: now.

    Migrations that were refused are not held up: the patch is the event that has KubeVirt try them again.
    `still_counted`: status.used, with the targets that wait, is above what the limits are to be. Below it every pod is
    refused, theirs too, and the update by which it falls is as good an event."""
    is_tried = not all(map(is_refused, _waiting(migrations)))
    longest = UNTIL_COUNTED if still_counted else UNTIL_TRIED if is_tried else 0.0
    delay = wanted_since + longest - now
    return delay if 0 < delay <= longest else 0.0  # more than that: the clock was set back


# The next touch, by which KubeVirt retries a refused migration. Quota admission decides from the API server's cache
# of status.hard, which follows spec.hard a moment later. A target pod that virt-controller creates in that moment is
# refused although its headroom is there. The next try comes with the quota's next event, or after virt-controller's
# back-off, a bucket that busy clusters drain: 225 s were seen. A changed annotation is such an event.

FIRST_TOUCH, SECOND_TOUCH, LONGEST_PAUSE = 0.25, 0.5, 30.0
"""Seconds from the headroom in status.hard to a touch, and to the second one; each further pause is twice as long."""


def with_touch(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan with the touch that is due, or with the time of the next one.

    One touch serves all migrations that wait in the namespace. Nothing is touched while spec.hard or status.hard is
    still to change, without KubeVirt's condition, or without an entry; the annotation goes with the last entry."""
    quota, annotations, now = facts.quota, plan.annotations, facts.now
    waiting = [vmim for vmim in facts.migrations if is_refused(vmim) and not vmim.deleting]
    if not waiting and constants.ANNOTATION_TOUCHED not in quota.annotations:
        return plan
    if not has_migrating_vm(plan.annotations_of(quota)):
        return without_touch(quota, plan)
    touched_at, last_pause = last_touch(quota.annotations, now) or (-inf, 0.0)
    known_since = facts.timers.refused
    since = {vmim.uid: min(known_since.get(vmim.uid, now), now) for vmim in waiting if has_entry(facts, vmim)}
    fresh = {uid: moment for uid, moment in since.items() if moment > touched_at}
    is_changing = bool(plan.hard or unenforced(quota))  # which will be an event too
    refused = {uid: moment for uid, moment in since.items() if not is_changing or uid not in fresh}
    plan = replace(plan, timers=replace(plan.timers, refused=refused))
    if is_changing or not since:
        return plan
    # By the last touch, or soon after a migration was first seen refused beside its headroom.
    times = [moment + FIRST_TOUCH for moment in fresh.values()]
    times += [touched_at + last_pause] if len(fresh) < len(since) else []
    wait = min(times) - now
    if wait <= 0:
        wait = SECOND_TOUCH if fresh else min(LONGEST_PAUSE, 2.0 * last_pause)
        text = {"at": rfc3339(now, "milliseconds"), "next": rfc3339(now + wait, "milliseconds")}
        annotations = {**annotations, constants.ANNOTATION_TOUCHED: json.dumps(text, separators=(",", ":"))}
    recheck_after = wait if plan.recheck_after is None else min(wait, plan.recheck_after)
    return replace(plan, annotations=annotations, recheck_after=recheck_after)


def without_touch(quota: ResourceQuota, plan: Plan) -> Plan:
    """Returns the plan for a quota whose refused migrations get no headroom."""
    if constants.ANNOTATION_TOUCHED not in quota.annotations:
        return plan
    return replace(plan, annotations={**plan.annotations, constants.ANNOTATION_TOUCHED: None})


def last_touch(annotations: Mapping[str, str], now: float) -> tuple[float, float] | None:
    """Returns when the quota was last touched (seconds since the epoch), and the pause until the next touch; None
    without an annotation that headroom can have written by now."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        times = json.loads(annotations.get(constants.ANNOTATION_TOUCHED, ""))
        at, following = from_rfc3339(times["at"]), from_rfc3339(times["next"])
        if at <= now and 0.0 < following - at <= LONGEST_PAUSE:
            return at, following - at
    return None


def has_entry(facts: Facts, migration: VirtualMachineInstanceMigration) -> bool:
    """Reports whether the migration's VM has an entry on the quota."""
    name = migration.spec.vmi_name
    return bool(keys_of(facts.quota.annotations, name, facts.instances.get(name)))
