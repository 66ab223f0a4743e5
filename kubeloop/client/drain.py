"""Draining a node, as kubectl does: k8s.io/kubectl/pkg/drain."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubeloop.api.core import Node, Pod, PodSpec
from kubeloop.api.registry import NODES, PODS, Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import Conflict, NotFound, TooManyRequests
from kubeloop.errors import ReportedError

_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of pods that the kubelet runs by itself: they cannot be evicted."""
_AGAIN, _POLL = 5.0, 1.0
"""Seconds until an eviction that a PodDisruptionBudget refuses is tried again, and between looks at a pod that ends."""


class DrainError(ReportedError):
    """Pods that would be lost, or that did not go in time."""


class _Spec(PodSpec):
    volumes: list[dict[str, Any]] | None = None


class _Pod(Pod):
    spec: _Spec = _Spec()


_PODS = Resource("", "v1", "pods", "Pod", _Pod, status_subresource=True)


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A drain of a node; the options and their defaults are kubectl's. `skips` reports which further pods stay."""

    client: Client
    ignore_daemon_sets: bool = False
    delete_empty_dir_data: bool = False
    force: bool = False
    pod_selector: str = ""
    grace_period_seconds: int | None = None
    timeout: float | None = None
    skips: Callable[[Pod], bool] = lambda _: False

    async def cordon(self, node_name: str, unschedulable: bool = True) -> Node:
        """Keeps new pods off the node, or lets them on it again (False). Raises NotFound."""
        patch = {"spec": {"unschedulable": unschedulable or None}}
        return await self.client.resource(NODES).merge_patch(patch, name=node_name)

    async def pods(self, node_name: str) -> list[Pod]:
        """Returns the pods that a drain evicts. Raises DrainError for pods that the options do not allow to evict."""
        on_node = f"spec.nodeName={node_name}"
        pods = await self.client.resource(_PODS).list(label_selector=self.pod_selector, field_selector=on_node)
        reasons = {pod.key: self._reason_to_stay(pod) for pod in pods}
        if refused := [f"{key} {reason}" for key, reason in reasons.items() if reason]:
            raise DrainError(f"node {node_name} cannot be drained: {', '.join(refused)}")
        return [pod for pod in pods if reasons[pod.key] is None]

    async def run(self, node_name: str) -> None:
        """Evicts the pods and returns when they are gone; the node must be cordoned. Raises DrainError."""
        pods = await self.pods(node_name)
        try:
            async with asyncio.timeout(self.timeout), asyncio.TaskGroup() as group:
                for pod in pods:
                    group.create_task(self._evict(pod))
        except TimeoutError:
            raise DrainError(f"node {node_name}: not drained within {self.timeout:g} s") from None

    def _reason_to_stay(self, pod: _Pod) -> str | None:
        """Returns the reason for which a pod stays: "" if it may stay, else what forbids the drain; None if it goes."""
        owners = [owner.kind for owner in pod.metadata.owner_references or () if owner.controller]
        if self.skips(pod) or _MIRROR in pod.annotations:
            return ""
        if pod.terminal:
            return None
        if "DaemonSet" in owners:
            return "" if self.ignore_daemon_sets else "belongs to a DaemonSet (ignore_daemon_sets)"
        if not self.delete_empty_dir_data and any("emptyDir" in volume for volume in pod.spec.volumes or ()):
            return "has an emptyDir (delete_empty_dir_data)"
        return None if owners or self.force else "has no controller (force)"

    async def _evict(self, pod: Pod) -> None:
        pods, target = self.client.resource(PODS), {"name": pod.name, "namespace": pod.namespace}
        with contextlib.suppress(NotFound, Conflict):  # gone, or another pod of that name is there
            while True:
                try:
                    await pods.evict(**target, grace_period_seconds=self.grace_period_seconds, uid=pod.uid)
                    break
                except TooManyRequests:
                    await asyncio.sleep(_AGAIN)
            while True:
                if (await pods.get(**target)).uid != pod.uid:
                    return
                await asyncio.sleep(_POLL)
