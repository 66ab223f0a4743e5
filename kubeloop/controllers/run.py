"""Runs a command until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator

log = logging.getLogger(__name__)

DRAIN_SECONDS = 8.0
"""The time in which a command may drain before it is cancelled."""
EXIT_SECONDS = 9.5
"""After so long the process ends, even if something hangs."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_until_signal(
    main: Callable[[asyncio.Event], Awaitable[int | None]],
    *,
    drain_seconds: float = DRAIN_SECONDS,
    exit_seconds: float = EXIT_SECONDS,
) -> int:
    """Runs `main(stop)` on a loop of its own; returns the exit code: main's result, 0 for None.

    SIGTERM or SIGINT set `stop`: main then drains and returns. If it has not after `drain_seconds` it is cancelled, and
    after `exit_seconds` the process ends with 0: everything here is level-triggered, the next start goes on. A second
    signal ends the process at once with 128 + its number. What main raises comes out here. Must be called in the main
    thread."""
    with _last_resort(exit_seconds) as arm, asyncio.Runner() as runner:
        return runner.run(_supervise(main, drain_seconds, arm)) or 0


async def _supervise(
    main: Callable[[asyncio.Event], Awaitable[int | None]], drain_seconds: float, arm: Callable[[], None]
) -> int | None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            _exit(128 + number)
        log.info("%s: draining", number.name)
        arm()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    task = asyncio.ensure_future(main(stop))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return await _drain(task, drain_seconds)
        return task.result()
    finally:
        stopped.cancel()


async def _drain(task: asyncio.Future[int | None], seconds: float) -> int | None:
    finished, _ = await asyncio.wait([task], timeout=seconds)
    if finished:
        return task.result()
    log.warning("not drained after %g s: cancelled", seconds)
    task.cancel()
    await asyncio.wait([task])
    return 0


@contextlib.contextmanager
def _last_resort(exit_seconds: float) -> Iterator[Callable[[], None]]:
    """Gives a function to be called at the first signal: from then on the process ends in time, and a second signal
    ends it at once, even where the loop is blocked or a thread cannot be joined. Afterwards all is as it was."""
    old_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    timer = threading.Timer(exit_seconds, _exit, [0])
    timer.daemon = True

    def arm() -> None:
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: _exit(128 + number))
        timer.start()

    try:
        yield arm
    finally:
        timer.cancel()
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _exit(code: int) -> None:
    """Exits without joining threads or closing the loop: either may hang."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
