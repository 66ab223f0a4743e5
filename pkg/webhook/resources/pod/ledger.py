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
    """Remembers admitted pods by namespace. Everything is sync: nothing else runs between a read and the entry that
    follows.
    """

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, _Entry]] = {}
        self._silent = False
        # Invariant: what was let in before the next answer of the API server may be stored as late as that comes.

    def remember(self, pod: Candidate, usages: Usages) -> None:
        """Remembers a pod that was admitted, and what quotas will count of it."""
        if not usages:
            return
        entry = _Entry(pod.uid, pod.replaced, usages, loop_time())
        self._entries.setdefault(pod.namespace, {})[f"{pod.uid}/{pod.replaced}"] = entry
        others = [namespace for namespace in self._entries if namespace != pod.namespace]
        for namespace in (pod.namespace, *others[:_SWEPT]):
            self._forget(namespace, loop_time())

    def suspend(self) -> None:
        """Keeps every pod until the API server answers again."""
        self._silent = True

    def answered(self, namespace: str, requested_at: float) -> None:
        """Forgets the pods that had not turned up when a read began that the API server has answered."""
        if self._silent:
            self._silent = False
            for entries in self._entries.values():
                entries.update({key: replace(entry, since=loop_time()) for key, entry in entries.items()})
        self._forget(namespace, requested_at)

    def unseen(self, namespace: str, versions: Mapping[str, str | None]) -> list[Usages]:
        """Returns the usages of the pods that a read did not show; `versions` has the uid and resourceVersion of those
        that it did. Nothing is forgotten because it was seen: another read, which began earlier, may not show it."""
        remembered = self._entries.get(namespace, {}).values()
        return [entry.usages for entry in remembered if versions.get(entry.uid, entry.replaced) == entry.replaced]

    def _forget(self, namespace: str, requested_at: float) -> None:
        # At the end: the namespaces that have not been asked about for longest are swept first.
        entries = self._entries.pop(namespace, {})
        remaining = {
            key: entry for key, entry in entries.items() if self._silent or requested_at < entry.since + EXPIRY
        }
        if remaining:
            self._entries[namespace] = remaining
        REMEMBERED.set(sum(map(len, self._entries.values())))
