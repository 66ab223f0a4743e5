"""An API server in process, in virtual time, with what it does not have: quota admission from a cache that lags, the
quota controller, kubelets, and Rancher's agent that writes its base over every quota."""

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.api.registry import NODES
from kubeloop.api.resource_list import format_resource_list, parse_resource_list, total
from kubeloop.client.client import Client
from kubeloop.client.connections import ServerClock
from kubeloop.client.errors import Forbidden
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import now
from lab.kubevirt import options as stand_in
from lab.kubevirt.register import register
from lab.record import Record
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINES, VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.registry import register_all
from pkg.util.constants import ANNOTATION_RANCHER_RESOURCE_QUOTA, LABEL_DEFAULT_RESOURCE_QUOTA
from pkg.util.quotacount.usage import is_live, pod_usage

LAG = 0.1
"""Seconds that quota admission lags behind status.hard."""
COUNTED = 0.02
"""Seconds until the quota controller has counted, and copied spec.hard."""
REQUEST = (0.002, 0.008)
"""Seconds that a request takes."""
RESTART = 3.0
"""Seconds between restarts of Rancher's agent."""
ONE_VM = 515


class SimulatedCluster:
    """The cluster, and those who are neither headroom nor KubeVirt."""

    def __init__(self, seed: int, namespaces: int = 2, machines: int = 2) -> None:
        """`machines` of each namespace: its base covers them, and no more."""
        self.random = random.Random(seed)
        self.server = FakeCluster()
        self.base = {"limits.cpu": f"{ONE_VM * machines}m", "limits.memory": "20Gi"}
        self.names = [f"ns{number}" for number in range(namespaces)]
        self.seen = {name: Record(now) for name in self.names}
        self.machines = [(name, f"vm{number}") for name in self.names for number in range(machines)]
        self.shown: dict[str, deque[tuple[float, dict[str, str]]]] = {}
        self.server.reactors += [self.latency, self.admission]
        self.ended = 0
        self.changed = asyncio.Event()

    def build(self) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        for number in range(3):
            self.server.put(NODES, {"metadata": {"name": f"node-{number}"}, "status": ready})
        limit = json.dumps({"limit": {"limitsCpu": self.base["limits.cpu"], "limitsMemory": "20Gi"}})
        annotations = {ANNOTATION_RANCHER_RESOURCE_QUOTA: limit}
        for name in self.names:
            self.server.put(registry.NAMESPACES, {"metadata": {"name": name, "annotations": annotations}})
            metadata = {"name": "q", "namespace": name, "labels": {LABEL_DEFAULT_RESOURCE_QUOTA: "true"}}
            status = {"hard": self.base, "used": {"limits.cpu": "0", "limits.memory": "0"}}
            body = {"metadata": metadata, "spec": {"hard": self.base}, "status": status}
            self.server.put(registry.RESOURCE_QUOTAS, body)
            self.shown[name] = deque([(-LAG, self.base)])

    # What the server lacks.

    async def latency(self, request: Request) -> None:
        await asyncio.sleep(self.random.uniform(*REQUEST))

    def admission(self, request: Request) -> None:
        """Quota: what lives is charged against status.hard as it was a moment ago."""
        if (request.verb, request.plural) != ("create", "pods"):
            return
        namespace = request.key
        usage = pod_usage(msgspec.convert(request.body, Pod))
        used = total(pod_usage(pod) for pod in self.pods(namespace) if is_live(pod, time.time()))
        history = self.shown[namespace]
        while len(history) > 1 and history[1][0] <= now() - LAG:
            history.popleft()
        hard = parse_resource_list(history[0][1])
        if any(used.get(name, Quantity.of(0)) + usage[name] > hard[name] for name in hard if name in usage):
            raise Forbidden("pods is forbidden: exceeded quota: q", status=403, reason="Forbidden")

    def pods(self, namespace: str) -> list[Pod]:
        return [pod for pod in self.server.all(registry.PODS) if pod.namespace == namespace]

    async def quota_controller(self) -> None:
        while True:
            await self.changed.wait()
            self.changed.clear()
            await asyncio.sleep(COUNTED)
            for name in self.names:
                quota = self.server.get(registry.RESOURCE_QUOTAS, f"{name}/q")
                assert quota is not None
                counted = total(pod_usage(pod) for pod in self.pods(name) if is_live(pod, time.time()))
                used = format_resource_list({key: counted.get(key, Quantity.of(0)) for key in self.base})
                hard = {key: str(limit) for key, limit in quota.hard.items()}
                if (quota.status.hard, quota.status.used) == (hard, used):
                    continue
                if quota.status.hard != hard:
                    self.shown[name].append((now(), hard))
                raw = dict(self.server.raw(registry.RESOURCE_QUOTAS)[f"{name}/q"])
                self.server.put(registry.RESOURCE_QUOTAS, {**raw, "status": {"hard": hard, "used": used}})

    def see_pod(self, pod: Pod) -> None:
        """A pod with a node runs a moment later; one that is deleted is gone."""
        self.changed.set()
        if pod.deleting or (pod.spec.node_name and (pod.status.phase or "Pending") == "Pending"):
            asyncio.get_running_loop().call_later(0.05, self.kubelet, pod.key)

    def kubelet(self, key: str) -> None:
        pod = self.server.get(registry.PODS, key)
        if pod is not None and pod.deleting:
            self.server.remove(registry.PODS, key)
        elif pod is not None and (pod.status.phase or "Pending") == "Pending":
            raw = dict(self.server.raw(registry.PODS)[key])
            self.server.put(registry.PODS, {**raw, "status": {"phase": "Running"}})

    def see_quota(self, quota: ResourceQuota) -> None:
        self.changed.set()
        self.seen[quota.namespace].see_quota(quota)

    def see_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        self.seen[migration.namespace].see_migration(migration)

    async def rancher(self) -> None:
        while True:
            await asyncio.sleep(RESTART)
            for name in self.names:
                raw = dict(self.server.raw(registry.RESOURCE_QUOTAS)[f"{name}/q"])
                self.server.put(registry.RESOURCE_QUOTAS, {**raw, "spec": {"hard": self.base}})

    @asynccontextmanager
    async def running(
        self, client: Client, options: Settings, kubevirt: stand_in.StandInOptions, *players: Coroutine[Any, Any, None]
    ) -> AsyncIterator[None]:
        """headroom's controllers by this client, KubeVirt's stand-in and the others, once their VMs run."""
        self.server.clock = client.transport.server_clock = ServerClock(now)
        headroom = Management(client)
        virt_controller = Management(self.server.client(), whole=True)
        register_all(headroom, headroom.recorder("headroom"), options)
        register(virt_controller, kubevirt)
        follow = self.follow(registry.PODS, self.see_pod), self.follow(registry.RESOURCE_QUOTAS, self.see_quota)
        tasks = [asyncio.create_task(player) for player in (self.quota_controller(), *follow, *players)]
        await headroom.start()
        await virt_controller.start()
        for machine in self.machines:
            await self.machine(*machine)
        yield
        await asyncio.gather(headroom.stop(1.0), virt_controller.stop(1.0))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    # What people do, and what is seen.

    async def machine(self, namespace: str, name: str) -> None:
        resources = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "125m"}}
        domain = {"cpu": {"cores": 1}, "resources": resources, "devices": {}}
        spec = {"runStrategy": "Always", "template": {"spec": {"domain": domain}}}
        self.server.put(VIRTUAL_MACHINES, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
        await until(
            lambda: any(pod.status.phase == "Running" and name in pod.name for pod in self.pods(namespace)),
            seconds=60.0,
            pause=0.1,
        )

    async def migrate(self, namespace: str, vm: str, goal: int) -> None:
        number = 0
        while self.ended < goal:
            await asyncio.sleep(self.random.uniform(0.5, 2.5))
            number += 1
            await self.migrate_once(namespace, vm, f"{vm}-{number}")

    async def migrate_once(self, namespace: str, vm: str, name: str) -> None:
        metadata, key = {"name": name, "namespace": namespace}, f"{namespace}/{name}"
        self.server.put(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, {"metadata": metadata, "spec": {"vmiName": vm}})
        await until(lambda: self.phase(key) in ("Succeeded", "Failed"), seconds=60.0, pause=0.1)
        assert self.phase(key) == "Succeeded"
        self.ended += 1

    def phase(self, key: str) -> str:
        result = self.server.get(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, key)
        return result.phase if result else "gone"

    async def follow(self, resource: registry.Resource[Any], see: Any) -> None:
        client = self.server.client().resource(resource)
        result = await client.list()
        for obj in result:
            see(obj)
        async with client.watch(resource_version=result.resource_version) as events:
            async for event in events:
                if event.type in ("ADDED", "MODIFIED"):
                    see(event.object)
                else:
                    self.changed.set()
