"""What a quota charges for a namespace's pods, added up again and again, and what has just ceased to be charged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cachetools import TTLCache
from msgspec.structs import replace

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.objects import find_condition
from pkg.util.quantity import ZERO, Quantity, QuantityError
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.quotacount.usage import counted, is_live
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota.facts import Cache
from pkg.webhook.deadline import now

ENDED: Final = 5.0
"""Seconds in which status.used may still count a pod that has ended."""
_PODS: Final = 20000
_QUOTAS: Final = 5000
_FORGOTTEN: Final = 60.0
"""Seconds after which a quota that no request asks about is forgotten."""


@dataclass(frozen=True, slots=True)
class Sums:
    """By the names that the quota limits: its pods together, and those that ended and that status.used may still
    count."""

    counted: ResourceList
    ended: ResourceList


@dataclass(frozen=True, slots=True)
class _Last:
    pods: Mapping[str, ResourceList]
    ended: Mapping[str, tuple[float, ResourceList]]


class Tally:
    """Remembers for each quota the pods of the last time."""

    def __init__(self) -> None:
        self._cache = Cache(_PODS)
        self._last: TTLCache[str, _Last] = TTLCache(_QUOTAS, ttl=_FORGOTTEN, timer=now)

    def of(self, quota: ResourceQuota, pods: Iterable[Pod], date: float, releases: Releases = NEWEST) -> Sums:
        """`pods` are all of the namespace; `date`: seconds since 1970 by the API server's clock, for a pod that is
        terminating past its grace period is not charged."""
        charged = [pod for pod in pods if counted(pod, quota.spec, releases=releases)]
        there = {pod.uid: self._usage(pod, releases) for pod in charged if is_live(pod, date)}
        last = self._last.get(quota.key) or _Last(self._just_over(pods, quota, date, releases), {})
        ended = {uid: (at, usage) for uid, (at, usage) in last.ended.items() if now() - at < ENDED}
        ended |= {uid: (now(), usage) for uid, usage in last.pods.items() if uid not in there}
        # The quota controller notices that a grace period is over only when it counts anew: after minutes.
        ended |= {pod.uid: (now(), self._usage(pod, releases)) for pod in charged if pod.uid not in there}
        self._last[quota.key] = _Last(there, ended)
        names = list(quota.hard)
        return Sums(_sum(there.values(), names), _sum((usage for _, usage in ended.values()), names))

    def _just_over(
        self, pods: Iterable[Pod], quota: ResourceQuota, date: float, releases: Releases
    ) -> dict[str, ResourceList]:
        """What the first time cannot remember: the pods that have just ended, as they counted while they ran."""
        ended = (pod for pod in pods if pod.terminal and abs(date - _ended_at(pod)) < ENDED)
        ran = (replace(pod, status=replace(pod.status, phase=None)) for pod in ended)
        charged = (pod for pod in ran if counted(pod, quota.spec, releases=releases))
        return {pod.uid: self._usage(pod, releases) for pod in charged}

    def _usage(self, pod: Pod, releases: Releases) -> ResourceList:
        try:
            return self._cache.usage_of(pod, releases)
        except QuantityError:  # the API server lets none of these in
            return {}


def _ended_at(pod: Pod) -> float:
    """When a kubelet reported that the containers had ended, in seconds since 1970 by the node's clock; 0.0: it did
    not."""
    ready = find_condition(pod.status.conditions, "Ready")
    return from_rfc3339(ready.last_transition_time) if ready and ready.last_transition_time else 0.0


def _sum(usages: Iterable[Mapping[str, Quantity]], names: Iterable[str]) -> ResourceList:
    sums: ResourceList = {}
    for usage in usages:
        for name in names:
            if name in usage:
                sums[name] = sums.get(name, ZERO) + usage[name]
    return sums
