"""What controllers do with a client again and again (controller-runtime's controllerutil, wait)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pkg.api.meta import Condition, Object
from pkg.client.errors import AlreadyExists, NotFound
from pkg.client.resource_client import ResourceClient

T = TypeVar("T", bound=Object)


async def create_or_update(
    client: ResourceClient[T], body: Mapping[str, Any], change: Callable[[T], T], *, namespace: str = ""
) -> T:
    """The object of `body` (with metadata.name): created if it is not there, else `change(what is there)` written.

    Nothing is written when `change` returns what it got. Raises Conflict, and what `ResourceClient.update` raises.
    """
    name = body["metadata"]["name"]
    try:
        found = await client.get(name=name, namespace=namespace)
    except NotFound:
        try:
            return await client.create(body, namespace=namespace)
        except AlreadyExists:
            found = await client.get(name=name, namespace=namespace)
    return await client.update(found, change(found))


async def wait_for_condition(
    client: ResourceClient[T],
    conditions: Callable[[T], list[Condition] | None],
    type: str,
    *,
    name: str,
    namespace: str = "",
    status: str = "True",
    timeout: float = 30.0,
    poll: float = 0.2,
) -> T:
    """Wait until a condition of the object has that status (kubectl wait); seconds. For programs and tests: a handler
    returns and is called again when the object changes. Raises TimeoutError, NotFound."""
    async with asyncio.timeout(timeout):
        while True:
            found = await client.get(name=name, namespace=namespace)
            if any(c.type == type and c.status == status for c in conditions(found) or ()):
                return found
            await asyncio.sleep(poll)
