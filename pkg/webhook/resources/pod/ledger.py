"""Pods that were let through and are not seen yet: between our answer and quota's own count a pod is in no list.

Each replica keeps its own. What another replica lets through is seen once quota has counted it. Until then each counts
its own pods twice, in the other one's place: two replicas together exceed a base by one pod at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pkg.util.quantity import Quantity
from pkg.webhook.deadline import now
from pkg.webhook.metrics import REMEMBERED

EXPIRY: Final = 2.0
"""Seconds after which a pod that never turned up is given up: quota or another webhook refused it. A request that is
held up for longer may find its place taken, by at most its own size; while the API server is silent none is."""
_SWEPT: Final = 2
"""Other namespaces that are searched at every entry: those that never ask again are forgotten."""


Usages = Mapping[str, Mapping[str, Quantity]]


@dataclass(frozen=True, slots=True)
class _Pending:
    uid: str
    replaced: str | None
    usages: Usages
    since: float


class Ledger:
    """By namespace. Everything is sync: between reading it and the entry that follows nothing else runs."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, _Pending]] = {}
        self._silent = False
        # Invariant: what was let in before the next answer of the API server may be stored as late as that comes.

    def admit(self, namespace: str, uid: str, usages: Usages, *, replaced: str | None = None) -> None:
        """A pod was let through; `usages`: what it takes, by the names of the quotas that will count it. `replaced`:
        the resourceVersion that a resize replaces, None for a new pod."""
        pending = _Pending(uid, replaced, usages, now())
        self._pending.setdefault(namespace, {})[f"{uid}/{replaced}"] = pending
        REMEMBERED.set(len(self))
        for each in (namespace, *[each for each in self._pending if each != namespace][:_SWEPT]):
            self._forget(each, {}, now())

    def settle(self, namespace: str, seen: Mapping[str, str | None], asked: float) -> None:
        """The API server, `asked` at that time, has answered: forget the pods that are seen (uid to resourceVersion),
        and those that were given up by then."""
        if self._silent:
            self._silent = False
            for pending in self._pending.values():
                pending.update({key: replace(each, since=now()) for key, each in pending.items()})
        self._forget(namespace, seen, asked)

    def keep(self) -> None:
        """It does not answer: until it does, none is given up."""
        self._silent = True

    def _forget(self, namespace: str, seen: Mapping[str, str | None], asked: float) -> None:
        if self._silent:
            return
        kept = {
            key: each
            for key, each in self._pending.get(namespace, {}).items()
            if seen.get(each.uid, each.replaced) == each.replaced and asked < each.since + EXPIRY
        }
        # At the end: the namespaces that have not been asked about for longest are swept first.
        self._pending.pop(namespace, None)
        if kept:
            self._pending[namespace] = kept
        REMEMBERED.set(len(self))

    def __len__(self) -> int:
        """Pods of all namespaces."""
        return sum(map(len, self._pending.values()))

    def pending(self, namespace: str, quota: str) -> Iterator[Mapping[str, Quantity]]:
        """What each pod takes of a quota."""
        for pending in self._pending.get(namespace, {}).values():
            if quota in pending.usages:
                yield pending.usages[quota]
