"""What a start costs: from the process to the first raise, in seconds and in CPU, in a cluster with many VMs.

`python -m tests.bench.start [VMs] [runs]`: 1,000 and 5 unless said otherwise. `imports` is the CPU of a process that
imports the HTTP library alone, as a measure of how fast the machine is at the moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab import bodies
from lab.cluster import EmbeddedCluster, Options
from lab.headroom import Headroom
from lab.scale.measurements import percentile
from lab.scale.removal import in_parallel
from lab.scale.site import usage
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
    VirtualMachineInstance,
)
from tests.bench.objects import namespace_with_quota, set_phase, vmi
from tests.objects import launcher

NAMESPACES = 10
NAME = "bench-{:05}"


async def _machine(client: Client, namespace: str, name: str) -> None:
    """A VM that runs: its VM, VMI and launcher pod."""
    body = bodies.machine(name, {"domain": {"devices": {}}}, strategy="Always")
    await client.resource(VIRTUAL_MACHINES).create(body, namespace=namespace)
    instance = await client.resource(VIRTUAL_MACHINE_INSTANCES).create(
        vmi(namespace, name), namespace=namespace
    )
    await _launcher(client, instance)


async def _launcher(client: Client, instance: VirtualMachineInstance) -> None:
    pods = client.resource(registry.PODS)
    made: dict[str, Any] = msgspec.to_builtins(launcher(instance, node=instance.status.node_name or ""))
    metadata = {key: made["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
    owner = {"apiVersion": "kubevirt.io/v1", **metadata.pop("ownerReferences")[0]}
    spec = made["spec"]
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        container["image"] = "none"
    body = {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec}
    pod = await pods.create(body, namespace=instance.namespace)
    await pods.merge_patch(
        {"status": {"phase": "Running"}}, name=pod.name, namespace=pod.namespace, subresource="status"
    )


async def fill(client: Client, machines: int) -> None:
    """Namespaces without quota hold the VMs; one with the seed's quota has a VM whose migration is Pending."""
    names = [f"many-{number}" for number in range(NAMESPACES)]
    for name in names:
        body = {"metadata": {"name": name}}
        await client.resource(registry.NAMESPACES).create(body)
    await namespace_with_quota(client, "waits")
    await until(lambda: _has_account(client, [*names, "waits"]), "the service accounts")
    await in_parallel(
        partial(_machine, client, names[number % NAMESPACES], NAME.format(number))
        for number in range(machines)
    )
    await _machine(client, "waits", "vm1")  # a source is not younger than its migration
    migrations = client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    await migrations.create(bodies.migration("vm1", "vm1"), namespace="waits")
    await set_phase(client, "waits", "vm1", "Pending")


async def _has_account(client: Client, namespaces: list[str]) -> bool:
    found = json.loads(await client.transport.request("GET", "/api/v1/serviceaccounts"))["items"]
    return set(namespaces) <= {each["metadata"]["namespace"] for each in found}


async def one(cluster: Cluster, client: Client) -> dict[str, float]:
    """One start, until the quota of the migration that waits is raised."""
    quotas = client.resource(registry.RESOURCE_QUOTAS)
    base = {
        "spec": {"hard": {"limits.cpu": "3", "limits.memory": "5000Mi"}},
        "metadata": {"annotations": None},
    }
    await quotas.merge_patch(base, name="default-bench", namespace="waits")

    async def raised() -> bool:
        quota = await quotas.get(name="default-bench", namespace="waits")
        return quota.hard["limits.cpu"] != "3"

    flags = ("--kubeconfig", str(cluster.kubeconfig))
    program = Headroom(cluster.directory / "start.log", "controller", *flags)
    began = time.perf_counter()
    program.start(ready=False)
    try:
        await until(raised, "the raise", seconds=60.0, pause=0.01)
        return {"seconds": time.perf_counter() - began, "cpu": usage(program.pid).cpu}
    finally:
        program.stop()


def imports() -> float:
    """Seconds of CPU of a process that imports the HTTP library."""
    before = os.times()
    subprocess.run([sys.executable, "-c", "import aiohttp.web"], check=True)
    after = os.times()
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    return user + system


async def run(cluster: Cluster, machines: int, runs: int) -> list[dict[str, float]]:
    async with Client(load_config(str(cluster.kubeconfig))) as client:
        await fill(client, machines)
        return [{**await one(cluster, client), "imports": imports()} for _ in range(runs)]


def main(arguments: list[str]) -> int:
    machines, runs = (int(each) for each in (*arguments, *("1000", "5")[len(arguments) :]))
    with EmbeddedCluster(options=Options(kubevirt=False, rancher=False, kwok=False)) as cluster:
        measured = asyncio.run(run(cluster, machines, runs))
    for key in measured[0]:
        values = [each[key] for each in measured]
        print(f"{key:8} least {min(values):.2f} s, median {percentile(values, 0.5):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
