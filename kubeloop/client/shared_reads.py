"""Live reads of one thing, shared: a caller gets one that began after it asked, and only one is under way."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedReads(Generic[T]):
    """`read(key)` is called as often as needed and not more."""

    def __init__(self, read: Callable[[str], Awaitable[T]]) -> None:
        self._read = read
        self._next: dict[str, asyncio.Future[T]] = {}
        # Invariant: the read that has not begun yet; a caller that asks now gets its result.
        self._running: dict[str, asyncio.Task[None]] = {}

    async def fresh(self, key: str) -> T:
        """The result of a read that begins from now on; raises what it raises."""
        future = self._next.get(key)
        if future is None:
            future = self._next[key] = asyncio.get_running_loop().create_future()
        if key not in self._running:
            # Not in the caller's context: its deadline is not that of the callers that share the read.
            self._running[key] = asyncio.create_task(self._run(key), name=f"live read of {key}", context=Context())
        # Shielded: one caller that goes away must not cancel the read of the others.
        return await asyncio.shield(future)

    async def _run(self, key: str) -> None:
        try:
            while (future := self._next.pop(key, None)) is not None:
                try:
                    future.set_result(await self._read(key))
                except Exception as exc:
                    future.set_exception(exc)
                    future.exception()  # every waiter may have gone
        finally:
            del self._running[key]
