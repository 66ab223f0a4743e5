"""From an informer's events to keys in a controller's queue. Sync: it only enqueues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from kubeloop.api.meta import Object
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, LOW_PRIORITY

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

Resolver = Callable[[T], Iterable[str]]
"""Names the keys, in a list, that an object of another kind concerns (wrangler's relatedresource.Resolver)."""

Reads = Callable[[T], object]
"""What handlers read of an object of another kind: an update that leaves it equal is not theirs (controller-runtime's
predicates)."""

EnqueueKey = Callable[[str, int], None]
"""Takes a key and its priority."""


class EnqueueHandler(Generic[T]):
    """Enqueues the keys that `keys_of` returns for every object that is added, changed (old and new) or
    deleted; with `reads`, only changes in what that returns."""

    def __init__(self, keys_of: Resolver[T], enqueue: EnqueueKey, reads: Reads[T] | None = None) -> None:
        self._keys_of = keys_of
        self._enqueue = enqueue
        self._reads = reads

    def on_add(self, obj: T, is_in_initial_list: bool) -> None:
        self._enqueue_all(LOW_PRIORITY if is_in_initial_list else DEFAULT_PRIORITY, obj)

    def on_update(self, old: T, new: T) -> None:
        if old is new:
            self._enqueue_all(LOW_PRIORITY, new)  # a resync: nothing happened, look again when there is time
        elif self._reads is None or self._reads(old) != self._reads(new):
            self._enqueue_all(DEFAULT_PRIORITY, new, old)

    def on_delete(self, obj: T, final_state_unknown: bool) -> None:
        self._enqueue_all(DEFAULT_PRIORITY, obj)

    def _enqueue_all(self, priority: int, *objects: T) -> None:
        # Ordered and without repeats. All keys are known before the first is enqueued; a resolver that fails on
        # `old` must not cost what it said about `new`.
        keys: dict[str, None] = {}
        for obj in objects:
            try:
                named = self._keys_of(obj)
                if isinstance(named, str):
                    raise TypeError(f"a list of keys is expected, not the text {named!r}")
                keys.update(dict.fromkeys(named))
            except Exception:
                log.exception("cannot map %s to keys", obj.key)
        for key in keys:
            self._enqueue(key, priority)
