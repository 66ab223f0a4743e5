"""The API server's own clock, as far as its answers tell: the one that creationTimestamps are of."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime

_SLACK = 2.0
"""Seconds: the Date header has whole ones, and an answer takes a while."""


class ServerClock:
    """Seconds since 1970 by the API server's clock: the Date header of an answer, plus monotonic time since.

    At most a second behind, and closer with every answer; never ahead by more than two. Of several API servers behind
    one address the last answer counts. Before the first answer, or where a proxy removes the header, it is this
    machine's clock as it was at the start."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._last_date = ""

    def __call__(self) -> float:
        return self._monotonic() + self._offset

    def heard(self, date: str) -> None:
        """A Date header that has just come; "" where there was none."""
        if date == self._last_date:
            return  # the first answer of a second tells most
        self._last_date = date
        with suppress(ValueError, OverflowError):
            least = parsedate_to_datetime(date).timestamp() - self._monotonic()
            if not least <= self._offset <= least + _SLACK:
                self._offset = least
