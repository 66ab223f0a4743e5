"""When a quota is touched, so that KubeVirt retries a refused migration. Pure.

Quota admission decides from the API server's cache of status.hard, which follows spec.hard a moment later. A target pod
that virt-controller creates in that moment is refused although its headroom is there. The next try comes with the
quota's next event, or after virt-controller's back-off, a bucket that busy clusters drain: 225 s were seen. A changed
annotation is such an event.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pkg.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.quantity import QuantityError
from pkg.util.resource_list import parse_resource_list
from pkg.util.resourcequota.journal import Journal, has_migrating_vm
from pkg.util.resourcequota.model import Observed, Plan, Waiting, earliest
from pkg.util.resourcequota.release import has_entry

FIRST = 0.25
"""Seconds from the moment at which the headroom is seen in status.hard to the first touch."""
SECOND = 0.5
"""Seconds from the first touch to the second; each further pause is twice as long."""
KNOWN = 0.1
"""Seconds after a change of spec.hard or status.hard in which no touch is made: quota admission would refuse again."""
POSTPONED = 0.5
"""Seconds that changes of the quota postpone a touch at most: each is an event too, but the last may come too early."""
LONGEST = 30.0


def with_touch(observed: Observed, made: Plan) -> Plan:
    """`made`, and with it the touch that is due, or the time of the next one.

    One touch serves all that wait in the namespace. Nothing is touched while spec.hard or status.hard is still to
    change, without KubeVirt's condition, or without an entry; the annotation goes with the last entry.
    """
    after = {**observed.quota.annotations, **made.annotations}
    stands = {key: text for key, text in after.items() if text is not None}
    if not has_migrating_vm(stands):
        return without_touch(observed.quota, made)
    refused = set(_refused(observed, Journal(stands)))
    waiting = {uid: each for uid, each in observed.memory.waiting.items() if uid in refused}
    if made.hard or not _shown(observed):
        # What is still to change will be an event too. Pauses go on: a busy quota must not begin them again and again.
        waiting = {uid: replace(each, behind=True) for uid, each in waiting.items()}
        return replace(made, memory=replace(made.memory, waiting=waiting)) if waiting else made
    known = observed.now + KNOWN
    waiting = {
        uid: replace(each, due=max(each.due, min(known, each.latest)), behind=False) if each.behind else each
        for uid, each in waiting.items()
    }
    waiting |= {uid: _due(observed.now + FIRST) for uid in refused - waiting.keys()}
    if not waiting:
        return made
    annotations = dict(made.annotations)
    if min(each.due for each in waiting.values()) <= observed.now:
        waiting = {uid: _touched(each, observed.now) for uid, each in waiting.items()}
        annotations[constants.ANNOTATION_TOUCHED] = _text(observed.now, waiting)
    left = min(each.due for each in waiting.values()) - observed.now
    memory = replace(made.memory, waiting=waiting)
    return replace(
        made, annotations=annotations, memory=memory, recheck_after=earliest(made.recheck_after, left)
    )


def without_touch(quota: ResourceQuota, made: Plan) -> Plan:
    """`made` for a quota whose refused migrations get no headroom."""
    if constants.ANNOTATION_TOUCHED not in quota.annotations:
        return made
    return replace(made, annotations={**made.annotations, constants.ANNOTATION_TOUCHED: None})


@dataclass(frozen=True, slots=True)
class Touched:
    """What the annotation says: when the quota was last touched, and when the next touch is due (RFC 3339, UTC)."""

    at: str
    next: str


def last_touch(annotations: Mapping[str, str]) -> Touched | None:
    """None: it is not there, or not readable."""
    try:
        said = json.loads(annotations.get(constants.ANNOTATION_TOUCHED, ""))
        return Touched(str(said["at"]), str(said["next"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _refused(observed: Observed, journal: Journal) -> Iterator[str]:
    """The migrations that are refused although they have an entry, by uid."""
    for migration in observed.migrations:
        if is_refused(migration) and not migration.deleting and has_entry(observed, journal, migration):
            yield migration.uid


def _shown(observed: Observed) -> bool:
    """Whether the quota controller has copied spec.hard to status.hard."""
    try:
        return parse_resource_list(observed.quota.status.hard or {}) == parse_resource_list(
            observed.quota.hard
        )
    except QuantityError:
        return False


def _touched(waiting: Waiting, now: float) -> Waiting:
    pause = min(LONGEST, SECOND * 2.0 ** min(waiting.touches, 10))
    return _due(now + pause, waiting.touches + 1)


def _due(at: float, touches: int = 0) -> Waiting:
    return Waiting(at, at + POSTPONED, touches)


def _text(now: float, waiting: Mapping[str, Waiting]) -> str:
    due = min(each.due for each in waiting.values())
    return json.dumps({"at": _timestamp(now), "next": _timestamp(due)}, separators=(",", ":"))


def _timestamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
