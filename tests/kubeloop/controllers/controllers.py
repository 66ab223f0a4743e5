"""A controller over a fake API server, and a handler that remembers its calls."""

from collections.abc import Awaitable
from typing import Any

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.reconcile import Handler
from kubeloop.testing.virtual_time import now, settle
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from tests.kinds import Kind, Server


class ControlledQuotas(Kind[ResourceQuota]):
    """ResourceQuotas with their informer and controller. Retries after 1, 2, 4, ... 64 seconds."""

    def __init__(self, *, workers: int = 2, server: Server | None = None) -> None:
        super().__init__(RESOURCE_QUOTAS, server)
        self.informer = SharedIndexInformer(self.client)
        self.controller = Controller(
            "quotas",
            self.client,
            self.informer,
            workers=workers,
            rate_limiter=ItemExponentialFailureRateLimiter(1.0, 64.0),
        )

    async def start(self, **handlers: Handler[ResourceQuota]) -> None:
        """Starts a controller with these handlers, by name."""
        for name, handler in handlers.items():
            self.controller.on_change(name, handler)
        self.informer.start()
        await self.informer.wait_for_sync()
        self.controller.start_workers()
        await settle()

    async def stop(self) -> None:
        await self.controller.stop()
        await self.informer.stop()


class Calls:
    """A handler that remembers when it was called with what, and does what it was told to."""

    def __init__(self, *script: BaseException | None) -> None:
        self.script = list(script)
        self.times: list[float] = []
        self.keys: list[str] = []
        self.objects: list[Any] = []

    async def __call__(self, key: str, obj: Any) -> None:
        self.times.append(now())
        self.keys.append(key)
        self.objects.append(obj)
        step = self.script.pop(0) if self.script else None
        if step is not None:
            raise step


async def took(awaitable: Awaitable[object]) -> float:
    """Seconds."""
    started = now()
    await awaitable
    return now() - started
