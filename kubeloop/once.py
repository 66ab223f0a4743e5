"""How often something may be reported."""

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
