"""When a quota is touched, so that KubeVirt retries a refused migration. Pure.

Quota admission decides from the API server's cache of status.hard, which follows spec.hard a moment later. A target pod
that virt-controller creates in that moment is refused although its headroom is there. The next try comes with the
quota's next event, or after virt-controller's back-off, a bucket that busy clusters drain: 225 s were seen. A changed
annotation is such an event.
"""

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


def with_touch(facts: Facts, made: Plan) -> Plan:
    """`made`, and with it the touch that is due, or the time of the next one.

    One touch serves all that wait in the namespace. Nothing is touched while spec.hard or status.hard is still to
    change, without KubeVirt's condition, or without an entry; the annotation goes with the last entry.
    """
    quota, timers, now = facts.quota, facts.timers, facts.now
    waiting = [each for each in facts.migrations if is_refused(each) and not each.deleting]
    if not waiting and constants.ANNOTATION_TOUCHED not in quota.annotations:
        return made
    after = {**quota.annotations, **made.annotations}
    if not has_migrating_vm({key: text for key, text in after.items() if text is not None}):
        return without_touch(quota, made)
    shown = not made.hard and _shown(quota)
    served = [each.uid for each in waiting if has_entry(facts, each)]
    refused = {uid: timers.refused.get(uid, now) for uid in served if shown or uid in timers.refused}
    if not refused:
        return made
    if not shown:  # what is still to change will be an event too
        return replace(made, timers=replace(made.timers, refused=refused))
    shown_since = now if timers.shown_since is None else timers.shown_since
    last = _last(quota.annotations, now)
    wait, annotations = _due(last, refused.values(), shown_since) - now, made.annotations
    if wait <= 0:
        wait = _pause(last, refused.values())
        times = {"at": rfc3339(now, "milliseconds"), "next": rfc3339(now + wait, "milliseconds")}
        text = json.dumps(times, separators=(",", ":"))
        annotations = {**annotations, constants.ANNOTATION_TOUCHED: text}
    return replace(
        made,
        annotations=annotations,
        timers=replace(made.timers, refused=refused, shown_since=shown_since),
        recheck_after=wait if made.recheck_after is None else min(wait, made.recheck_after),
    )


def without_touch(quota: ResourceQuota, made: Plan) -> Plan:
    """`made` for a quota whose refused migrations get no headroom."""
    if constants.ANNOTATION_TOUCHED not in quota.annotations:
        return made
    return replace(made, annotations={**made.annotations, constants.ANNOTATION_TOUCHED: None})


@dataclass(frozen=True, slots=True)
class Touched:
    """What the annotation says: when the quota was last touched, and when the next touch is due (seconds since the
    epoch)."""

    at: float
    next: float


def last_touch(annotations: Mapping[str, str]) -> Touched | None:
    """None: it is not there, or not readable."""
    try:
        said = json.loads(annotations.get(constants.ANNOTATION_TOUCHED, ""))
        return Touched(from_rfc3339(said["at"]), from_rfc3339(said["next"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def has_entry(facts: Facts, migration: VirtualMachineInstanceMigration) -> bool:
    name = migration.spec.vmi_name
    return bool(keys_of(facts.quota.annotations, name, facts.instances.get(name)))


def _shown(quota: ResourceQuota) -> bool:
    """Whether the quota controller has copied spec.hard to status.hard."""
    try:
        return not unenforced(quota)
    except QuantityError:
        return False


# ---- when: the touch that was written last says it, and since when each migration is refused -----------------


def _last(annotations: Mapping[str, str], now: float) -> Touched | None:
    """None: there is none that we can have written by now."""
    last = last_touch(annotations)
    return last if last and last.at <= now and 0.0 < last.next - last.at <= LONGEST else None


def _due(last: Touched | None, refused: Collection[float], changed: float) -> float:
    """The next touch: a pause after the last one, or soon after a migration was refused for the first time. A change of
    spec.hard or status.hard is an event too, which may come too early: the pause begins anew with it, up to twice."""
    waits = ((last.at, last.next - last.at) if last and first <= last.at else (first, FIRST) for first in refused)
    return min(min(max(since, changed) + pause, since + min(2 * pause, LONGEST)) for since, pause in waits)


def _pause(last: Touched | None, refused: Collection[float]) -> float:
    """From a touch to the next one: twice the last pause, unless a migration is touched for the first time."""
    if last is None or any(first > last.at for first in refused):
        return SECOND
    return min(LONGEST, 2.0 * (last.next - last.at))
