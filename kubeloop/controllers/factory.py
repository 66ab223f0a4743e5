"""ControllerFactory: every controller of a process, one shared informer and one queue a kind."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.cache.informer import CustomResourceWatch, SharedIndexInformer, wait_for_cache_sync
from kubeloop.cache.lister_watcher import ListerWatcher, Namespaces
from kubeloop.cache.store import ChangedInPlace, CheckedIndexer
from kubeloop.client.client import Client
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.events import EventRecorder
from kubeloop.controllers.reconcile import Trouble
from kubeloop.workqueue.queue import loop_time
from kubeloop.workqueue.rate_limiters import RateLimiter, default_controller_rate_limiter

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

_POLL = 1.0
"""Seconds between checks of a kind that is forbidden, or required and not installed."""


class ControllerFactory:
    """Controllers by kind, made when first asked for (lasso's SharedControllerFactory).

    `workers` is the number of workers of every controller. The client stays the caller's to close. `selects` says for
    which keys (`namespace/name`, or `name`) handlers are called; caches hold all."""

    def __init__(
        self,
        client: Client,
        *,
        workers: int = 10,
        selects: Callable[[str], bool] = lambda _: True,
        rate_limiter: Callable[[], RateLimiter[str]] = default_controller_rate_limiter,
    ) -> None:
        """`rate_limiter` makes that of each controller which is given none."""
        self.client = client
        self._rate_limiter = rate_limiter
        self._workers = workers
        self._selects = selects
        self._controllers: dict[tuple[Resource[Any], tuple[str, ...], str, str], Controller[Any]] = {}
        self._shared: dict[Controller[Any], tuple[object, ...]] = {}
        self._handlers: dict[str, str] = {}
        self._required: dict[Controller[Any], bool] = {}
        # Whether that is only where they are defined.
        self._recorders: dict[str, EventRecorder] = {}
        self._definitions = CustomResourceWatch(client)
        self._starter: asyncio.Task[None] | None = None
        self._leading: asyncio.Event | None = None
        self._stopping = False

    def controller(
        self,
        resource: Resource[T],
        *,
        workers: int | None = None,
        namespace: str | Collection[str] = "",
        label_selector: str = "",
        field_selector: str = "",
        name: str = "",
        transform: Callable[[T], T] | None = None,
        resync_period: float = 0.0,
        rate_limiter: RateLimiter[str] | None = None,
    ) -> Controller[T]:
        """The controller of a kind, or of those of its objects that are in `namespace` (or in one of several, with a
        watch for each), match `label_selector` and `field_selector`, have the `name`: one for each of these choices.

        Another definition of the same resource (a struct of your own) is another kind. `transform` sees every object
        before it is cached, or listed by the controller's client (to drop fields); every `resync_period` seconds (0:
        never) handlers are called for every object; `rate_limiter` says when failed keys are tried again (default:
        client-go's). All who share a controller give the same of these three, else ValueError; `workers` counts only
        the first time. The name, which logs, probes and queue metrics carry, is the plural; a second kind of the same
        plural has its group, selector and struct in it as well."""
        by_name = f"metadata.name={name}" if name else ""
        fields = ",".join(filter(None, (by_name, field_selector)))
        namespaces = (namespace,) if isinstance(namespace, str) else tuple(sorted(set(namespace)))
        identity = (resource, namespaces, label_selector, fields)
        shared = (transform, resync_period, rate_limiter)
        controller: Controller[T] | None = self._controllers.get(identity)
        if controller is None:
            self._refuse_if_stopped()
            client = self.client.resource(resource)
            client = client.transformed(transform) if transform else client
            selected = " ".join(filter(None, (",".join(namespaces), label_selector, name, field_selector)))
            used_names = {controller.name for controller in self._controllers.values()}
            controller = Controller(
                next(name for name in _names(resource, selected) if name not in used_names),
                client,
                SharedIndexInformer(
                    _select(client, namespaces, label_selector, fields),
                    transform=transform,
                    resync_period=resync_period,
                    checked=self.client.transport.checked_caches,
                ),
                workers=workers or self._workers,
                rate_limiter=rate_limiter or self._rate_limiter(),
                handlers=self._handlers,
                selects=self._selects,
                on_stop=lambda: self._forget(identity),
            )
            self._controllers[identity] = controller
            self._shared[controller] = shared
            if self._starter is not None and not self._stopping:
                self._begin()  # asked for while running
        elif shared != self._shared[controller]:
            options = "transform, resync period and rate limiter"
            raise ValueError(f"the controller of {controller.name} is shared: give it the same {options}")
        return controller

    def require(self, *controllers: Controller[Any], if_defined: bool = False) -> None:
        """Requires these kinds: no handler is called before they are installed and their caches have the server's
        objects.

        Without this a kind that is not installed counts as synced, with an empty cache. `if_defined`: so does one of
        these without a CustomResourceDefinition; one that has a definition and is not served is waited for. Raises
        ValueError for what is no controller of this factory."""
        if unknown := set(controllers) - self._shared.keys():
            raise ValueError(f"required, but not what `controller` of this factory returned: {unknown}")
        self._required |= {c: if_defined and self._required.get(c, True) for c in controllers}

    def recorder(self, component: str) -> EventRecorder:
        """The component's event recorder; `stop` drains it."""
        if component not in self._recorders:
            self._recorders[component] = EventRecorder(self.client, component)
        return self._recorders[component]

    async def start(self, leading: asyncio.Event | None = None) -> None:
        """Starts every informer and returns; workers begin by themselves as soon as all informers have synced.

        With `leading` not before that is set: a standby's caches are warm when it becomes the leader. A kind that is
        not installed delays nothing, unless it is required. A kind that may not be listed delays the handlers that read
        its cache (CacheForbidden), and nothing else. Once more it starts what was added since. Raises RuntimeError
        after `stop`."""
        self._refuse_if_stopped()
        self._leading = leading
        self._begin()

    async def wait_for_sync(self, timeout: float | None = None) -> bool:
        """Waits until every cache in use has synced, at most `timeout` seconds, and reports whether they have."""
        return await wait_for_cache_sync(*self._informers(), timeout=timeout)

    async def stop(self, timeout: float = 10.0) -> None:
        """Drains: workers finish what is queued, events are written, within `timeout` seconds; then all ends, for good.
        Raises ChangedInPlace, with a fake cluster's client, if a cached object was changed."""
        self._stopping = True
        deadline = loop_time() + timeout
        if self._starter is not None:
            self._starter.cancel()
            await asyncio.wait([self._starter])
        await asyncio.gather(*(controller.drain(timeout) for controller in self._controllers.values()))
        time_left = max(0.0, deadline - loop_time())
        await asyncio.gather(*(recorder.stop(time_left) for recorder in self._recorders.values()))
        await asyncio.gather(self._definitions.stop(), *(informer.stop() for informer in self._informers()))
        indexers = [informer.indexer for informer in self._informers()]
        changed = [line for indexer in indexers if isinstance(indexer, CheckedIndexer) for line in indexer.changed()]
        if changed:
            raise ChangedInPlace("; ".join(changed))

    def unsynced(self) -> list[str]:
        """The kinds whose cache has not synced, with the reason where it is known."""
        lines = []
        for controller in self._controllers.values():
            reason, informer = self._reason_missing(controller), controller.informer
            if reason or not informer.has_synced():
                lines.append(controller.name + (reason or (f" ({informer.forbidden})" if informer.forbidden else "")))
        return lines

    def healthy(self) -> list[str]:
        """Returns the problems that only a restart repairs, a line each: dead workers, ended informers."""
        if self._stopping:
            return []
        workers = [problem for c in self._controllers.values() for problem in c.healthy()]
        return workers + [problem for informer in self._informers() for problem in informer.healthy()]

    def unready(self) -> list[str]:
        """Returns the reasons for which objects of the server are not handled, a line each: `stale`, `hanging`,
        `undecodable`. A restart repairs nothing of it; an outage of the API server would restart every replica."""
        return self.stale() + self.hanging() + self.undecodable()

    def stale(self) -> list[str]:
        """Kinds that have not synced, watches without a sign of life."""
        silent = [problem for informer in self._informers() for problem in informer.problems(loop_time())]
        return [f"not synced: {name}" for name in self.unsynced()] + silent

    def hanging(self) -> list[str]:
        """Handlers that have been running for minutes on one key."""
        return [line for controller in self._controllers.values() for line in controller.hanging()]

    def troubles(self) -> list[tuple[Controller[Any], Trouble]]:
        """Keys that wait because the API server refuses a request (rights are missing, a webhook is in the way), kinds
        that may not be listed or watched, calls that have been waiting for an answer for long; with its controller."""
        return [(controller, t) for controller in self._controllers.values() for t in controller.troubles()]

    def undecodable(self) -> list[str]:
        """Objects that do not decode, by whoever wrote them: handlers see what was decoded before, or nothing."""
        return [problem for informer in self._informers() for problem in informer.undecodable()]

    def notes(self) -> list[str]:
        """Returns further lines of /readyz: kinds that are not installed."""
        return [f"not installed: {c.name}" for c in self._controllers.values() if not c.informer.installed]

    def _informers(self) -> list[SharedIndexInformer[Any]]:
        return [controller.informer for controller in self._controllers.values()]

    def _refuse_if_stopped(self) -> None:
        if self._stopping:
            raise RuntimeError("this ControllerFactory was stopped, and calls no handler again: make another")

    def _forget(self, identity: tuple[Resource[Any], tuple[str, ...], str, str]) -> None:
        """A controller is stopped alone: who asks for its kind again gets another one."""
        controller = self._controllers.pop(identity)
        del self._shared[controller]
        self._required.pop(controller, None)
        for name in [name for name, owner in self._handlers.items() if owner == controller.name]:
            del self._handlers[name]
        self._definitions.remove(controller.informer)
        if self._starter is not None and not self._stopping:
            self._begin()

    def _begin(self) -> None:
        for informer in self._informers():
            self._definitions.add(informer)
            informer.start()
        if self._starter is not None:
            self._starter.cancel()  # the new one waits for the old ones' caches too
        self._starter = asyncio.create_task(self._start_workers(), name="start of workers")

    async def _start_workers(self) -> None:
        forbidden = [c for c in self._controllers.values() if not await self._await_settled(c)]
        log.info("caches synced: %s", ", ".join(c.name for c in self._controllers.values() if c not in forbidden))
        if self._leading is not None:
            await self._leading.wait()
        for controller in self._controllers.values():
            controller.start_workers()
        for controller in forbidden:
            await controller.informer.wait_for_sync()
            log.info("%s: can be listed now, calling every handler again", controller.name)
            for dependent in self._controllers.values():
                dependent.enqueue_all()  # what read this cache, handlers and resolvers, could not do its work

    async def _await_settled(self, controller: Controller[Any]) -> bool:
        """Waits until a kind no longer delays the start; False if it is forbidden."""
        informer, required = controller.informer, self._required.get(controller) is False
        while not await informer.wait_for_sync(_POLL) or self._reason_missing(controller):
            if informer.forbidden and not required:
                log.error("%s: controllers that need this kind are waiting: %s", controller.name, informer.forbidden)
                return False
            if informer.has_synced():
                await asyncio.sleep(_POLL)
        return True

    def _reason_missing(self, controller: Controller[Any]) -> str:
        """Returns the reason for which a kind is missing; "" if it is installed or need not be."""
        match self._required.get(controller):
            case False if not controller.informer.installed:
                return " (not installed)"
            case True if self._definitions.hides(controller.informer):
                return " (not served)"
        return ""


def _select(client: ResourceClient[T], namespaces: tuple[str, ...], labels: str, fields: str) -> ListerWatcher[T]:
    parts = [client.select(namespace=name, label_selector=labels, field_selector=fields) for name in namespaces]
    return parts[0] if len(parts) == 1 else Namespaces(parts)


def _names(resource: Resource[Any], selected: str) -> Iterator[str]:
    """Names for a kind's controller, each more precise than the one before."""
    name = resource.plural
    yield name
    yield (name := f"{resource.group_resource}/{resource.version}")
    yield (name := f"{name}?{selected}")
    yield (name := f"{name} as {resource.type.__name__}")
    yield from (f"{name} {number}" for number in range(2, 1_000_000))
