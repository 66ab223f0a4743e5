"""A program that runs in the simulation: its tasks, its clock, and its end at any await."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any, TypeVar

from kubeloop.webhook.admission import Hook
from tests.simulation.repeatable import MACHINE

log = logging.getLogger(__name__)

T = TypeVar("T")

RESTART = 1.0
"""Seconds until a program that has ended is started again."""


class SimulatedProcess:
    """`program` is called for every start. Whatever it creates (tasks, timers) runs with its clock and ends with it."""

    def __init__(self, name: str, program: "Callable[[SimulatedProcess], Awaitable[None]]") -> None:
        self.name = name
        self.skew = 0.0
        self.hooks: Mapping[str, Hook] = {}
        """The webhooks that it answers, by path; empty while it does not listen."""
        self._program = program
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._life = 0
        # Invariant: how often it was started; what an earlier life left behind may do nothing any more.
        self._context = Context()

    def start(self) -> None:
        self._life += 1
        self._context = Context()
        self._context.run(MACHINE.set, self)
        self.spawn(self._run())

    def kill(self, down: float = RESTART) -> None:
        """It ends in the middle of whatever it does: nothing that it would have done next happens."""
        self._life += 1
        self.hooks = {}
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        asyncio.get_running_loop().call_later(down, self.start, context=Context())

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self._thawed.clear()
        asyncio.get_running_loop().call_later(seconds, self._thawed.set)

    def life(self) -> int:
        """Pass it to `alive`."""
        return self._life

    async def alive(self, life: int) -> None:
        """Returns when this life may send something: later while it is frozen, never when it has ended."""
        await self._thawed.wait()
        if life != self._life:
            await asyncio.Event().wait()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something as part of the process."""
        return self._context.copy().run(lambda: asyncio.get_running_loop().create_task(work))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)
        if len(self._tasks) > 2000:
            self._tasks = [running for running in self._tasks if not running.done()]

    async def _run(self) -> None:
        life = self._life
        try:
            await self._program(self)
        except Exception as error:
            log.info("%s ends: %s", self.name, error)
        if life == self._life:
            self.kill()


def task_factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Tells every process which tasks are its own."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = context.get(MACHINE) if context is not None else MACHINE.get()
    if isinstance(process, SimulatedProcess):
        process.adopt(task)
    return task


def outside(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that belongs to no process, on a machine whose clock is right."""
    return asyncio.get_running_loop().create_task(work, context=Context())
