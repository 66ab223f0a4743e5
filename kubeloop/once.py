"""How often something may happen: reports once, retries by a token bucket (client-go's flowcontrol)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from cachetools import TTLCache


class Once:
    """The states that were reported within the last `seconds` of a clock; the last `most` of them."""

    def __init__(self, seconds: float, *, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._reported: TTLCache[Hashable, bool] = TTLCache(most, ttl=seconds, timer=clock)

    def is_due(self, *state: Hashable) -> bool:
        """Reports whether this state is to be reported now; from then on it counts as reported."""
        is_due = state not in self._reported
        if is_due:
            self._reported[state] = True
        return is_due


class Tokens:
    """`burst` at once, then `qps` a second, by a clock of the caller's, in seconds."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = self._burst
        self._filled_at = 0.0

    def take(self, now: float) -> float:
        """Seconds until the token that is taken with this call may be used."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._qps)
        self._filled_at = now
        # Below zero is a debt: what comes later waits for it too.
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._qps)

    def try_take(self, now: float) -> bool:
        """Takes a token if there is one, and reports whether there was."""
        if self.take(now) > 0:
            self._tokens += 1.0
            return False
        return True
