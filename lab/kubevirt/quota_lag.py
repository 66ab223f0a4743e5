"""Quota admission whose cache lags: it decides from `status.hard` as it was a moment ago.

The API server's quota plugin reads a cache of its own, and the quota controller copies spec.hard into status.hard a
moment after it is written: the first try after a raise may meet the limit as it was before. The real plugin of the
cluster still decides about what is let through here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import RawResourceList
from kubeloop.client.errors import Forbidden
from kubeloop.controllers.cache_reader import CacheReader
from pkg.util.quantity import ZERO
from pkg.util.quotacount.usage import counted, pod_usage
from pkg.util.resource_list import ResourceList, format_resource_list, parse_resource_list


class QuotaLag:
    """What each quota's status.hard was, as far back as is needed. `seconds` 0: everything is let through."""

    def __init__(self, seconds: float, quotas: CacheReader[ResourceQuota], now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._quotas = quotas
        self._now = now
        self._history: dict[str, deque[tuple[float, RawResourceList]]] = {}

    def observe(self, quota: ResourceQuota) -> None:
        """Note a quota's status.hard, at each of its events."""
        if not self._seconds:
            return
        history = self._history.setdefault(quota.uid, deque())
        hard = quota.status.hard or {}
        if not history or history[-1][1] != hard:
            history.append((self._now(), hard))

    def admit(self, body: Mapping[str, Any], namespace: str) -> None:
        """Raises Forbidden, with the API server's words, where the pod does not fit a quota as it was then."""
        if not self._seconds:
            return
        pod = msgspec.convert(body, Pod)
        for quota in self._quotas.list(namespace):
            if counted(pod, quota.spec):
                self._check(pod, quota)

    def _check(self, pod: Pod, quota: ResourceQuota) -> None:
        hard, used = parse_resource_list(self._hard_then(quota)), parse_resource_list(quota.used)
        asked = {name: amount for name, amount in pod_usage(pod).items() if amount > ZERO and name in hard}
        over = {name: amount for name, amount in asked.items() if used.get(name, ZERO) + amount > hard[name]}
        if over:
            told = ", ".join(
                f"{word}: {_listed({name: of[name] for name in over if name in of})}"
                for word, of in (("requested", asked), ("used", used), ("limited", hard))
            )
            message = f'pods "{pod.name}" is forbidden: exceeded quota: {quota.name}, {told}'
            raise Forbidden(message, status=403, reason="Forbidden")

    def _hard_then(self, quota: ResourceQuota) -> RawResourceList:
        """status.hard `seconds` ago; of a younger quota the first that was seen."""
        self.observe(quota)
        history = self._history[quota.uid]
        then = self._now() - self._seconds
        while len(history) > 1 and history[1][0] <= then:
            history.popleft()
        return history[0][1]


def _listed(resources: ResourceList) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(format_resource_list(resources).items()))
