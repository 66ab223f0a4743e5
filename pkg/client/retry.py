"""Which failed requests are sent again, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_exponential, wait_random

from pkg.client.errors import ApiError, ServerError, ServiceUnavailable, TooManyRequests, Unreachable


class NotSent(Unreachable):
    """No connection came about: the server cannot have seen the request."""


class Untrusted(NotSent):
    """The server's certificate is not what the configuration expects: trying again won't help."""


class Closed(NotSent):
    """The transport was closed: a request that somebody still makes while everything stops."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast. Seconds.

    `attempts` counts the first one; waits double from `base` up to `maximum`, plus up to `base` of jitter. A
    Retry-After is honoured on top of the jitter, unless it is longer than `longest_retry_after`: then the
    error goes to the caller, who has better things to do than to wait here.
    """

    attempts: int = 5
    base: float = 0.1
    maximum: float = 5.0
    longest_retry_after: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def retrying(self, *, repeatable: bool) -> AsyncRetrying:
        """tenacity's loop for one request; `repeatable`: sending it twice does no harm."""
        backoff = wait_exponential(multiplier=self.base, max=self.maximum) + wait_random(0, self.base)

        def wait(state: RetryCallState) -> float:
            return backoff(state) + (_retry_after(state) or 0.0)

        return AsyncRetrying(
            sleep=self.sleep,
            stop=stop_after_attempt(self.attempts),
            wait=wait,
            retry=retry_if_exception(lambda err: self._again(err, repeatable)),
            reraise=True,
        )

    def _again(self, err: BaseException, repeatable: bool) -> bool:
        if not isinstance(err, ApiError) or isinstance(err, Untrusted | Closed):
            return False
        if (err.retry_after or 0.0) > self.longest_retry_after:
            return False
        if isinstance(err, NotSent | TooManyRequests | ServiceUnavailable):
            return True  # the server did not take the request: even a create may be sent again
        if isinstance(err, ServerError):
            return repeatable and err.retry_after is not None
        return repeatable and isinstance(err, Unreachable)


def _retry_after(state: RetryCallState) -> float | None:
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after if isinstance(error, ApiError) else None
