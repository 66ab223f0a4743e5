"""Pods that were let through and are not seen yet: between our answer and quota's own count a pod is in no list.

Each replica keeps its own. What another replica lets through is seen once quota has counted it: pods that two replicas
have between these two at the same moment, a few milliseconds, may together take more than the base by the smaller of
the two. With one replica there is no such moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pkg.util.quantity import Quantity

EXPIRY: Final = 10.0
"""Seconds after which a pod that never turned up is given up. A request that another webhook holds up for longer may
find its place taken, by at most its own size."""
DOUBTFUL_EXPIRY: Final = 2.0
"""Seconds for a pod that quota would refuse by what is known of it: that may change while the pod is on its way."""
YOUNG: Final = 0.1
"""Seconds in which status.used may not count a pod yet that was let through."""


@dataclass(frozen=True, slots=True)
class _Pending:
    usage: Mapping[str, Quantity]
    quotas: Collection[str]
    since: float
    until: float


class Ledger:
    """By namespace. Everything is sync: between a look at it and the entry that follows nothing else runs."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, _Pending]] = {}

    def admit(
        self,
        namespace: str,
        uid: str,
        usage: Mapping[str, Quantity],
        quotas: Collection[str],
        now: float,
        *,
        doubtful: bool = False,
    ) -> None:
        """A pod was let through; `quotas` are the names of those that will count it."""
        until = now + (DOUBTFUL_EXPIRY if doubtful else EXPIRY)
        self._pending.setdefault(namespace, {})[uid] = _Pending(usage, quotas, now, until)

    def settle(self, namespace: str, seen: Collection[str], now: float) -> None:
        """Forget the pods that are seen (by uid), and those that are given up."""
        kept = {
            uid: pending
            for uid, pending in self._pending.get(namespace, {}).items()
            if uid not in seen and now < pending.until
        }
        if kept:
            self._pending[namespace] = kept
        else:
            self._pending.pop(namespace, None)

    def pending(
        self, namespace: str, quota: str, since: float = float("-inf")
    ) -> Iterator[Mapping[str, Quantity]]:
        """What each pod takes of a quota, of those that were let through after `since`."""
        for pending in self._pending.get(namespace, {}).values():
            if quota in pending.quotas and pending.since > since:
                yield pending.usage
