"""What all API servers of a cluster share: the objects with their past, the watches with their lag, what goes wrong."""

import asyncio
import bisect
import contextlib
import datetime
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from kubeloop.api.registry import Resource
from kubeloop.testing.fake.patches import Matches, Raw
from kubeloop.testing.fake.server import FakeCluster
from tests.simulation.repeatable import MACHINE, START, monotonic


@dataclass(frozen=True)
class Traits:
    """The kind of a cluster. Durations in seconds, ranges as (least, most)."""

    replicas: int = 1
    skews: tuple[float, ...] = ()
    """By which the clocks of the replicas' machines are off from the beginning."""
    servers: int = 1
    policy: bool = True
    """deploy/policy.yaml is in force."""
    latency: tuple[float, float] = (0.002, 0.008)
    watch_lag: tuple[float, float] = (0.0, 0.02)
    """Of each kind's watches, drawn once."""
    admission_lag: float = 0.02
    """By which an API server's own caches (namespaces, quotas, webhook configurations) are behind, at most."""
    counted: tuple[float, float] = (0.02, 0.1)
    """Until the quota controller has counted a change."""
    kubelet: tuple[float, float] = (0.05, 0.5)
    """Until a pod runs, or is gone."""
    source_linger: float = 5.0
    """How long a source pod counts after its migration."""


SIMPLEST = Traits()

RECOVERY = 30.0
"""Seconds after which the trouble that something made is over: another replica leads, every watch goes on."""

Seen = Callable[[Resource[Any], str, Raw | None, Raw | None], None]
"""Called after every write: kind, key, before, after (None: not there)."""


class StoryCluster(FakeCluster):
    """The objects. `now` of the story is the loop's time."""

    def __init__(self, traits: Traits, random: Random) -> None:
        super().__init__()
        self.traits = traits
        self.random = random
        self.observers: list[Seen] = []
        self.steps = 0
        """Writes so far."""
        self.failing = 0.0
        """The share of requests that get a 429 or 503."""
        self._troubled_until = 0.0
        self._written: dict[int, float] = {}
        self._past: defaultdict[str, defaultdict[str, list[tuple[float, Raw | None]]]]
        self._past = defaultdict(lambda: defaultdict(list))
        self._lags: dict[str, float] = {}
        self._stored = asyncio.Event()
        self._stored.set()
        self._stalled: dict[str, asyncio.Event] = {}

    # What goes wrong.

    def trouble(self, seconds: float) -> None:
        """Something does not work for so long: what needs it may take longer."""
        self._troubled_until = max(self._troubled_until, monotonic() + seconds)

    @property
    def is_troubled(self) -> bool:
        return monotonic() < self._troubled_until

    def silence(self, seconds: float) -> None:
        """etcd gives no answer: nothing is read or written, and no watch brings anything."""
        self.trouble(seconds + RECOVERY)
        self._stored.clear()
        asyncio.get_running_loop().call_later(seconds, self._stored.set)

    def stall(self, plural: str, seconds: float) -> None:
        """No watch of a kind brings anything."""
        self.trouble(seconds + RECOVERY)
        event = self._stalled[plural] = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, event.set)

    def fail(self, share: float, seconds: float) -> None:
        self.trouble(seconds + RECOVERY)
        self.failing = share
        asyncio.get_running_loop().call_later(seconds, setattr, self, "failing", 0.0)

    @property
    def is_silent(self) -> bool:
        return not self._stored.is_set()

    async def storage(self) -> None:
        """Returns when etcd answers."""
        await self._stored.wait()

    # The past.

    def age(self, raw: Raw) -> float:
        """Seconds since it was created, by the API servers' clock."""
        created = datetime.datetime.fromisoformat(raw["metadata"]["creationTimestamp"])
        return START + monotonic() - created.timestamp()

    def store(self, resource: Resource[Any], key: str, old: Raw | None, new: Raw | None) -> Raw:
        written = super().store(resource, key, old, new)
        self.steps += 1
        self._written[int(written["metadata"]["resourceVersion"])] = monotonic()
        self._past[resource.path()][key].append((monotonic(), written if new is not None else None))
        for see in self.observers:
            see(resource, key, old, written if new is not None else None)
        return written

    def was(self, resource: Resource[Any], key: str, seconds: float) -> Raw | None:
        """An object as it was so long ago; of a younger one its first version."""
        past = self._past[resource.path()][key]
        index = bisect.bisect_right(past, monotonic() - seconds, key=lambda version: version[0])
        return past[max(index - 1, 0)][1] if past else None

    def were(self, resource: Resource[Any], seconds: float) -> Iterator[Raw]:
        for key in list(self._past[resource.path()]):
            if (raw := self.was(resource, key, seconds)) is not None:
                yield raw

    # Watches.

    async def events(
        self, resource: Resource[Any], matches: Matches, params: Mapping[str, str]
    ) -> AsyncGenerator[Raw, None]:
        """Later than it happened, and not while the kind is stalled or its reader frozen."""
        if resource.plural not in self._lags:
            self._lags[resource.plural] = self.random.uniform(*self.traits.watch_lag)
        lag = self._lags[resource.plural]
        reader: Any = MACHINE.get()
        life = reader.life() if reader else 0
        async with contextlib.aclosing(super().events(resource, matches, params)) as events:
            async for event in events:
                version = int(event["object"].get("metadata", {}).get("resourceVersion", 0))
                delay = self._written.get(version, 0.0) + lag - monotonic()
                if delay > 0:
                    await asyncio.sleep(delay)
                await self.storage()
                if (stalled := self._stalled.get(resource.plural)) is not None:
                    await stalled.wait()
                if reader is not None:
                    await reader.alive(life)
                yield event
