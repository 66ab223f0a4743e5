"""Retries of a client's requests that failed, and what each failure is."""

import asyncio
import contextlib
import math
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from kubeloop.client.errors import ApiError, Conflict, ServerError, ServiceUnavailable, TooManyRequests, Unreachable
from kubeloop.errors import one_line

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
    """The number of attempts, the first one included, and the waits between them: seconds, doubled from `base` up to
    `maximum`, plus up to `base` of jitter. A Retry-After comes on top, unless it is longer than `longest_retry_after`:
    then the error goes to the caller, whose queue waits without keeping a worker."""

    attempts: int = 5
    base: float = 0.1
    maximum: float = 5.0
    longest_retry_after: float = 1.0
    """The Retry-After that the API server's priority and fairness always asks for."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool, seconds: float = math.inf) -> T:
        """Makes the attempts, none after `seconds`; `repeatable`: sending the request twice does no harm."""
        loop, wait = asyncio.get_running_loop(), self.base
        deadline = loop.time() + seconds
        for attempts_left in reversed(range(self.attempts)):
            try:
                return await attempt()
            except ApiError as err:
                if not attempts_left or not self._can_retry(err, repeatable) or loop.time() >= deadline:
                    raise
                pause = wait + random.uniform(0, self.base) + (err.retry_after or 0.0)
            await self.sleep(pause)
            wait = min(2 * wait, self.maximum)
        raise AssertionError("unreachable")

    def _can_retry(self, err: ApiError, repeatable: bool) -> bool:
        if isinstance(err, Untrusted | Closed):
            return False
        if isinstance(err, NotSent):
            return True  # the server cannot have seen it
        if err.retry_after is not None:
            # The server says that it did not take the request: client-go's with_retry.
            return isinstance(err, TooManyRequests | ServerError) and err.retry_after <= self.longest_retry_after
        # Without it a 503 may be a proxy's, about a request that the server had.
        return repeatable and isinstance(err, TooManyRequests | ServiceUnavailable | Unreachable)


async def retry_on_conflict(
    attempt: Callable[[bool], Awaitable[T]],
    *,
    tries: int = CONFLICT_TRIES,
    errors: tuple[type[ApiError], ...] = (Conflict,),
) -> T:
    """Awaits `attempt(again)` until it raises no Conflict, `tries` times at most, without a pause (client-go's
    RetryOnConflict). `again` is True after a conflict: read the object anew and decide anew. Raises the last of
    `errors`, and at once whatever else `attempt` raises."""
    for turn in range(tries - 1):
        with contextlib.suppress(*errors):
            return await attempt(turn > 0)
    return await attempt(tries > 1)


@contextlib.contextmanager
def api_errors(host: str) -> Iterator[None]:
    """Turns whatever a request raises into an ApiError: Unreachable, or one of its kinds where the server can't have
    seen it; ApiError itself for a request that cannot be made."""
    try:
        yield
    except ApiError:
        raise
    except aiohttp.ClientSSLError as err:
        raise Untrusted(f"{host} can't be reached: no trusted TLS connection: {cause(err)}") from err
    except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, aiohttp.ConnectionTimeoutError) as err:
        raise NotSent(f"{host} can't be reached: {cause(err)}") from err
    except aiohttp.ClientResponseError as err:
        raise Unreachable(f"{host}: the answer is not HTTP that can be read: {cause(err)}") from err
    except (aiohttp.ClientError, TimeoutError, OSError) as err:
        raise Unreachable(f"{host}: connection lost: {cause(err)}") from err
    except Exception as err:
        raise ApiError(f"{host}: the request cannot be made: {type(err).__name__}: {one_line(err)}") from err


def cause(err: BaseException) -> str:
    """Returns the cause of an error, in the system's own words where it has some."""
    if isinstance(err, TimeoutError) and not isinstance(err, aiohttp.ClientConnectorError):
        return "timed out"
    if isinstance(err, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {err.status} {one_line(err.message)}".rstrip()
    if isinstance(err, aiohttp.ClientResponseError):
        return one_line(err.message)  # its text has the URL
    if isinstance(err, aiohttp.ClientPayloadError):
        return cause(err.__cause__) if isinstance(err.__cause__, OSError) else "the answer was cut off"
    if isinstance(err, aiohttp.ClientConnectorCertificateError):
        return str(err.certificate_error)
    if isinstance(err, aiohttp.ClientConnectorError):
        err = err.os_error
    if isinstance(err, OSError) and (number := err.errno or 0) > 0 and not isinstance(err, ssl.SSLError):
        return os.strerror(number).lower()
    return getattr(err, "strerror", None) or str(err) or type(err).__name__
