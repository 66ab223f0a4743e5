"""Work on many objects, of which one that fails must not keep the others from it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from kubeloop.client.errors import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results in order. Raises the first ApiError once all the others are done; further ones are logged."""
    results: list[R] = []
    failed: ApiError | None = None
    for item in items:
        try:
            results.append(await work(item))
        except ApiError as exc:
            if failed is not None:
                log.warning("%s: %s", getattr(item, "key", item), exc)
            failed = failed or exc
    if failed is not None:
        raise failed
    return results
