"""Waiting for what has no event: `eventually` blocks, `until` runs in an event loop (virtual time included)."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds for what must come, on however busy a machine: a wait that ends with them is a failure."""


def eventually(
    poll: Callable[[], Any], timeout: float = PATIENCE, why: Callable[[], str] = lambda: "it is still false"
) -> Any:
    """The first true result of `poll`; AssertionError with the last one, and `why`, when the time is over. Asked ever
    more slowly, for the API server shares its cores with what is waited for."""
    start, pause = time.monotonic(), 0.01
    while not (result := poll()):
        if time.monotonic() - start > timeout:
            raise AssertionError(f"not within {timeout:g} s: {result!r}, {why()}")
        time.sleep(pause)
        pause = min(0.1, pause * 1.25)
    return result


async def until(
    condition: Callable[[], Any],
    what: str | Callable[[], str] = "it",
    *,
    seconds: float = PATIENCE,
    pause: float = 0.05,
) -> Any:
    """The result of `condition`, awaited where it is a coroutine, once it is true; AssertionError after `seconds`.
    Asked again after `pause` seconds, then ever more slowly up to four times that: what is waited for needs the CPU."""
    deadline, longest = asyncio.get_running_loop().time() + seconds, 4 * pause
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        if asyncio.get_running_loop().time() >= deadline:
            raise AssertionError(f"waited {seconds} s for {what() if callable(what) else what}")
        await asyncio.sleep(pause)
        pause = min(longest, pause * 1.25)
