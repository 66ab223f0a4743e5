"""Live reads of a review, which end by its deadline, and the error of a read without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kubeloop.client.errors import ApiError, NotFound
from kubeloop.webhook.admission import time_left
from pkg.webhook.metrics import TIMEOUTS

T = TypeVar("T")


class NoAnswer(Exception):
    """The API server did not answer in time, or with an error. That says nothing about the object."""


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()


async def in_time(read: Coroutine[Any, Any, T]) -> T | None:
    """The result of a live read, None when the object does not exist. Raises NoAnswer."""
    if (left := time_left()) <= 0:
        read.close()
        raise NoAnswer("no time is left to ask the API server")
    try:
        async with asyncio.timeout(left):
            return await read
    except NotFound:
        return None
    except TimeoutError as exc:
        TIMEOUTS.inc()
        raise NoAnswer("the API server does not answer: timed out") from exc
    except ApiError as exc:
        raise NoAnswer(f"the API server does not answer: {exc or 'timed out'}") from exc
