"""The world of one story: a cluster, the programs that run in it, and the hands of those who act."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from kubeloop.api.quantity import ZERO
from kubeloop.api.registry import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.fake.patches import Raw
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINES
from pkg.selfcheck.api_server import PROBE_CONFIGURATION
from pkg.util.constants import LABEL_DEFAULT_RESOURCE_QUOTA, WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import mutating, probing, validating
from tests.simulation import actions
from tests.simulation.admission import ADMIN, KUBEVIRT, RANCHER, TENANT, Admission
from tests.simulation.cluster import StoryCluster, Traits
from tests.simulation.control_plane import Kubelets, QuotaController
from tests.simulation.process import SimulatedProcess, outside
from tests.simulation.programs import ENDPOINT, NAMESPACE, WEBHOOKS, Programs
from tests.simulation.promises import Promises
from tests.simulation.repeatable import monotonic
from tests.simulation.server import ApiServer, client

VIRT_API = "system:serviceaccount:kubevirt:kubevirt-apiserver"
SPACES = ("ns0", "ns1")
MACHINES = tuple(f"{space}/{name}" for space in SPACES for name in ("a", "b"))
BASE = "3"
VM_CPU = {"a": "1", "b": "500m"}
SMALL = {"memory": "16Mi", "ephemeral-storage": "1Mi"}
"""What else a tenant's pod is limited to."""
WAIT = 10.0
"""Seconds that an action waits for a write at most."""
FINAL = ("Succeeded", "Failed")
LONG = 2.4
"""Seconds within which a pod that has room is let in."""


class World:
    """`begin`, then actions, then `rest`."""

    def __init__(self, traits: Traits, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = cluster = StoryCluster(traits, self.random)
        self.digest = hashlib.sha256()
        cluster.observers.append(self._note)
        self.promises = Promises(cluster)
        self.quota_controller = QuotaController(cluster)
        self.kubelets = Kubelets(cluster)
        replicas: list[SimulatedProcess] = []
        self.servers = [self._server(replicas) for _ in range(traits.servers)]
        self.programs = Programs(self.servers, traits.source_linger)
        numbers = range(traits.replicas)
        replicas.extend(SimulatedProcess(f"headroom-{number}", self.programs.headroom) for number in numbers)
        for replica, skew in zip(replicas, traits.skews, strict=False):
            replica.skew = skew
        other_processes = (
            SimulatedProcess("kubevirt", self.programs.kubevirt),
            SimulatedProcess("rancher", self.programs.rancher),
            SimulatedProcess("dry-run", self.programs.dry_run),
        )
        self.processes = {process.name: process for process in (*replicas, *other_processes)}
        self.tenant, self.admin, self.virt_api, self.rancher, self.kubevirt = (
            client(self.servers, user) for user in (TENANT, ADMIN, VIRT_API, RANCHER, KUBEVIRT)
        )
        self._wanting: list[asyncio.Task[None]] = []
        self._next_writes: dict[str, asyncio.Event] = {}

    async def begin(self) -> None:
        """Every program runs, and every VM."""
        self._install()
        for process in self.processes.values():
            process.start()
        await asyncio.sleep(5.0)
        for vm in MACHINES:
            await self.create_machine(vm)
        await asyncio.sleep(5.0)

    async def next_write(self, plural: str) -> None:
        """Returns after the next write of a kind, or when there was none for a while."""
        written = self._next_writes.setdefault(plural, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(written.wait(), WAIT)

    async def come_to_rest(self) -> None:
        """Nothing is wanted any more; everything has time to come to its end."""
        for task in self._wanting:
            task.cancel()
        await asyncio.sleep(40.0)
        for _ in range(3):
            for vm in MACHINES:
                await self.abort(vm)
            await asyncio.sleep(10.0)
        await asyncio.sleep(100.0)

    def _server(self, replicas: Sequence[SimulatedProcess]) -> ApiServer:
        lag = self.random.uniform(0.0, self.cluster.traits.admission_lag)
        return ApiServer(self.cluster, Admission(self.cluster, replicas, lag, self.promises))

    def _note(self, resource: Resource[Any], key: str, _old: Raw | None, new: Raw | None) -> None:
        version = new["metadata"]["resourceVersion"] if new else "gone"
        self.digest.update(f"{monotonic():.6f} {resource.plural} {key} {version}\n".encode())
        if (awaited := self._next_writes.pop(resource.plural, None)) is not None:
            awaited.set()

    def _install(self) -> None:
        put = self.cluster.put
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        for number in range(3):
            put(NODES, {"metadata": {"name": f"node-{number}"}, "status": ready})
        status = {"phase": "Deployed", "observedKubeVirtVersion": "v1.8.0"}
        put(KUBEVIRTS, {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "status": status})
        registered: tuple[tuple[Resource[Any], str, Any], ...] = (
            (VALIDATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME, validating(ENDPOINT, WEBHOOKS, b"CA")),
            (MUTATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME, mutating(ENDPOINT, WEBHOOKS, b"CA")),
            (MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION, probing(ENDPOINT, WEBHOOKS, b"CA")),
        )
        for kind, name, webhooks in registered:
            put(kind, {"metadata": {"name": name}, "webhooks": webhooks})
        for name in ("kubevirt", NAMESPACE):
            put(NAMESPACES, {"metadata": {"name": name}})
        for name in SPACES:
            limit = actions.limits(BASE)
            metadata: Raw = {"name": name, "annotations": {actions.ANNOTATION_RANCHER_RESOURCE_QUOTA: limit}}
            put(NAMESPACES, {"metadata": metadata})
            managed = {LABEL_DEFAULT_RESOURCE_QUOTA: "true"}
            self._install_quota(name, "quota", {"limits.cpu": BASE, **actions.OTHERS}, managed)
            self._install_quota(name, "second", {f"requests.{actions.DEVICE}": "0"}, {})

    def _install_quota(self, namespace: str, name: str, hard: dict[str, str], labels: dict[str, str]) -> None:
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        self.cluster.put(RESOURCE_QUOTAS, {"metadata": metadata, "spec": {"hard": hard}, "status": status})

    # What actions do.

    async def create_machine(self, vm: str) -> None:
        namespace, _, name = vm.partition("/")
        resources = {"limits": {"cpu": VM_CPU[name], "memory": "64Mi"}}
        domain = {"cpu": {"cores": 1}, "resources": resources, "devices": {}}
        spec = {"runStrategy": "Always", "template": {"spec": {"domain": domain}}}
        body = {"metadata": {"name": name}, "spec": spec}
        await self.tenant.resource(VIRTUAL_MACHINES).create(body, namespace=namespace)

    async def abort(self, vm: str) -> None:
        """KubeVirt's finalizer is not played: a migration that is deleted is gone."""
        migrations = self.admin.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        for raw in self.migrations(vm):
            await migrations.delete(name=raw["metadata"]["name"], namespace=raw["metadata"]["namespace"])

    def launchers(self, vm: str) -> list[Raw]:
        """Returns the launchers of a VM that live, the oldest first."""
        namespace, _, name = vm.partition("/")
        return [
            raw
            for key, raw in self.cluster.raw(PODS).items()
            if key.startswith(f"{namespace}/virt-launcher-{name}-") and raw["status"].get("phase") not in FINAL
        ]

    def migrations(self, vm: str) -> list[Raw]:
        """Under way, the oldest first."""
        return [
            raw
            for key, raw in self.cluster.raw(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).items()
            if f"{key.partition('/')[0]}/{raw['spec']['vmiName']}" == vm
            and raw.get("status", {}).get("phase") not in FINAL
        ]

    def own_pods(self, namespace: str) -> list[Raw]:
        """The tenant's."""
        pods = self.cluster.raw(PODS).items()
        return [raw for key, raw in pods if key.startswith(f"{namespace}/tenant-")]

    async def create_pod(self, namespace: str, cpu: str, metadata: Raw, **fields: str) -> None:
        container = {"name": "c", "resources": {"limits": {"cpu": cpu, **SMALL, **fields}}}
        await self.tenant.resource(PODS).create(
            {"metadata": metadata, "spec": {"containers": [container]}}, namespace=namespace
        )

    async def resize(self, pod: Raw, cpu: str) -> None:
        containers = [dict(container) for container in pod["spec"]["containers"]]
        resources = containers[0].get("resources") or {}
        containers[0]["resources"] = {**resources, "limits": {**(resources.get("limits") or {}), "cpu": cpu}}
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], "resize")
        body = json.dumps({"spec": {"containers": containers}}).encode()
        await self.tenant.transport.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    async def patch_quota(self, namespace: str, patch: Raw) -> None:
        await self.admin.resource(RESOURCE_QUOTAS).merge_patch(patch, name="quota", namespace=namespace)

    async def revert(self, namespace: str) -> None:
        hard = {name: str(amount) for name, amount in self.promises.base(namespace).items()}
        operations = [{"op": "add", "path": "/spec/hard", "value": hard}]
        await self.rancher.resource(RESOURCE_QUOTAS).json_patch(operations, name="quota", namespace=namespace)

    def retry(self, namespace: str, clients: int, seconds: float) -> None:
        """Creates the pods once more; none can come: the namespace has no devices."""

        async def client() -> None:
            until = monotonic() + seconds
            while monotonic() < until:
                with suppress(ApiError):
                    await self.create_pod(namespace, "100m", {"generateName": "retry-"}, **{actions.DEVICE: "1"})
                await asyncio.sleep(0.1)

        self._wanting.extend(outside(client()) for _ in range(clients))

    # Honest tenants.

    def want_pod(self, namespace: str, cpu: str) -> None:
        self._wanting.append(outside(self._try_pod(namespace, cpu)))

    async def _try_pod(self, namespace: str, cpu: str) -> None:
        """Until it is there, or has been refused a few times."""
        need = parse_resource_list({f"limits.{name}": amount for name, amount in {"cpu": cpu, **SMALL}.items()})
        for _ in range(4):
            asked_at = monotonic()
            try:
                metadata = {"generateName": "tenant-", "labels": {"app": "tenant"}}
                await self.create_pod(namespace, cpu, metadata)
                return
            except Forbidden as error:
                waited = monotonic() - asked_at > LONG
                if waited and "is used up" in error.message and self._had_room(namespace, need, asked_at):
                    self.promises.refused(namespace, cpu, asked_at)
            except ApiError:
                pass
            await asyncio.sleep(1.0)

    def _had_room(self, namespace: str, need: ResourceList, since: float) -> bool:
        """All the time since then, in a cluster without trouble."""
        most = self.promises.most_excess(namespace, since)
        fits = all(most.get(name, ZERO) + amount <= ZERO for name, amount in need.items())
        return fits and not self.cluster.is_troubled and not self.promises.has_budget(namespace)
