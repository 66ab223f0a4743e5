"""Pods that were let through and may not be seen yet: between our answer and quota's own count a pod is in no list.

Each replica keeps its own. What another replica lets through is seen once quota has counted it. Until then each counts
its own pods twice, in the other one's place: two replicas together exceed a base by one pod at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kubeloop.workqueue.queue import loop_time
from pkg.util.resourcequota.room import Candidate, Usages
from pkg.webhook.metrics import REMEMBERED

EXPIRY: Final = 2.0
"""Seconds after which a pod that never turned up is given up: quota or another webhook refused it. A request that is
held up for longer may find its place taken, by at most its own size; while the API server is silent none is."""
_SWEPT: Final = 2
"""Other namespaces that are searched at every entry: those that never ask again are forgotten."""


@dataclass(frozen=True, slots=True)
class _Entry:
    uid: str
    replaced: str | None
    usages: Usages
    since: float


class Ledger:
    """By namespace. Everything is sync: between reading it and the entry that follows nothing else runs."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, _Entry]] = {}
        self._silent = False
        # Invariant: what was let in before the next answer of the API server may be stored as late as that comes.

    def remember(self, pod: Candidate, usages: Usages) -> None:
        """A pod was let through, and takes this of quotas that will count it."""
        if not usages:
            return
        entry = _Entry(pod.uid, pod.replaced, usages, loop_time())
        self._entries.setdefault(pod.namespace, {})[f"{pod.uid}/{pod.replaced}"] = entry
        for each in (pod.namespace, *[each for each in self._entries if each != pod.namespace][:_SWEPT]):
            self._forget(each, loop_time())

    def give_up(self, namespace: str, asked: float) -> None:
        """The API server, `asked` at that time, has answered: forget the pods that had not turned up by then."""
        if self._silent:
            self._silent = False
            for entries in self._entries.values():
                entries.update({key: replace(each, since=loop_time()) for key, each in entries.items()})
        self._forget(namespace, asked)

    def suspend(self) -> None:
        """It does not answer: until it does, none is given up."""
        self._silent = True

    def _forget(self, namespace: str, asked: float) -> None:
        # At the end: the namespaces that have not been asked about for longest are swept first.
        entries = self._entries.pop(namespace, {})
        kept = {key: each for key, each in entries.items() if self._silent or asked < each.since + EXPIRY}
        if kept:
            self._entries[namespace] = kept
        REMEMBERED.set(sum(map(len, self._entries.values())))

    def unseen(self, namespace: str, seen: Mapping[str, str | None]) -> list[Usages]:
        """What each pod takes that is not among those `seen` (uid to resourceVersion). Nothing is forgotten because it
        was seen: another read, which began earlier, may not show it."""
        entries = self._entries.get(namespace, {}).values()
        return [each.usages for each in entries if seen.get(each.uid, each.replaced) == each.replaced]
