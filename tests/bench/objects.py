"""The objects that the measurements work on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from pkg.api import registry
from pkg.client.client import Client
from pkg.util import constants

CONCURRENCY = 32


async def in_parallel(calls: Iterable[Callable[[], Awaitable[Any]]], at_once: int = CONCURRENCY) -> None:
    """Run the calls, so many at once."""
    waiting = iter(list(calls))

    async def work() -> None:
        for call in waiting:
            await call()

    await asyncio.gather(*(work() for _ in range(at_once)))


def vmi(namespace: str, name: str, size: int = 0) -> dict[str, Any]:
    """A VMI of the seed's shape, filled up to about `size` bytes of JSON with what real ones carry."""
    body: dict[str, Any] = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubevirt.io/nodeName": "node-1"}},
        "spec": {
            "domain": {
                "cpu": {"cores": 2},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
                "resources": {
                    "limits": {"cpu": "2", "memory": "4Gi"},
                    "requests": {"cpu": "125m", "memory": "2730Mi"},
                },
            }
        },
        "status": {"phase": "Running", "nodeName": "node-1", "conditions": []},
    }
    number = 0
    while len(json.dumps(body)) < size:
        body["status"]["conditions"].append(
            {
                "type": f"Condition{number}",
                "status": "True",
                "reason": f"Reason{number}Of{name}",
                "message": f"what {name} reports as its condition number {number}",
                "lastTransitionTime": "2026-11-21T16:30:15Z",
            }
        )
        number += 1
    return body


async def namespace_with_quota(client: Client, name: str) -> None:
    """A namespace whose default ResourceQuota is the seed's."""
    limits = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
    metadata = {"name": name, "annotations": {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: limits}}
    await client.resource(registry.NAMESPACES).create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    )
    await client.resource(registry.RESOURCE_QUOTAS).create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "default-bench", "labels": {constants.LABEL_DEFAULT_RESOURCE_QUOTA: "true"}},
            "spec": {"hard": {"limits.cpu": "3", "limits.memory": "5000Mi"}},
        },
        name,
    )


async def migration(client: Client, namespace: str, vm: str) -> None:
    """A VMI and a migration of it that nobody has looked at yet, both named like the VM."""
    await client.resource(registry.VIRTUAL_MACHINE_INSTANCES).create(vmi(namespace, vm), namespace)
    await client.resource(registry.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).create(
        {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": vm},
            "spec": {"vmiName": vm},
        },
        namespace,
    )


async def set_phase(client: Client, namespace: str, name: str, phase: str) -> None:
    """What virt-controller writes when a migration gets on."""
    migrations = client.resource(registry.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    await migrations.merge_patch(name, {"status": {"phase": phase}}, namespace, subresource="status")
