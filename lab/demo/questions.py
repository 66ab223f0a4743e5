"""Questions about the history that the steps' checks ask. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lab.demo.history import Amounts, History, Quota, QuotaVersion, Track
from lab.record import Refusal
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO
from pkg.util.resource_list import ResourceList

T = TypeVar("T")


def hard_since(history: History, at: float, wanted: Amounts) -> Amounts | None:
    """`wanted` if spec.hard was that at any moment since `at`, else what it is now."""
    return _since(history, at, wanted, lambda version: version.hard)


def used_since(history: History, at: float, wanted: Amounts) -> Amounts | None:
    """The same about status.used."""
    return _since(history, at, wanted, lambda version: version.used)


def quota_since(history: History, at: float, wanted: Quota) -> Quota | None:
    """The same about both at one moment."""
    return _since(history, at, wanted, _quota)


def _since(history: History, at: float, wanted: T, read: Callable[[QuotaVersion], T]) -> T | None:
    found = first_version(history, at, lambda version: read(version) == wanted) or history.quota
    return read(found) if found else None


def quota_after(history: History, migration: str) -> Quota | None:
    """The quota now, None while the migration's source pod still counts."""
    return _quota(history.quota) if history.quota and is_over(history, migration) else None


def highest_since(history: History, at: float) -> Amounts:
    """The most that was allowed at any moment since `at`, each resource by itself."""
    hard = [version.hard for version in history.quotas if version.at >= at]
    return Amounts(
        max((amounts.cpu for amounts in hard), default=ZERO),
        max((amounts.memory for amounts in hard), default=ZERO),
    )


def lowest_under_entries(history: History, at: float) -> Amounts | None:
    """The least that was allowed at any moment since `at` while an entry stood, each resource by itself.

    The version that stood at `at` counts, too. None when no entry stood.
    """
    before = [version for version in history.quotas if version.at < at][-1:]
    since = [version for version in history.quotas if version.at >= at]
    hard = [version.hard for version in before + since if version.entries]
    if not hard:
        return None
    return Amounts(min(amounts.cpu for amounts in hard), min(amounts.memory for amounts in hard))


def first_version(history: History, at: float, fits: Callable[[QuotaVersion], bool]) -> QuotaVersion | None:
    """The first version seen since `at` that fits."""
    return next((version for version in history.quotas if version.at >= at and fits(version)), None)


def state_of(history: History, migration: str) -> str:
    """Phase and refusal in one phrase."""
    track = history.migrations.get(migration)
    if track is None:
        return "not there"
    return f"{track.phase or 'new'}, {'refused' if track.refused is not None else 'never refused'}"


def phases_of(history: History, migration: str) -> str:
    """Every phase that the migration was seen in, in order."""
    track = history.migrations.get(migration)
    return " ".join(change.phase for change in track.phases if change.phase) if track else ""


def refusal_of(history: History, migration: str) -> str:
    """Quota's own words about the migration's target pod, as the API server said them; "" when it said none."""
    about = (Refusal.of(event.message) for event in history.events if event.about == migration)
    return next((refusal.words for refusal in about if refusal), "")


def refused_after_the_raise(history: History) -> int:
    """How many refusals of migrations came from a limit that had been raised for them already, by quota's own words."""
    raised = {name: raise_of(history, name) for name in history.migrations}
    count = 0
    for event in history.events:
        version, refusal = raised.get(event.about), Refusal.of(event.message)
        if version is not None and refusal is not None and refusal.limited:
            count += _has_room_of(version, refusal.limited)
    return count


def raise_of(history: History, migration: str) -> QuotaVersion | None:
    """The first version of the quota with an entry for the migration's VM, since the migration is there."""
    track = history.migrations[migration]
    key = migrating_key(track.vm)
    since = (version for version in history.quotas if version.version > track.began.version)
    return next((version for version in since if key in version.entries), None)


def _has_room_of(version: QuotaVersion, limits: ResourceList) -> bool:
    """Whether the limits that a refusal names are all as high as that version's. Quota names what was exceeded only."""
    raised = {LIMITS_CPU: version.hard.cpu, LIMITS_MEMORY: version.hard.memory}
    return all(limit >= raised.get(name, ZERO) for name, limit in limits.items())


def target_of(history: History, migration: str) -> Track | None:
    """The pod that was made for the migration."""
    track = history.migrations.get(migration)
    return next((pod for pod in history.pods.values() if track and pod.job == track.uid), None)


def source_of(history: History, migration: str) -> Track | None:
    """The pod that the migration moved the VM out of: the VM's newest one before the target."""
    target = target_of(history, migration)
    if target is None:
        return None
    older = [
        pod
        for pod in history.pods.values()
        if pod.vm == target.vm and pod.began.version < target.began.version
    ]
    return max(older, key=lambda pod: pod.began.version, default=None)


def is_over(history: History, migration: str) -> bool:
    """Whether the source pod of the migration has stopped counting."""
    source = source_of(history, migration)
    return source is not None and source.ended is not None


def held_until_the_end(history: History, migration: str) -> str:
    """Whether the limit was ever below what the pods took, from the migration's success to its source pod's end.

    The pods are asked, not status.used: that follows them only after a moment.
    """
    track, source = history.migrations.get(migration), source_of(history, migration)
    if track is None or track.ended is None or source is None or source.ended is None:
        return "not over"
    span = range(track.ended.version, source.ended.version)
    for version in history.quotas:
        needed = counted_at(history, version.version)
        if version.version in span and not covers(version.hard, needed):
            return f"lowered to {version.hard} while pods took {needed}"
    return "held"


def counted_at(history: History, version: int) -> Amounts:
    """What the pods that had not ended at a version took together."""
    alive = [
        pod.usage
        for pod in history.pods.values()
        if pod.began.version < version and (pod.ended is None or pod.ended.version > version)
    ]
    return sum(alive, Amounts())


def admission_of(history: History, migration: str, earlier: str) -> str:
    """Whether the migration's target pod was admitted while the source pod of an earlier migration still counted."""
    target, source = target_of(history, migration), source_of(history, earlier)
    if target is None or source is None:
        return "not there"
    counted = source.ended is None or target.began.version < source.ended.version
    return f"admitted {'while' if counted else 'after'} {earlier}'s old pod count{'s' if counted else 'ed'}"


def covers(hard: Amounts, used: Amounts) -> bool:
    """Whether the limit holds what is counted."""
    return hard.cpu >= used.cpu and hard.memory >= used.memory


def _quota(version: QuotaVersion) -> Quota:
    return Quota(version.hard, version.used)
