"""A client without a network, for virtual time: lists and watches answer from a script."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.core import Pod
from kubeloop.api.meta import ListMeta, ObjectMeta, Status
from kubeloop.api.registry import PODS
from kubeloop.client.decode import ListPage, WatchEvent
from kubeloop.testing.virtual_time import now


@dataclass
class Request:
    """One request: when it came, `list` or `watch`, and with what."""

    at: float
    verb: str
    options: dict[str, Any]


class Hang:
    """Silence for ever."""


Step = WatchEvent[Pod] | Exception | float | Hang


@dataclass
class FakeClient:
    """Each list takes the next of `lists` (a page, or an exception), each watch the next of `watches`.

    A watch is an exception (refused) or a list of steps: an event, an exception, seconds to sleep, or Hang; it ends
    with its steps. When a script is used up: an empty list at version 1, a watch without a word.
    """

    lists: list[ListPage[Pod] | Exception] = field(default_factory=list)
    watches: Sequence[Sequence[Step] | Exception] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    served: bool | Exception = True
    """What discovery says of the kind."""
    discoveries: int = 0
    resource = PODS

    def __post_init__(self) -> None:
        self._lists = deque(self.lists)
        self._watches = deque(self.watches)

    def log(self) -> list[tuple[str, str]]:
        """The requests as (verb, resourceVersion or continue token; "initial" for a WatchList)."""
        return [(request.verb, _detail(request.options)) for request in self.requests]

    def times(self) -> list[float]:
        """When the requests came."""
        return [request.at for request in self.requests]

    async def is_served(self) -> bool:
        self.discoveries += 1
        if isinstance(self.served, Exception):
            raise self.served
        return self.served

    async def list_page(self, **options: Any) -> ListPage[Pod]:
        self.requests.append(Request(now(), "list", options))
        page = self._lists.popleft() if self._lists else listing([], "1")
        if isinstance(page, Exception):
            raise page
        return page

    @asynccontextmanager
    async def watch(self, **options: Any) -> AsyncIterator[AsyncIterator[WatchEvent[Pod]]]:
        self.requests.append(Request(now(), "watch", options))
        steps = self._watches.popleft() if self._watches else [Hang()]
        if isinstance(steps, Exception):
            raise steps
        yield self._send(steps)

    async def _send(self, steps: Sequence[Step]) -> AsyncIterator[WatchEvent[Pod]]:
        for step in steps:
            if isinstance(step, WatchEvent):
                yield step
            elif isinstance(step, Exception):
                raise step
            elif isinstance(step, Hang):
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(step)


def listing(
    items: list[Pod], version: str, continue_: str = "", undecodable: Sequence[ObjectMeta] = ()
) -> ListPage[Pod]:
    """One page of a list."""
    return ListPage(items, ListMeta(resource_version=version, continue_=continue_), list(undecodable))


def event(kind: str, obj: Pod) -> WatchEvent[Pod]:
    """ADDED, MODIFIED or DELETED."""
    return WatchEvent(kind, obj, obj.metadata.resource_version)


def undecodable(kind: str, meta: ObjectMeta) -> WatchEvent[Pod]:
    """A change whose object does not decode."""
    return WatchEvent(kind, resource_version=meta.resource_version, undecodable=meta)


def bookmark(version: str, *, end: bool = False) -> WatchEvent[Pod]:
    """A bookmark; `end`: of the initial events."""
    return WatchEvent("BOOKMARK", resource_version=version, initial_events_end=end)


def error(code: int, reason: str) -> WatchEvent[Pod]:
    """An ERROR event."""
    return WatchEvent("ERROR", status=Status(code=code, reason=reason, message=reason))


def _detail(options: dict[str, Any]) -> str:
    if options.get("send_initial_events"):
        return "initial"
    return str(options.get("resource_version") or options.get("continue_") or "")
