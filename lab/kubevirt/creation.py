"""Creating pods through the real API: placed on a node, and refused where quota refuses them."""

import contextlib
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kubeloop.api.core import Node, Pod, Taint
from kubeloop.api.objects import condition_is_true, find_condition
from kubeloop.client.errors import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.workqueue.queue import loop_time
from kubeloop.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from lab.kubevirt.lookup import Configuration, Pods
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.pod import attachment_pod, hotplugged_volumes, launcher_pod
from lab.kubevirt.state_claims import StateClaims
from pkg.util.kubevirt.claims import keeps_state

logger = logging.getLogger(__name__)

T = TypeVar("T")


# ---- placement


def pick_node(
    nodes: Iterable[Node],
    *,
    load: Mapping[str, int],
    avoid: Collection[str | None] = (),
    selector: Mapping[str, str] | None = None,
    tolerations: Sequence[Mapping[str, Any]] = (),
) -> str | None:
    """The least loaded node that may be used, the first by name among equals; None when there is none."""
    candidates = [node.name for node in nodes if node.name not in avoid and _usable(node, selector or {}, tolerations)]
    return min(candidates, key=lambda name: (load.get(name, 0), name), default=None)


def _usable(node: Node, selector: Mapping[str, str], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    conditions = node.status.conditions
    ready = condition_is_true(conditions, "Ready") or find_condition(conditions, "Ready") is None
    is_open = not any(_repels(taint, tolerations) for taint in node.spec.taints or ())
    is_schedulable = is_open and not node.spec.unschedulable and not node.deleting
    return ready and is_schedulable and selector.items() <= node.labels.items()


def _repels(taint: Taint, tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Reports whether a taint keeps a pod away, as the scheduler's TaintToleration does."""
    return taint.effect != "PreferNoSchedule" and not any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    fits = toleration.get("effect") in (None, "", taint.effect) and toleration.get("key") in (None, "", taint.key)
    return fits and (toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.value or ""))


_UNSEEN = 5.0
"""Seconds after which a pod that was created and that the cache never showed counts as gone again."""


class Placement:
    """Chooses nodes, and knows new pods until the cache shows them: so a burst spreads out, and no pod is created
    twice."""

    def __init__(self, nodes: CacheReader[Node], pods: Pods) -> None:
        self._nodes = nodes
        self._pods = pods
        self._created: dict[str, tuple[str, float]] = {}

    def choose(
        self,
        *,
        avoid: Collection[str | None] = (),
        selector: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
    ) -> str | None:
        """The node for a pod that is about to be created; None when there is none to choose."""
        nodes, now = self._nodes.list(), loop_time()
        self._created = {
            key: (node, since)
            for key, (node, since) in self._created.items()
            if self._pods.get(key) is None and now - since < _UNSEEN
        }
        load = self._pods.load(node.name for node in nodes)
        load.update(node for node, _ in self._created.values())
        return pick_node(nodes, load=load, avoid=avoid, selector=selector, tolerations=tolerations)

    def expect(self, pod_key: str, node: str) -> None:
        """The pod is being created there."""
        self._created[pod_key] = (node, loop_time())

    def forget(self, pod_key: str) -> None:
        """The pod was not created."""
        self._created.pop(pod_key, None)

    def expects(self, pod_key: str) -> bool:
        """Reports whether the pod was created a moment ago."""
        return pod_key in self._created and loop_time() - self._created[pod_key][1] < _UNSEEN


# ---- refusals

QUOTA_EXCEEDED = "exceeded quota"
"""The words of quota admission; KubeVirt looks for them, the status does not tell quota from other refusals."""

QUICK: Final = (0.05, 0.2, 0.8)
"""Seconds. An event of a quota may be ahead of the admission plugin's own cache by a moment."""
_OTHER_FIRST, _OTHER_MAX = 0.1, 30.0


@dataclass(frozen=True, slots=True)
class PodRefusal:
    """The refusal of a pod. `not_before` is a loop time; `generation` counts the namespace's quota events."""

    message: str
    by_quota: bool
    generation: int
    not_before: float
    quick: int = 0


class Refused(RetryAfter):
    """A pod, or what it needs, was not created; it is asked for again when the backoff ends."""

    def __init__(self, refusal: PodRefusal, now: float) -> None:
        super().__init__(refusal.not_before - now, refusal.message)
        self.by_quota = refusal.by_quota


class Refusals:
    """The last refusal of each key, and its backoff: `first_delay` seconds doubled up to `max_delay`.

    A change of the namespace's quotas makes a key due at once, and again after each of `quick` seconds. Memory only:
    after a restart everything is tried again.
    """

    def __init__(self, first_delay: float = 5.0, max_delay: float = 300.0, quick: Sequence[float] = QUICK) -> None:
        self._quick = tuple(quick)
        self._quota_backoff = ItemExponentialFailureRateLimiter[str](first_delay, max_delay)
        self._other_backoff = ItemExponentialFailureRateLimiter[str](_OTHER_FIRST, _OTHER_MAX)
        self._refusals: dict[str, PodRefusal] = {}
        self._generations: dict[str, int] = {}

    def quota_changed(self, namespace: str) -> list[str]:
        """Notes a change of a quota; returns the keys that are due by it."""
        self._generations[namespace] = self.generation(namespace) + 1
        return [key for key in self._refusals if key.startswith(f"{namespace}/")]

    def generation(self, namespace: str) -> int:
        return self._generations.get(namespace, 0)

    def check(self, key: str, now: float) -> None:
        """Raises Refused while the key's last refusal is too young."""
        refusal = self._refusals.get(key)
        if refusal is None or (refusal.by_quota and refusal.generation != self.generation(key.partition("/")[0])):
            return
        if refusal.not_before > now:
            raise Refused(refusal, now)

    def record_refusal(self, key: str, error: ApiError, *, generation: int, now: float) -> Refused:
        """Notes a refusal and returns its error. `generation` is the one before the request was sent."""
        # Quota refused it, and nothing else.
        by_quota = isinstance(error, Forbidden) and QUOTA_EXCEEDED in error.message
        quick = self._next_quick(key, generation) if by_quota else len(self._quick)
        slow = self._quota_backoff if by_quota else self._other_backoff
        delay = self._quick[quick] if quick < len(self._quick) else slow.when(key)
        self._refusals[key] = PodRefusal(error.message, by_quota, generation, now + delay, quick)
        return Refused(self._refusals[key], now)

    def forget(self, key: str) -> None:
        """The key got what it wanted, or is gone."""
        self._refusals.pop(key, None)
        self._quota_backoff.forget(key)
        self._other_backoff.forget(key)

    def _next_quick(self, key: str, generation: int) -> int:
        """Returns the number of this quick try: they begin with the first refusal after a quota changed."""
        refusal = self._refusals.get(key)
        if refusal is None or not refusal.by_quota:
            return len(self._quick)
        return 0 if refusal.generation != generation else min(refusal.quick + 1, len(self._quick))


# ---- creation

ATTACHMENT = "attachment pod"


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
    state: StateClaims
    configuration: Configuration
    # The pods whose creation has an unknown result: its answer was lost.
    _uncertain: set[str] = field(default_factory=set, init=False)

    async def launch(
        self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None = None
    ) -> None:
        """The VMI's launcher, or the target of its migration, which comes to another node; with the claim of the VM's
        state. As `create`; RetryAfter where no node can run the VMI."""
        self.check((migration or vmi).key)
        rendering = self.configuration.rendering(vmi.namespace)
        claim = await self.claim(vmi, migration) if keeps_state(vmi, rendering.profile) else ""
        node = self.node_for(vmi, migration)
        if node is None and migration is None:
            raise RetryAfter(1.0, "no node can run it")
        body = launcher_pod(vmi, rendering, node, migration, claim, self.configuration.launcher_image)
        await self.create(body, vmi, migration, "vmi migration target pod" if migration else "launcher pod")

    def node_for(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None) -> str | None:
        """Returns a node for the VMI, for a migration's target another than the VMI's own."""
        extra, avoid = (migration.spec.added_node_selector, vmi.status.node_name) if migration else (None, None)
        selector = {**(vmi.spec.node_selector or {}), **(extra or {})}
        return self.placement.choose(avoid=(avoid,), selector=selector, tolerations=vmi.spec.tolerations or ())

    async def claim(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None = None) -> str:
        """The name of the claim for the VM's state, or for its migration's target. Raises as `create`: KubeVirt writes
        no event about it."""
        self.check((migration or vmi).key)
        return await self._await_creation((migration or vmi).key, vmi.namespace, self.state.of(vmi, migration))

    async def attach(
        self, launcher: Pod, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None = None
    ) -> None:
        """The launcher's attachment pod. As `create`."""
        self.check((migration or vmi).key)
        body = attachment_pod(launcher, hotplugged_volumes(vmi), self.configuration.rendering(vmi.namespace), migration)
        await self.create(body, vmi, migration, ATTACHMENT)

    async def create(
        self,
        body: Mapping[str, Any],
        vmi: VirtualMachineInstance,
        migration: VirtualMachineInstanceMigration | None,
        pod_kind: str,
    ) -> None:
        """Creates the pod; it exists when this returns. A refusal delays the migration whose pod it is, else the VMI;
        KubeVirt's Event is about the VMI.

        Raises Refused, and errors that say nothing about this pod: Conflict (quota was busy), ServerError, Unreachable.
        """
        key, name, namespace = (migration or vmi).key, body["metadata"]["name"], vmi.namespace
        pod_key = f"{namespace}/{name}"
        if self.placement.expects(pod_key) or await self._is_there(pod_key, name, namespace):
            return
        self.placement.expect(pod_key, body["spec"].get("nodeName", ""))
        try:
            await self._await_creation(key, namespace, self.pods.create(body, namespace=namespace))
        except AlreadyExists:
            pass
        except Refused as refused:
            self.placement.forget(pod_key)
            logger.info("%s: failed to create %s: %s; again in %g s", key, pod_kind, refused, refused.seconds)
            pod = pod_kind if pod_kind == ATTACHMENT else "pod"
            self.recorder.event(vmi, WARNING, "FailedCreate", f"Error creating {pod}: {refused}")
            raise
        except BaseException:
            self.placement.forget(pod_key)
            self._uncertain.add(pod_key)
            raise
        self.refusals.forget(key)

    def check(self, key: str) -> None:
        """Raises Refused while the key has to wait."""
        self.refusals.check(key, loop_time())

    async def _await_creation(self, key: str, namespace: str, creation: Awaitable[T]) -> T:
        generation = self.refusals.generation(namespace)
        try:
            return await creation
        except (BadRequest, Forbidden, Invalid, NotFound) as error:
            raise self.refusals.record_refusal(key, error, generation=generation, now=loop_time()) from error

    async def _is_there(self, pod_key: str, name: str, namespace: str) -> bool:
        """Reports whether an earlier request, whose answer was lost, created the pod after all. Raises ApiError."""
        exists = False
        if pod_key in self._uncertain:
            with contextlib.suppress(NotFound):
                exists = bool(await self.pods.get(name=name, namespace=namespace))
            self._uncertain.discard(pod_key)
        return exists
