"""Programs that run in every cluster beside its API servers: the quota controller and the kubelets."""

import asyncio
import time
from typing import Any

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.quantity import ZERO
from kubeloop.api.registry import PODS, RESOURCE_QUOTAS, Resource
from kubeloop.api.resource_list import format_resource_list, total
from kubeloop.testing.fake.patches import Raw
from pkg.util.quotacount.usage import is_live, pod_usage
from tests.simulation.cluster import StoryCluster


class QuotaController:
    """Counts a namespace a moment after something ended or a limit was changed. `away` for a while, it counts all
    when it is back."""

    def __init__(self, cluster: StoryCluster) -> None:
        self._cluster = cluster
        self._due: dict[str, float] = {}
        self._back_at = 0.0
        cluster.observers.append(self._see)

    def away(self, seconds: float) -> None:
        self._back_at = max(self._back_at, asyncio.get_running_loop().time() + seconds)

    def _see(self, resource: Resource[Any], key: str, old: Raw | None, new: Raw | None) -> None:
        is_finished = resource is PODS and (new is None or new["status"].get("phase") in ("Succeeded", "Failed"))
        changed = resource is RESOURCE_QUOTAS and new is not None and (old is None or old["spec"] != new["spec"])
        if is_finished or changed:
            self._count_soon(key.partition("/")[0])

    def _count_soon(self, namespace: str) -> None:
        loop = asyncio.get_running_loop()
        if namespace in self._due:
            return
        now = loop.time()
        self._due[namespace] = max(now, self._back_at) + self._cluster.random.uniform(*self._cluster.traits.counted)
        loop.call_at(self._due[namespace], self._count, namespace)

    def _count(self, namespace: str) -> None:
        del self._due[namespace]
        if asyncio.get_running_loop().time() < self._back_at or self._cluster.is_silent:
            self._count_soon(namespace)
            return
        pods = pods_of(self._cluster, namespace)
        counted = total(pod_usage(pod) for pod in pods if is_live(pod, time.time()))
        for key, raw in list(self._cluster.raw(RESOURCE_QUOTAS).items()):
            hard = raw["spec"].get("hard") or {}
            used = format_resource_list({name: counted.get(name, ZERO) for name in hard})
            status = {"hard": dict(hard), "used": used}
            if key.startswith(f"{namespace}/") and raw.get("status") != status:
                new = {**raw, "metadata": dict(raw["metadata"]), "status": status}
                self._cluster.store(RESOURCE_QUOTAS, key, raw, new)


class Kubelets:
    """A pod with a node runs a moment later; one that is deleted is gone."""

    def __init__(self, cluster: StoryCluster) -> None:
        self._cluster = cluster
        cluster.observers.append(self._see)

    def _see(self, resource: Resource[Any], key: str, _old: Raw | None, new: Raw | None) -> None:
        if resource is not PODS or new is None:
            return
        starts = new["spec"].get("nodeName") and new["status"].get("phase") == "Pending"
        if starts or new["metadata"].get("deletionTimestamp"):
            delay = self._cluster.random.uniform(*self._cluster.traits.kubelet)
            asyncio.get_running_loop().call_later(delay, self._work, key, new["metadata"]["uid"])

    def _work(self, key: str, uid: str) -> None:
        pod = self._cluster.raw(PODS).get(key)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if self._cluster.is_silent:
            asyncio.get_running_loop().call_later(1.0, self._work, key, uid)
        elif pod["metadata"].get("deletionTimestamp"):
            self._cluster.remove(PODS, key)
        elif pod["status"].get("phase") == "Pending":
            new = {**pod, "metadata": dict(pod["metadata"]), "status": {"phase": "Running"}}
            self._cluster.store(PODS, key, pod, new)


def pods_of(cluster: StoryCluster, namespace: str) -> list[Pod]:
    return [msgspec.convert(raw, Pod) for key, raw in cluster.raw(PODS).items() if key.startswith(f"{namespace}/")]
