"""Runs a command until a signal."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

DRAIN_SECONDS = 8.0
"""The time in which a command may drain before it is cancelled."""
EXIT_SECONDS = 9.5
"""After so long the process ends, even if something hangs."""


Main = Callable[[asyncio.Event], Awaitable[int | None]]


def run_until_signal(main: Main, *, drain_seconds: float = DRAIN_SECONDS, exit_seconds: float = EXIT_SECONDS) -> int:
    """Runs `main(stop)` on a loop of its own; returns the exit code: main's result, 0 for None.

    SIGTERM or SIGINT set `stop`, as soon as the loop is free: main then drains and returns. If it has not after
    `drain_seconds` it is cancelled, and after `exit_seconds` the process ends with 0, even where the loop or a thread
    hangs by then: everything here is level-triggered, the next start goes on. A second signal ends the process at once
    with 128 + its number. What main raises comes out here. Must be called in the main thread."""
    stop, runner, signalled = asyncio.Event(), asyncio.Runner(), False
    loop = runner.get_loop()
    last_resort = threading.Timer(exit_seconds, _exit, [0])
    last_resort.daemon = True

    def drain(number: int) -> None:
        if last_resort.is_alive():  # two that came before the interpreter looked
            _exit(128 + number)
        log.info("%s: draining", signal.Signals(number).name)
        last_resort.start()
        stop.set()

    def on_signal(number: int, _frame: object) -> None:
        nonlocal signalled
        if signalled:
            _exit(128 + number)
        signalled = True

    old_handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in old_handlers:
            loop.add_signal_handler(number, drain, number)  # wakes the loop, whichever thread gets the signal
            signal.signal(number, on_signal)  # the second one is heard while the loop is blocked, too
        with runner:
            return runner.run(_supervise(main, stop, drain_seconds)) or 0
    finally:
        last_resort.cancel()
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


async def _supervise(main: Main, stop: asyncio.Event, drain_seconds: float) -> int | None:
    task, stopped = asyncio.ensure_future(main(stop)), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    finished, _ = await asyncio.wait([task], timeout=drain_seconds)
    if finished:
        return task.result()
    log.warning("not drained after %g s: cancelled", drain_seconds)
    task.cancel()
    await asyncio.wait([task])
    return 0


def _exit(code: int) -> None:
    """Exits without joining threads or closing the loop: either may hang."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
