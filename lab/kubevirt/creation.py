"""Creating pods through the real API: placed on a node, and refused where quota refuses them."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kubeloop.api.core import Node, Pod
from kubeloop.api.meta import Object, rfc3339
from kubeloop.api.objects import condition_is_true
from kubeloop.client.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    Unreachable,
)
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.workqueue.queue import loop_time
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from lab.kubevirt.lookup import Pods
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.pod import attachment_pod, hotplugged, launcher_name, launcher_pod
from lab.kubevirt.quota_lag import QuotaLag
from lab.kubevirt.rendering import Rendering
from lab.kubevirt.state_claims import StateClaims

HOSTNAME_LABEL = "kubernetes.io/hostname"


def pick_node(
    nodes: Iterable[Node],
    *,
    load: Mapping[str, int],
    avoid: Collection[str] = (),
    selector: Mapping[str, str] | None = None,
) -> str | None:
    """The least loaded node that may be used, the first by name among equals; None when there is none."""
    fitting = [node for node in nodes if node.name not in avoid and _usable(node) and _selected(node, selector or {})]
    best = min(fitting, key=lambda node: (load.get(node.name, 0), natural_order(node.name)), default=None)
    return best.name if best else None


@functools.lru_cache(maxsize=4096)
def natural_order(name: str) -> list[tuple[bool, int, str]]:
    """A sort key by which node-2 comes before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _usable(node: Node) -> bool:
    conditions = node.status.conditions or []
    known = any(condition.type == "Ready" for condition in conditions)
    ready = condition_is_true(conditions, "Ready") or not known
    return ready and not node.spec.unschedulable and not node.deleting


def _selected(node: Node, selector: Mapping[str, str]) -> bool:
    labels = {HOSTNAME_LABEL: node.name, **node.labels}
    return all(labels.get(key) == value for key, value in selector.items())


QUOTA_EXCEEDED = "exceeded quota"
"""What quota admission says; KubeVirt looks for these words, the status does not tell quota from other refusals."""

QUICK: Final = (0.05, 0.2, 0.8)
"""Seconds. An event of a quota may be ahead of the admission plugin's own cache by a moment."""
_OTHER_FIRST, _OTHER_MAX = 0.1, 30.0


def is_quota_refusal(error: ApiError) -> bool:
    """Whether quota, and nothing else, said no."""
    return isinstance(error, Forbidden) and QUOTA_EXCEEDED in error.message


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that was not created. `not_before` is a loop time; `generation` counts the namespace's quota events."""

    message: str
    by_quota: bool
    generation: int
    not_before: float
    quick: int = 0


class Refusals:
    """The last refusal of each key, and its backoff: `first` seconds doubled up to `maximum`.

    A change of the namespace's quotas makes a key due at once, and again after each of `quick` seconds. Memory only:
    after a restart everything is tried again.
    """

    def __init__(self, first: float = 5.0, maximum: float = 300.0, quick: Sequence[float] = QUICK) -> None:
        self._quick_delays = tuple(quick)
        self._quota: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(first, maximum)
        self._other: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
            _OTHER_FIRST, _OTHER_MAX
        )
        self._last: dict[str, Refusal] = {}
        self._generations: dict[str, int] = {}

    def quota_changed(self, namespace: str) -> list[str]:
        """Note a change of a quota; the keys that are due by it."""
        self._generations[namespace] = self.generation(namespace) + 1
        prefix = f"{namespace}/"
        return [key for key in self._last if key.startswith(prefix)]

    def generation(self, namespace: str) -> int:
        """Changes of quotas in the namespace so far."""
        return self._generations.get(namespace, 0)

    def last(self, key: str) -> Refusal | None:
        """The key's last refusal, None when there was none since it was forgotten."""
        return self._last.get(key)

    def wait(self, key: str, now: float) -> float:
        """Seconds until the key may be tried again, 0 when it may now."""
        last = self._last.get(key)
        if last is None or (last.by_quota and last.generation != self._generation_of(key)):
            return 0.0
        return max(0.0, last.not_before - now)

    def refused(self, key: str, error: ApiError, *, generation: int, now: float) -> Refusal:
        """Note a refusal. `generation` is the one before the request was sent."""
        by_quota = is_quota_refusal(error)
        quick = self._quick(key, generation) if by_quota else len(self._quick_delays)
        slow = self._quota if by_quota else self._other
        delay = self._quick_delays[quick] if quick < len(self._quick_delays) else slow.when(key)
        self._last[key] = Refusal(error.message, by_quota, generation, now + delay, quick)
        return self._last[key]

    def forget(self, key: str) -> None:
        """The key got what it wanted, or is gone."""
        self._last.pop(key, None)
        self._quota.forget(key)
        self._other.forget(key)

    def _quick(self, key: str, generation: int) -> int:
        """Which of the quick tries this was: they begin with the first refusal after a quota changed."""
        last = self._last.get(key)
        if last is None or not last.by_quota:
            return len(self._quick_delays)
        return 0 if last.generation != generation else min(last.quick + 1, len(self._quick_delays))

    def _generation_of(self, key: str) -> int:
        return self.generation(key.partition("/")[0])


logger = logging.getLogger(__name__)

ATTACHMENT = "attachment pod"
_UNSEEN = 5.0
"""Seconds after which a pod that was created and that the cache never showed counts as gone again."""


class Clock:
    """Time of day for what is written, the loop's time for what is waited for. Seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, loop: Callable[[], float] = loop_time) -> None:
        self.wall = wall
        self.loop = loop

    def stamp(self) -> str:
        """Now, as objects carry it."""
        return rfc3339(self.wall())


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


@dataclass(eq=False)
class Creator:
    """Renders and creates pods; a refusal is remembered, logged, and told to people as an Event.

    A pod is never asked for twice: quota is charged before the API server sees that the name is taken, and what was
    charged for nothing stays until the quota is next counted.
    """

    pods: ResourceClient[Pod]
    placement: Placement
    refusals: Refusals
    recorder: EventRecorder
    clock: Clock
    lag: QuotaLag
    state: StateClaims
    rendering: Callable[[str], Rendering]
    _created: dict[str, float] = field(default_factory=dict, init=False)
    _uncertain: set[str] = field(default_factory=set, init=False)

    def may_try(self, key: str, what: str) -> None:
        """Raises RetryAfter while a refusal of the key is too young."""
        wait = self.refusals.wait(key, self.clock.loop())
        if wait > 0:
            raise RetryAfter(wait, f"the {what} was refused")

    def again(self, refusal: Refusal) -> RetryAfter:
        """When its time has come."""
        return RetryAfter(max(0.0, refusal.not_before - self.clock.loop()), refusal.message)

    async def launch(
        self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None = None
    ) -> Refusal | None:
        """The VMI's launcher, or the target of its migration, which comes to another node; with the claim of the VM's
        state. As `create`; RetryAfter where no node can run the VMI."""
        key, what = (migration.key, "vmi migration target pod") if migration else (vmi.key, "launcher pod")
        rendering = self.rendering(vmi.namespace)
        claim: str | Refusal = ""
        if rendering.needs_state(vmi):
            made = self.state.of_target(vmi, migration) if migration else self.state.of_instance(vmi)
            claim = await self.before(key, vmi.namespace, made)
        if isinstance(claim, Refusal):
            return claim
        node = self.node_for(vmi, migration)
        if node is None and migration is None:
            raise RetryAfter(1.0, "no node can run it")
        containers = rendering.containers(vmi, is_target=migration is not None)
        overhead = rendering.overhead(vmi)
        body = launcher_pod(vmi, containers, overhead=overhead, node=node, migration=migration, claim=claim)
        return await self.create(key, body, vmi, what)

    def node_for(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None) -> str | None:
        """For a migration's target another than the VMI's own."""
        pod_key = f"{vmi.namespace}/{launcher_name(vmi, migration)}"
        selector = vmi.spec.node_selector or {}
        if migration is None:
            return self.placement.choose(pod_key, selector=selector)
        selector = {**selector, **(migration.spec.added_node_selector or {})}
        return self.placement.choose(pod_key, avoid={vmi.status.node_name or ""}, selector=selector)

    async def attach(
        self, launcher: Pod, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None = None
    ) -> None:
        """The launcher's attachment pod. Raises RetryAfter when it is refused, ApiError."""
        key = migration.key if migration else vmi.key
        self.may_try(key, ATTACHMENT)
        configuration = self.rendering(vmi.namespace).kubevirt
        body = attachment_pod(launcher, hotplugged(vmi), configuration, migration)
        refusal = await self.create(key, body, vmi, ATTACHMENT)
        if refusal is not None:
            raise self.again(refusal)

    async def create(self, key: str, body: Mapping[str, Any], about: Object, what: str) -> Refusal | None:
        """None when the pod exists now; else why not, for the retries of `key`. `about` is the VMI, also where the pod
        is a migration's: KubeVirt's Event is about the VMI.

        Raises what says nothing about this pod: Conflict (quota was busy), ServerError, Unreachable.
        """
        name, namespace = body["metadata"]["name"], about.namespace
        pod_key = f"{namespace}/{name}"
        if self._is_awaited(pod_key) or await self._is_there(pod_key, name, namespace):
            return None
        generation = self.refusals.generation(namespace)
        try:
            self.lag.admit(body, namespace)
            await self.pods.create(body, namespace=namespace)
        except AlreadyExists:
            pass
        except (BadRequest, Forbidden, Invalid, NotFound) as error:
            self.placement.forget(pod_key)
            return self._refused(key, error, generation, about, what)
        except (ServerError, Unreachable):
            self._uncertain.add(pod_key)
            raise
        self._created[pod_key] = self.clock.loop()
        self.refusals.forget(key)
        return None

    def _is_awaited(self, pod_key: str) -> bool:
        """Whether the pod was created a moment ago: the cache will show it."""
        now = self.clock.loop()
        self._created = {key: since for key, since in self._created.items() if now - since < _UNSEEN}
        return pod_key in self._created

    async def _is_there(self, pod_key: str, name: str, namespace: str) -> bool:
        """Whether an earlier request, whose answer was lost, created the pod after all. Raises ApiError."""
        if pod_key not in self._uncertain:
            return False
        try:
            await self.pods.get(name=name, namespace=namespace)
        except NotFound:
            self._uncertain.discard(pod_key)
            return False
        self._uncertain.discard(pod_key)
        return True

    async def before(self, key: str, namespace: str, making: Awaitable[str]) -> str | Refusal:
        """What has to be made before a pod is created: its name, or why not. KubeVirt writes no event about it."""
        generation = self.refusals.generation(namespace)
        try:
            return await making
        except (BadRequest, Forbidden, Invalid, NotFound) as error:
            return self.refusals.refused(key, error, generation=generation, now=self.clock.loop())

    def _refused(self, key: str, error: ApiError, generation: int, about: Object, what: str) -> Refusal:
        now = self.clock.loop()
        refusal = self.refusals.refused(key, error, generation=generation, now=now)
        delay = refusal.not_before - now
        logger.info("reenqueuing %s: failed to create %s: %s; again in %g s", key, what, error, delay)
        pod = what if what == ATTACHMENT else "pod"
        self.recorder.event(about, WARNING, "FailedCreate", f"Error creating {pod}: {error.message}")
        return refusal
