"""What a quota charges for a namespace's pods, added up again and again: each pod is worked out once."""

from __future__ import annotations

from collections.abc import Iterable

from cachetools import LRUCache

from pkg.api.core import Pod, ResourceQuotaSpec
from pkg.util.quantity import ZERO, QuantityError
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota.usage import counted, pod_usage

_REMEMBERED = 20000


class Tally:
    """Remembers the usage of pods that came from a cache: an unchanged pod is the same object there."""

    def __init__(self) -> None:
        self._known: LRUCache[str, tuple[Pod, ResourceList]] = LRUCache(_REMEMBERED)

    def of(self, pods: Iterable[Pod], spec: ResourceQuotaSpec) -> ResourceList:
        """The sum over those that the quota counts, of what it limits."""
        hard = spec.hard or {}
        sums: ResourceList = {}
        for pod in pods:
            if not counted(pod, spec):
                continue
            usage = self._usage(pod)
            for name in hard:
                if name in usage:
                    sums[name] = sums.get(name, ZERO) + usage[name]
        return sums

    def _usage(self, pod: Pod) -> ResourceList:
        known = self._known.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[1]
        try:
            usage = pod_usage(pod)
        except QuantityError:  # the API server lets none of these in
            usage = {}
        self._known[pod.uid] = (pod, usage)
        return usage
