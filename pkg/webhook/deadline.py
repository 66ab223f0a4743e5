"""One deadline for all live reads of a review, and the error of a read without an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from kubeloop.client.errors import ApiError, NotFound
from pkg.webhook.metrics import TIMEOUTS

REVIEW_SECONDS: Final = 3.0
"""The API server waits 5 s for an answer (the registered timeoutSeconds); before that, we have to give one."""

T = TypeVar("T")

_ENDS_AT: ContextVar[float] = ContextVar("deadline")


class NoAnswer(Exception):
    """The API server did not answer in time, or with an error. That says nothing about the object."""


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Live reads within the block end together; with 0 none begins."""
    token = _ENDS_AT.set(now() + seconds)
    try:
        yield
    finally:
        _ENDS_AT.reset(token)


async def in_time(read: Coroutine[Any, Any, T]) -> T | None:
    """The result of a live read, None when the object does not exist. Raises NoAnswer."""
    ends = _ENDS_AT.get(now() + REVIEW_SECONDS)
    if ends <= now():
        read.close()
        raise NoAnswer("no time is left to ask the API server")
    try:
        async with asyncio.timeout_at(ends):
            return await read
    except NotFound:
        return None
    except TimeoutError as exc:
        TIMEOUTS.inc()
        raise NoAnswer("the API server does not answer: timed out") from exc
    except ApiError as exc:
        raise NoAnswer(f"the API server does not answer: {exc or 'timed out'}") from exc
