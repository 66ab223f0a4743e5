"""Which failed requests are sent again, and when."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pkg.client.errors import (
    ApiError,
    Conflict,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unreachable,
)

T = TypeVar("T")

CONFLICT_TRIES = 6
"""Other writers may come first five times in one go; after that a queue's backoff takes over."""


class NotSent(Unreachable):
    """No connection came about: the server cannot have seen the request."""


class Untrusted(NotSent):
    """The server's certificate is not what the configuration expects: trying again won't help."""


class Closed(NotSent):
    """The transport was closed: a request made while the process stops."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast. Seconds.

    `attempts` counts the first one; waits double from `base` up to `maximum`, plus up to `base` of jitter. A
    Retry-After is honoured on top of the jitter, unless it is longer than `longest_retry_after`: then the
    error goes to the caller, whose queue waits without keeping a worker.
    """

    attempts: int = 5
    base: float = 0.1
    maximum: float = 5.0
    longest_retry_after: float = 1.0
    """What the API server's own priority and fairness always asks for."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """`await attempt()` until it succeeds or is not to be sent again; `repeatable`: twice does no harm.

        Raises its last error.
        """
        for number in itertools.count(1):
            try:
                return await attempt()
            except ApiError as err:
                if number >= self.attempts or not self._again(err, repeatable):
                    raise
                pause = self._pause(number) + (err.retry_after or 0.0)
            await self.sleep(pause)
        raise AssertionError("unreachable")

    def _pause(self, failures: int) -> float:
        return min(self.maximum, self.base * 2.0 ** (failures - 1)) + random.uniform(0, self.base)

    def _again(self, err: ApiError, repeatable: bool) -> bool:
        if isinstance(err, Untrusted | Closed):
            return False
        if isinstance(err, NotSent):
            return True  # the server cannot have seen it
        if err.retry_after is not None:
            # The server says that it did not take the request: client-go's with_retry.
            return (
                isinstance(err, TooManyRequests | ServerError) and err.retry_after <= self.longest_retry_after
            )
        # Without it a 503 may be a proxy's, about a request that the server had.
        return repeatable and isinstance(err, TooManyRequests | ServiceUnavailable | Unreachable)


async def retry_on_conflict(
    attempt: Callable[[bool], Awaitable[T]],
    *,
    tries: int = CONFLICT_TRIES,
    errors: tuple[type[ApiError], ...] = (Conflict,),
) -> T:
    """`await attempt(again)` until it raises no Conflict, `tries` times at most, without a pause (client-go's
    RetryOnConflict). `again` is True after a conflict: read the object anew and decide anew.

    Raises the last of `errors`, and at once whatever else `attempt` raises.
    """
    for number in range(1, tries):
        try:
            return await attempt(number > 1)
        except errors:
            continue
    return await attempt(tries > 1)
