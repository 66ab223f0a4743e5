"""Virtual time: a loop whose clock jumps to the next timer as soon as nothing else is to be done.

A test under it waits for hours in microseconds, and every delay it sees is exact. `@virtual_time` turns an async
test into one that runs on such a loop:

    @virtual_time
    async def test_an_hour_passes() -> None:
        started = now()
        await asyncio.sleep(3600)
        assert now() - started == 3600

Real sockets still work (their events come before any jump), but a server that takes real time to answer loses
against the test's timers: script it inside the same loop, or use real time.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_STUCK_AFTER = 5.0


class Stuck(Exception):
    """Every task waits for something that no timer will bring: in real time the test would hang."""


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would sleep until its next timer, the clock is moved instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self.now += timeout
            return ready
        ready = super().select(_STUCK_AFTER)  # a thread may still report
        if not ready:
            raise Stuck("every task waits and no timer is set")
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own; it starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run, without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """As asyncio.run, under virtual time. Tasks that still run at its end are cancelled: a test need not stop them."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def virtual_time(test: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Run an async test under virtual time. Fixtures and parameters work as ever."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(test(*args, **kwargs))

    return wrapper
