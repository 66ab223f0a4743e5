"""Controllers as `register` wires them, over a fake API server that their caches show at once; tests call handlers."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kubeloop.api.registry import Resource
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.reconcile import same_object
from pkg.config.management import Management
from tests.kinds import Server

Handler = Callable[[str, Any], Awaitable[object]]


class Wired(Management):
    """Is not started: `handle` does what a worker does with a key."""

    def __init__(self, server: Server, *, clock: Callable[[], float] | None = None, **options: Any) -> None:
        client = server.client()
        if clock is not None:
            client.transport.server_clock = clock  # type: ignore[assignment]
        super().__init__(client, **options)
        self._server = server
        self._added: defaultdict[str, list[tuple[Handler, Controller[Any]]]] = defaultdict(list)
        self.cause: BaseException | None = None
        """What made the last call ask to be made again."""

    def controller(self, resource: Resource[Any], **options: Any) -> Controller[Any]:
        new_controller = super().controller(resource, **options)
        self._server.kind(resource).shown_by(new_controller.informer.indexer)
        new_controller.on_change = partial(self._add, new_controller, resource)  # type: ignore[method-assign]
        return new_controller

    def _add(
        self, controller: Controller[Any], resource: Resource[Any], _: str, handler: Handler, **_reads: Any
    ) -> None:
        self._added[resource.path()].append((handler, controller))

    async def handle(self, resource: Resource[Any], key: str) -> float | None:
        """Seconds after which it wants to be called again, None when it does not."""
        for handler, new_controller in self._added[resource.path()]:
            again, self.cause = None, None
            try:
                obj = new_controller._current(key)
                new_controller._remember(key, same_object(obj, await handler(key, obj)))
            except RetryAfter as later:
                again, self.cause = later.seconds, later.__cause__
        return again


async def retry_after(call: Awaitable[object]) -> float | None:
    """Seconds after which it wants to be made again, None when it does not."""
    try:
        await call
    except RetryAfter as later:
        return later.seconds
    return None
