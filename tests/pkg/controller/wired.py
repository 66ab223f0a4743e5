"""Controllers as `register` wires them, over a fake API server that their caches show at once; tests call handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kubeloop.api.registry import Resource
from kubeloop.controllers.controller import Controller
from pkg.config.management import Management
from tests.kinds import Server

Handler = Callable[[str, Any], Awaitable[object]]


class Wired(Management):
    """Is not started: `handlers` have them by name. Its caches are made before any object is written."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server.client(), **options)
        self._server = server
        self.handlers: dict[str, Handler] = {}

    def controller(self, resource: Resource[Any], **options: Any) -> Controller[Any]:
        made = super().controller(resource, **options)
        kind = self._server.kind(resource)
        kind.indexer, kind.cache = made.informer.indexer, made.cache()
        made.on_change = self.handlers.__setitem__  # type: ignore[method-assign, assignment]
        return made
