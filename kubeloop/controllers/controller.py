"""A kind's controller: one queue, N workers, any number of handlers (lasso's sharedHandler, wrangler's OnChange)."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kubeloop.api.meta import Object, is_older
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.store import CheckedIndexer
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers import reconcile
from kubeloop.controllers.cache_reader import CacheReader, newer
from kubeloop.controllers.enqueue import (
    EnqueueHandler,
    Reads,
    Resolver,
    check_handler,
    check_key,
    check_resolver,
    owners,
)
from kubeloop.controllers.errors import described
from kubeloop.logs import reconciling
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, LOW_PRIORITY, ShutDown
from kubeloop.workqueue.rate_limiters import RateLimiter
from kubeloop.workqueue.rate_limiting_queue import RateLimitingQueue

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
R = TypeVar("R", bound=Object)

RemovalFunction = Callable[[str, T], Awaitable[T | None]]

_CANCEL_GRACE = 1.0
"""Seconds that a cancelled worker has to end."""
_FINALIZER_PREFIX = "wrangler.cattle.io/"
"""Wire format: wrangler's controllers leave the same finalizers under the same names."""


class Controller(Generic[T]):
    """Calls handlers with the keys of one kind: of objects that changed, and of those that were enqueued.

    Handlers are called one after the other with `(key, obj)`, obj fresh from the cache, None when it is not there (any
    more); or as a handler returned it, in this call or an earlier one, until the cache has that."""

    def __init__(
        self,
        name: str,
        client: ResourceClient[T],
        informer: SharedIndexInformer[T],
        *,
        workers: int = 10,
        rate_limiter: RateLimiter[str] | None = None,
        handlers: dict[str, str] | None = None,
        selects: Callable[[str], bool] = lambda _: True,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        """`handlers`: whose each handler's name is, over all controllers of a process, for their metrics. `selects`:
        for which keys handlers are called. `on_stop` is called when this controller alone is stopped."""
        self.name = name
        self.client = client
        self.informer = informer
        self.queue: RateLimitingQueue[str] = RateLimitingQueue(name, rate_limiter=rate_limiter)
        self._cache = CacheReader(informer.indexer, informer)
        self._worker_count = workers
        self._selects = selects
        self._on_stop = on_stop
        self._handlers: dict[tuple[str, bool], reconcile.NamedHandler[T]] = {}
        self._own_handler: EnqueueHandler[T]
        # Made with the first handler.
        # By name, and whether it is for removals: the two of one name are a pair, as upstream's.
        self._owners = handlers if handlers is not None else {}
        self._returned: dict[str, tuple[T, T]] = {}
        # Invariant: the objects that handlers left ahead of the cache, each behind what the cache had then.
        self._conflicted: set[str] = set()
        # Invariant: the keys that had their one retry without backoff since they last succeeded.
        self._workers: list[asyncio.Task[None]] = []
        self._started = False
        self._stopping = False

    def cache(self) -> CacheReader[T]:
        """A read-only view of the kind's cache."""
        return self._cache

    def on_change(self, name: str, handler: reconcile.Handler[T], *, reads: Reads[T] | None = None) -> None:
        """Calls `handler` for every object that is there, comes, changes or goes, also if it is added while the
        controller runs: the handlers that were there are then called once more too (as by lasso). ValueError when the
        name is taken, TypeError for a plain `def`, RuntimeError when the controller was stopped.

        `reads` returns the part of an object that matters to the handler: an update that leaves it equal is no reason
        to call it (`generation` of `kubeloop.controllers.enqueue`: the handler's own write of a status is none). What
        one handler of a kind asks for calls all of them."""
        check_handler(handler)
        self._add(name, handler, reads)

    def on_remove(self, name: str, handler: RemovalFunction[T], *, finalizer: str = "") -> None:
        """Calls `handler` once an object is being deleted; it stays, by a finalizer, until that succeeded. Its name may
        be that of an `on_change`. ValueError when another `on_remove` has it. `finalizer`: its name on the object,
        wrangler's (`wrangler.cattle.io/<name>`) by default."""
        check_handler(handler)
        removal_handler = _RemovalHandler(finalizer or _FINALIZER_PREFIX + name, handler, self.client)
        self._add(name, removal_handler, _read_for_removal, removal=True)

    def _add(self, name: str, handler: reconcile.Handler[T], reads: Reads[T] | None, *, removal: bool = False) -> None:
        self._refuse_if_stopped()
        if (name, removal) in self._handlers:
            raise ValueError(f"controller {self.name} has a handler {name} already: give this one another name")
        label = name if self._owners.setdefault(name, self.name) == self.name else f"{name} of {self.name}"
        if isinstance(self.informer.indexer, CheckedIndexer):
            handler = _check_cache_after(handler, self.informer.indexer)
        if not self._handlers:
            own_reads = None if reads is None else [reads]
            self._own_handler = EnqueueHandler(lambda obj: (obj.key,), self.queue.add, own_reads)
            self.informer.add_event_handler(self._own_handler)
        else:
            old_reads = self._own_handler.reads
            self._own_handler.reads = None if reads is None or old_reads is None else [*old_reads, reads]
            self.enqueue_all()
        self._handlers[name, removal] = reconcile.NamedHandler(name, handler, label, self._worker_count)
        if self._started:
            self.start_workers()

    def watch_owned(
        self, controller: "Controller[R]", *, any_owner: bool = False, reads: Reads[R] | None = None
    ) -> None:
        """Enqueues here the owner of every object of another kind that is added, changed or deleted: the one that
        manages it (controller-runtime's Owns), with `any_owner` each one of this kind."""
        self.watch_related(controller, owners(self.informer.resource, any_owner), reads=reads)

    def watch_related(
        self, controller: "Controller[R]", resolver: Resolver[R], *, reads: Reads[R] | None = None
    ) -> None:
        """Enqueues here the keys that `resolver` returns whenever an object of another kind is added, changed or
        deleted. On an update it gets the old and the new object (wrangler's relatedresource.Watch); with `reads` only
        if what that returns of the two differs. Raises TypeError for a resolver that returns a str; one that returns
        what is no key of this kind is named in the log."""
        check_resolver(resolver, controller.informer.resource.type)
        several = None if reads is None else (reads,)
        controller.informer.add_event_handler(EnqueueHandler(resolver, self._add_key, several))

    def enqueue(self, key: str, *, immediately: bool = False) -> None:
        """Calls the handlers for this key (`namespace/name`, or `name`) soon.

        As the queue's rate limiter allows, like lasso's Enqueue: a handler that enqueues its own key, or two that
        enqueue each other's, cannot take the whole loop. `immediately`: at once, for what cannot turn in a circle.
        Raises ValueError for what is no key of the kind (a name without its namespace). Ignored after `stop`."""
        if immediately:
            self._add_key(key)
        else:
            check_key(self.informer.resource, key)
            self.queue.add_rate_limited(key)

    def enqueue_after(self, key: str, seconds: float) -> None:
        """Calls the handlers for this key in `seconds`. Raises what `enqueue` does."""
        check_key(self.informer.resource, key)
        self.queue.add_after(key, seconds)

    def enqueue_all(self) -> None:
        """Calls the handlers for every object in the cache, with low priority."""
        for key in self.informer.indexer.list_keys():
            self.queue.add(key, LOW_PRIORITY)

    def start_workers(self) -> None:
        """Starts the workers. Needs the running loop and synced caches. Raises RuntimeError after `stop`."""
        self._refuse_if_stopped()
        self._started = True
        if self._workers or not self._handlers:
            return
        names = (f"{self.name} worker {number}" for number in range(self._worker_count))
        self._workers = [asyncio.create_task(self._work(), name=name) for name in names]

    async def stop(self, timeout: float = 10.0) -> None:
        """Ends this controller for good, and its watch, while others go on: what is queued is finished, at most
        `timeout` seconds. Its cache can no longer be read. A factory that is asked for the kind makes another one."""
        if not self._stopping:
            self._on_stop()
        await self.drain(timeout)
        self._cache.close()
        await self.informer.stop()

    async def drain(self, timeout: float = 10.0) -> None:
        """Takes nothing new, finishes what is queued, at most `timeout` seconds; then workers are cancelled."""
        self._stopping = True
        self.queue.shut_down()
        if not self._workers:
            return
        _, unfinished = await asyncio.wait(self._workers, timeout=timeout)
        for worker in unfinished:
            worker.cancel()
        if unfinished:
            log.warning("%s: stopped with %d running and %d queued keys", self.name, len(unfinished), len(self.queue))
            await asyncio.wait(unfinished, timeout=_CANCEL_GRACE)

    def healthy(self) -> list[str]:
        """Returns the workers that have ended, a line each: only a restart repairs that."""
        workers = () if self._stopping else self._workers
        return [f"{worker.get_name()} is dead: {described(_end(worker))}" for worker in workers if worker.done()]

    def hanging(self) -> list[str]:
        """Calls that do not end, a line each."""
        return [f"{self.name}: {line}" for handler in self._handlers.values() for line in handler.hanging()]

    def troubles(self) -> list[reconcile.Trouble]:
        """Keys that wait for somebody else, and the cache if the API server refuses to list or watch the kind."""
        refusal = self.informer.trouble
        troubles = [reconcile.Trouble("", "", refusal)] if refusal is not None and refusal.needs_repair else []
        return troubles + [trouble for handler in self._handlers.values() for trouble in handler.troubles()]

    def _refuse_if_stopped(self) -> None:
        if self._stopping:
            raise RuntimeError(f"controller {self.name} was stopped, and calls no handler again: make another")

    def _add_key(self, key: str, priority: int = DEFAULT_PRIORITY) -> None:
        check_key(self.informer.resource, key)
        self.queue.add(key, priority)

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            try:
                with reconciling(self.name, key):
                    self._settle(key, await self._reconcile(key))
            finally:
                self.queue.done(key)
            # Handlers that never wait must not keep the loop from leases, probes and admission requests.
            await asyncio.sleep(0)

    def _current(self, key: str) -> T | None:
        """Returns the object as the last handler left it, until the cache has that or a later one, or was restored."""
        cached = self.informer.indexer.get_by_key(key)
        if key not in self._returned:
            return cached
        cached_before, returned = self._returned[key]
        was_restored = cached and is_older(cached.metadata.resource_version, cached_before.metadata.resource_version)
        if cached is not None and not was_restored and newer(cached, returned) is returned:
            return returned
        del self._returned[key]
        return cached

    def _remember(self, key: str, returned: T | None) -> None:
        cached = self.informer.indexer.get_by_key(key)
        if returned is not None and cached is not None:
            self._returned[key] = (cached, returned)

    def _settle(self, key: str, verdict: reconcile.Verdict[T]) -> None:
        """Settles a processed key: the only place that forgets and retries (controller-runtime's reconcileHandler)."""
        if verdict.not_before is not None:
            self.queue.add_not_before(key, verdict.not_before)
        match verdict.outcome:
            case reconcile.Outcome.CONFLICT if key not in self._conflicted:
                # The watch most likely brings the newer object within milliseconds. A second conflict in a row means
                # that it has not yet: from then on the backoff gives it time.
                self._conflicted.add(key)
                self.queue.add(key)
            case reconcile.Outcome.CONFLICT | reconcile.Outcome.FAILED:
                self.queue.add_rate_limited(key)
            case _:
                self.queue.forget(key)
                self._conflicted.discard(key)
        if verdict.delay is not None:
            self.queue.add_after(key, verdict.delay)

    async def _reconcile(self, key: str) -> reconcile.Verdict[T]:
        # The object is read anew for every handler: the one before may have waited long enough for it to change.
        verdicts: list[reconcile.Verdict[T]] = []
        for handler in tuple(self._handlers.values()) if self._selects(key) else ():
            verdict = await handler.call(key, self._current(key))
            self._remember(key, verdict.returned)
            verdicts.append(verdict)
        self._current(key)  # forgets what the cache has by now
        return reconcile.combine(verdicts)


def _check_cache_after(handler: reconcile.Handler[T], indexer: CheckedIndexer[T]) -> reconcile.Handler[T]:
    async def call(key: str, obj: T | None) -> T | None:
        try:
            return await handler(key, obj)
        finally:
            indexer.check(key)

    return call


def _end(worker: asyncio.Task[None]) -> BaseException:
    return asyncio.CancelledError() if worker.cancelled() else worker.exception() or ShutDown()


def _read_for_removal(obj: Object) -> object:
    """The part of an object that matters to a _RemovalHandler: once it is being deleted, each change."""
    meta = obj.metadata
    return meta.uid, meta.finalizers, meta.deletion_timestamp and meta.resource_version


@dataclass(eq=False)
class _RemovalHandler(Generic[T]):
    """A handler that keeps `finalizer` on every object and calls `handler` when one is deleted: wrangler's OnRemove."""

    finalizer: str
    handler: RemovalFunction[T]
    client: ResourceClient[T]

    async def __call__(self, key: str, obj: T | None) -> T | None:
        """Returns the object as written. Raises what the handler raises (the finalizer then stays) and ApiError."""
        if obj is None:
            return None
        finalizers = obj.metadata.finalizers or []
        has_finalizer = self.finalizer in finalizers
        if obj.deleting and has_finalizer:
            returned = await self.handler(key, obj)
            return await self._release(reconcile.same_object(obj, returned) or obj)
        if not obj.deleting and not has_finalizer:
            with contextlib.suppress(NotFound):  # gone meanwhile: nothing left to hold
                return await self.client.patch(obj, {"metadata": {"finalizers": [*finalizers, self.finalizer]}})
        return None

    async def _release(self, obj: T) -> T | None:
        """Takes the finalizer from the object as it is now: the handler may have changed it, and others all the time.
        It succeeded; called again because of a conflict it could change the object again, for ever."""

        async def attempt(again: bool) -> T | None:
            now = await self.client.get(name=obj.name, namespace=obj.namespace) if again else obj
            finalizers = [name for name in now.metadata.finalizers or () if name != self.finalizer]
            if now.uid != obj.uid or finalizers == (now.metadata.finalizers or []):
                return None
            return await self.client.patch(now, {"metadata": {"finalizers": finalizers}})

        with contextlib.suppress(NotFound):
            return await retry_on_conflict(attempt)
        return None
