"""The time to touch a quota, so that KubeVirt retries a refused migration. Pure.

Quota admission decides from the API server's cache of status.hard, which follows spec.hard a moment later. A target pod
that virt-controller creates in that moment is refused although its headroom is there. The next try comes with the
quota's next event, or after virt-controller's back-off, a bucket that busy clusters drain: 225 s were seen. A changed
annotation is such an event."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import from_rfc3339, rfc3339
from kubeloop.api.quantity import QuantityError
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.resourcequota.entries import has_migrating_vm, keys_of
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import unenforced

FIRST = 0.25
"""Seconds from the moment at which the headroom is seen in status.hard to the first touch."""
SECOND = 0.5
"""Seconds from the first touch to the second; each further pause is twice as long."""
LONGEST = 30.0


def with_touch(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan with the touch that is due, or with the time of the next one.

    One touch serves all migrations that wait in the namespace. Nothing is touched while spec.hard or status.hard is
    still to change, without KubeVirt's condition, or without an entry; the annotation goes with the last entry."""
    quota, timers, now = facts.quota, facts.timers, facts.now
    waiting = [vmim for vmim in facts.migrations if is_refused(vmim) and not vmim.deleting]
    if not waiting and constants.ANNOTATION_TOUCHED not in quota.annotations:
        return plan
    if not has_migrating_vm(plan.annotations_of(quota)):
        return without_touch(quota, plan)
    is_enforced = not plan.hard and _is_enforced(quota)
    served = [vmim.uid for vmim in waiting if has_entry(facts, vmim)]
    refused = {uid: timers.refused.get(uid, now) for uid in served if is_enforced or uid in timers.refused}
    if not refused:
        return plan
    if not is_enforced:  # what is still to change will be an event too
        return replace(plan, timers=replace(plan.timers, refused=refused))
    enforced_since = now if timers.enforced_since is None else timers.enforced_since
    touched = _trusted_touch(quota.annotations, now)
    wait, annotations = _due(touched, refused.values(), enforced_since) - now, plan.annotations
    if wait <= 0:
        wait = _pause(touched, refused.values())
        times = {"at": rfc3339(now, "milliseconds"), "next": rfc3339(now + wait, "milliseconds")}
        text = json.dumps(times, separators=(",", ":"))
        annotations = {**annotations, constants.ANNOTATION_TOUCHED: text}
    return replace(
        plan,
        annotations=annotations,
        timers=replace(plan.timers, refused=refused, enforced_since=enforced_since),
        recheck_after=wait if plan.recheck_after is None else min(wait, plan.recheck_after),
    )


def without_touch(quota: ResourceQuota, plan: Plan) -> Plan:
    """Returns the plan for a quota whose refused migrations get no headroom."""
    if constants.ANNOTATION_TOUCHED not in quota.annotations:
        return plan
    return replace(plan, annotations={**plan.annotations, constants.ANNOTATION_TOUCHED: None})


@dataclass(frozen=True, slots=True)
class TouchTimes:
    """The content of the annotation: when the quota was last touched, and when the next touch is due (seconds since the
    epoch)."""

    at: float
    next: float


def last_touch(annotations: Mapping[str, str]) -> TouchTimes | None:
    """Returns the annotation's content, or None if it is absent or not readable."""
    try:
        times = json.loads(annotations.get(constants.ANNOTATION_TOUCHED, ""))
        return TouchTimes(from_rfc3339(times["at"]), from_rfc3339(times["next"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def has_entry(facts: Facts, migration: VirtualMachineInstanceMigration) -> bool:
    """Reports whether the migration's VM has an entry on the quota."""
    name = migration.spec.vmi_name
    return bool(keys_of(facts.quota.annotations, name, facts.instances.get(name)))


def _is_enforced(quota: ResourceQuota) -> bool:
    """Reports whether the quota controller has copied spec.hard to status.hard."""
    try:
        return not unenforced(quota)
    except QuantityError:
        return False


# ---- when: the touch that was written last says it, and since when each migration is refused -----------------


def _trusted_touch(annotations: Mapping[str, str], now: float) -> TouchTimes | None:
    """Returns the last touch, or None without one that headroom can have written by now."""
    touched = last_touch(annotations)
    return touched if touched and touched.at <= now and 0.0 < touched.next - touched.at <= LONGEST else None


def _due(touched: TouchTimes | None, refused: Collection[float], changed: float) -> float:
    """Returns when the next touch is due: a pause after the last one, or soon after a migration was refused for the
    first time. A change of spec.hard or status.hard is an event too, which may come too early: the pause begins anew
    with it, up to twice."""
    waits = (
        (touched.at, touched.next - touched.at) if touched and refused_at <= touched.at else (refused_at, FIRST)
        for refused_at in refused
    )
    return min(min(max(since, changed) + pause, since + min(2 * pause, LONGEST)) for since, pause in waits)


def _pause(touched: TouchTimes | None, refused: Collection[float]) -> float:
    """Returns the seconds from a touch to the next one: twice the last pause, unless a migration is touched for the
    first time."""
    if touched is None or any(refused_at > touched.at for refused_at in refused):
        return SECOND
    return min(LONGEST, 2.0 * (touched.next - touched.at))
