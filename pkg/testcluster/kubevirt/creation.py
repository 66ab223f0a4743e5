"""Creating pods through the real API: placed on a node, and refused where quota refuses them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pkg.api.core import Pod
from pkg.api.meta import Object
from pkg.client.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    Unreachable,
)
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.generic.events import WARNING, EventRecorder
from pkg.testcluster.kubevirt.lookup import Pods
from pkg.testcluster.kubevirt.nodes import pick_node
from pkg.testcluster.kubevirt.objects import Node
from pkg.testcluster.kubevirt.patches import timestamp
from pkg.testcluster.kubevirt.refusals import Refusal, Refusals
from pkg.workqueue.queue import loop_time

logger = logging.getLogger(__name__)

_UNSEEN = 5.0
"""Seconds after which a pod that was created and that the cache never showed counts as gone again."""


class Clock:
    """Time of day for what is written, the loop's time for what is waited for. Seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, loop: Callable[[], float] = loop_time) -> None:
        self.wall = wall
        self.loop = loop

    def stamp(self) -> str:
        """Now, as objects carry it."""
        return timestamp(self.wall())


class Placement:
    """Chooses nodes. Remembers what it placed until the cache shows it, so that a burst spreads out."""

    def __init__(self, nodes: CacheReader[Node], pods: Pods) -> None:
        self._nodes = nodes
        self._pods = pods
        self._placed: dict[str, str] = {}

    def choose(
        self, pod_key: str, *, avoid: Collection[str] = (), selector: Mapping[str, str] | None = None
    ) -> str | None:
        """The node for a pod that is about to be created; None when there is none to choose."""
        nodes = self._nodes.list()
        load = self._pods.load(node.name for node in nodes)
        self._placed = {key: node for key, node in self._placed.items() if self._pods.get(key) is None}
        load.update(node for key, node in self._placed.items() if key != pod_key)
        node = pick_node(nodes, load=load, avoid=avoid, selector=selector)
        if node:
            self._placed[pod_key] = node
        return node

    def forget(self, pod_key: str) -> None:
        """The pod was not created."""
        self._placed.pop(pod_key, None)


class Creator:
    """Creates pods; a refusal is remembered, logged, and told to people as an Event.

    A pod is never asked for twice: quota is charged before the API server sees that the name is taken, and what was
    charged for nothing stays until the quota is next counted.
    """

    def __init__(
        self,
        pods: ResourceClient[Pod],
        placement: Placement,
        refusals: Refusals,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._pods = pods
        self._placement = placement
        self.refusals = refusals
        self._recorder = recorder
        self._clock = clock
        self._created: dict[str, float] = {}
        self._uncertain: set[str] = set()

    async def create(self, key: str, body: Mapping[str, Any], about: Object, what: str) -> Refusal | None:
        """None when the pod exists now; else why not, for the retries of `key`.

        Raises what says nothing about this pod: Conflict (quota was busy), ServerError, Unreachable.
        """
        name, namespace = body["metadata"]["name"], about.namespace
        pod_key = f"{namespace}/{name}"
        if self._is_awaited(pod_key) or await self._is_there(pod_key, name, namespace):
            return None
        generation = self.refusals.generation(namespace)
        try:
            await self._pods.create(body, namespace)
        except AlreadyExists:
            pass
        except (BadRequest, Forbidden, Invalid, NotFound) as error:
            self._placement.forget(pod_key)
            return self._refused(key, error, generation, about, what)
        except (ServerError, Unreachable):
            self._uncertain.add(pod_key)
            raise
        self._created[pod_key] = self._clock.loop()
        self.refusals.forget(key)
        return None

    def _is_awaited(self, pod_key: str) -> bool:
        """Whether the pod was created a moment ago: the cache will show it."""
        now = self._clock.loop()
        self._created = {key: since for key, since in self._created.items() if now - since < _UNSEEN}
        return pod_key in self._created

    async def _is_there(self, pod_key: str, name: str, namespace: str) -> bool:
        """Whether an earlier request, whose answer was lost, created the pod after all. Raises ApiError."""
        if pod_key not in self._uncertain:
            return False
        try:
            await self._pods.get(name, namespace)
        except NotFound:
            self._uncertain.discard(pod_key)
            return False
        self._uncertain.discard(pod_key)
        return True

    def _refused(self, key: str, error: ApiError, generation: int, about: Object, what: str) -> Refusal:
        delay = self.refusals.refused(key, error, generation=generation, now=self._clock.loop())
        logger.info("reenqueuing %s: failed to create %s: %s; again in %g s", key, what, error, delay)
        self._recorder.event(about, WARNING, "FailedCreate", f"Error creating pod: {error.message}")
        refusal = self.refusals.last(key)
        assert refusal is not None
        return refusal
