"""A client-side rate limit, for clusters without API priority and fairness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """`qps` requests a second on average, `burst` at once; waiters are served in order, as client-go's flowcontrol."""

    def __init__(
        self,
        qps: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(burst)
        self._filled_at = clock()

    async def take(self) -> None:
        """Returns when a request may be sent."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
        self._filled_at = now
        # Below zero is a debt: what comes later waits for it too.
        self._tokens -= 1.0
        if self._tokens < 0.0:
            try:
                await self._sleep(-self._tokens / self._qps)
            except BaseException:
                self._tokens += 1.0  # it was not sent: who gives up leaves no debt to the next one
                raise
