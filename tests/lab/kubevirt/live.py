"""A running cluster, asked and told in plain JSON, and waited for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.client.loading import load_config
from kubeloop.client.transport import MERGE_PATCH
from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from tests.objects import SEED_DOMAIN

Body = dict[str, Any]
VMS, VMIS = VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES
VMIMS, PODS, QUOTAS = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, registry.PODS, registry.RESOURCE_QUOTAS
SEED = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
ROOMY = {"limits.cpu": "1k", "limits.memory": "10Ti"}


class Live:
    """One namespace of a running cluster; `async with Live(cluster)` makes it."""

    def __init__(self, cluster: Cluster, annotation: str | None = None) -> None:
        self.client = Client(load_config(str(cluster.kubeconfig)))
        self.namespace = bodies.new_name()
        self._annotation = annotation

    async def __aenter__(self) -> Live:
        annotations = {"field.cattle.io/resourceQuota": self._annotation} if self._annotation else {}
        meta = {"name": self.namespace, "annotations": annotations}
        await self.send("POST", "/api/v1/namespaces", {"metadata": meta})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def send(self, method: str, path: str, body: Body | None = None, *, patch: bool = False) -> Body:
        content = None if body is None else json.dumps(body).encode()
        kind = MERGE_PATCH if patch else "application/json"
        answer = await self.client.transport.request(method, path, body=content, content_type=kind)
        decoded: Body = json.loads(answer)
        return decoded

    async def create(self, resource: Resource[Any], body: Body) -> Body:
        return await self.send("POST", resource.path(self.namespace), {**_kind(resource), **body})

    async def get(self, resource: Resource[Any], name: str) -> Body | None:
        try:
            return await self.send("GET", resource.path(self.namespace, name))
        except NotFound:
            return None

    async def list(self, resource: Resource[Any]) -> list[Body]:
        items: list[Body] = (await self.send("GET", resource.path(self.namespace)))["items"]
        return items

    async def patch(self, resource: Resource[Any], name: str, body: Body) -> Body:
        return await self.send("PATCH", resource.path(self.namespace, name), body, patch=True)

    async def delete(self, resource: Resource[Any], name: str) -> None:
        await self.send("DELETE", resource.path(self.namespace, name))

    async def wait(
        self, resource: Resource[Any], name: str, check: Callable[[Body], object], timeout: float = 60.0
    ) -> Body:
        """The object as soon as `check` holds; an object that is not there is {}."""
        deadline = time.monotonic() + timeout
        while True:
            body = await self.get(resource, name) or {}
            if check(body):
                return body
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{resource.kind} {name} after {timeout} s: {json.dumps(body, indent=1)}"
                )
            await asyncio.sleep(0.03)

    async def start(self, name: str = "vm1", *, strategy: str = "Always", **annotations: str) -> None:
        """A VM of the seed."""
        marks = bodies.stand_in(**annotations)
        await self.create(
            VMS, bodies.machine(name, {"domain": SEED_DOMAIN}, strategy=strategy, annotations=marks)
        )

    async def started(self, name: str = "vm1", **annotations: str) -> Body:
        """A VM of the seed that runs."""
        await self.start(name, **annotations)
        return await self.wait(VMS, name, status("printableStatus", "Running"))

    async def migrate(self, name: str = "m1", vmi: str = "vm1", **annotations: str) -> None:
        await self.create(VMIMS, bodies.migration(name, vmi, **annotations))

    async def phase(self, name: str, phase: str, timeout: float = 60.0) -> Body:
        """The migration as soon as it is in the phase."""
        return await self.wait(VMIMS, name, status("phase", phase), timeout)

    async def quota(self, check: Callable[[Body], object] = bool) -> Body:
        """The namespace's only quota as soon as `check` holds."""
        for _ in range(400):
            quotas = await self.list(QUOTAS)
            if quotas and check(quotas[0]):
                return quotas[0]
            await asyncio.sleep(0.05)
        raise AssertionError(json.dumps(await self.list(QUOTAS), indent=1))

    async def set_hard(self, hard: dict[str, str]) -> None:
        name = (await self.quota())["metadata"]["name"]
        await self.patch(QUOTAS, name, {"spec": {"hard": hard}})

    async def launchers(self) -> list[Body]:
        pods = await self.list(PODS)
        return [pod for pod in pods if pod["metadata"]["labels"].get("kubevirt.io") == "virt-launcher"]


def status(field: str, value: str) -> Callable[[Body], bool]:
    """Whether a field of the status has the value."""
    return lambda body: body.get("status", {}).get(field) == value


def used(**amounts: str) -> Callable[[Body], bool]:
    """Whether a quota counts these limits: cpu, memory."""
    wanted = {f"limits.{name}": amount for name, amount in amounts.items()}
    return lambda quota: wanted.items() <= quota.get("status", {}).get("used", {}).items()


def conditions(body: Body) -> dict[str, str]:
    return {c["type"]: c["status"] for c in body.get("status", {}).get("conditions") or []}


def phases(body: Body) -> list[str]:
    return [stamp["phase"] for stamp in body["status"]["phaseTransitionTimestamps"]]


def _kind(resource: Resource[Any]) -> Body:
    return {"apiVersion": resource.api_version, "kind": resource.kind}
