"""Virtual time: a loop whose clock jumps to the next timer as soon as nothing else is to be done.

A test under it waits for hours in microseconds, and every delay it sees is exact. `@virtual_time` turns an async
test into one that runs on such a loop:

    @virtual_time
    async def test_an_hour_passes() -> None:
        started = now()
        await asyncio.sleep(3600)
        assert now() - started == 3600

The clock stands while a thread works (`asyncio.to_thread`), and a socket whose other end is in the same loop is heard
before any jump: a time limit strikes where both ends wait, however busy the machine is. A server in another thread or
process loses against the test's timers: use real time there."""

import asyncio
import fcntl
import functools
import selectors
import sys
import termios
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_STUCK_AFTER = 60.0
_ON_ITS_WAY = 0.002
"""Seconds after which what a socket sent has come to the other: the kernel hands it over at once if it is not busy."""


class Stuck(Exception):
    """Raised when every task waits for something that no timer will bring: in real time the test would hang."""


class _JumpingSelector(selectors.DefaultSelector):
    """The selector that moves the clock where the loop would sleep until its next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0
        """The number of threads that work for the loop."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.threads:
            return super().select(None)
        if timeout is not None:
            ready = super().select(min(timeout, _ON_ITS_WAY)) if self._is_sending() else ready
            self.now += 0.0 if ready else timeout
            return ready
        ready = super().select(_STUCK_AFTER)  # a thread may still report
        if not ready:
            raise Stuck("every task waits and no timer is set")
        return ready

    def _is_sending(self) -> bool:
        """Reports whether a connection is being made, or something was sent and its arrival has not been confirmed."""
        return any(key.events & selectors.EVENT_WRITE or _unconfirmed(key.fd) for key in self.get_map().values())


def _unconfirmed(descriptor: int) -> int:
    """Returns the number of bytes that were sent and not confirmed."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # it listens
        return 0


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own; it starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], R], *args: *Ts) -> asyncio.Future[R]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._reported)
        return future

    def _reported(self, _: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()


async def settle(turns: int = 20) -> None:
    """Lets everything that is ready run, without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine as asyncio.run does, under virtual time: tasks that still run at its end are cancelled."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def virtual_time(test: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Runs an async test under virtual time. Fixtures and parameters work as ever."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(test(*args, **kwargs))

    return wrapper
