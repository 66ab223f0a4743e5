"""The objects that the measurements work on."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.testing.cluster.processes import find
from kubeloop.testing.polling import until
from lab import bodies
from lab.namespace import VMIMS, VMIS, Namespace
from lab.rancher.project import ANNOTATION_PROJECT, CLUSTER, PROJECTS
from lab.scale.removal import in_parallel

SIZE = 4000
"""Bytes of an object's JSON."""


async def create_vms(client: Client, namespace: str, numbers: range) -> list[str]:
    """A VMI and a pod of 4 kB each for every number; their names."""
    vmis, pods = client.resource(VMIS), client.resource(registry.PODS)
    names = [f"bench-{number:05}" for number in numbers]
    await in_parallel(partial(vmis.create, vmi(namespace, n, SIZE), namespace=namespace) for n in names)
    await in_parallel(partial(pods.create, pod(namespace, n), namespace=namespace) for n in names)
    return names


async def remove_namespaces(client: Client, names: Sequence[str]) -> None:
    """Until they are gone: to delete what is in them costs the API server what the next measurement needs."""
    namespaces = client.resource(registry.NAMESPACES)
    await in_parallel(partial(namespaces.delete, name=name) for name in names)

    async def gone() -> bool:
        return {namespace.name for namespace in await namespaces.list()}.isdisjoint(names)

    await until(gone, "namespaces to go", seconds=300.0, pause=0.5)


_RECORDED_FOLDER = Path(__file__).parents[1] / "vectors" / "recorded"
_RECORDED = _RECORDED_FOLDER / "virtualmachineinstance-t1-vm1.json"
_RECORDED_POD = _RECORDED_FOLDER / "pod-t1-virt-launcher-vm1-t8vc9.json"


def vmi(namespace: str, name: str, size: int = 0) -> dict[str, Any]:
    """A VMI as KubeVirt left one behind, with further disks until its JSON takes about `size` bytes."""
    body: dict[str, Any] = json.loads(_RECORDED.read_text())
    meta = body["metadata"]
    body["metadata"] = {"name": name, "namespace": namespace} | {k: meta[k] for k in ("labels", "annotations")}
    del body["status"]["migrationState"]
    disks = body["spec"]["domain"]["devices"].setdefault("disks", [])
    volumes = body["spec"].setdefault("volumes", [])
    statuses = body["status"].setdefault("volumeStatus", [])
    while len(json.dumps(body, separators=(",", ":"))) < size:
        disk = f"disk-{len(disks)}"
        claim = f"{name}-{disk}-x7k2p"
        disks.append({"name": disk, "bootOrder": len(disks) + 1, "disk": {"bus": "virtio"}, "serial": claim})
        volumes.append({"name": disk, "persistentVolumeClaim": {"claimName": claim}})
        info = {"claimName": claim, "accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}}
        statuses.append({"name": disk, "target": f"vd{len(disks)}", "persistentVolumeClaimInfo": info})
    return body


def pod(namespace: str, name: str) -> dict[str, Any]:
    """A launcher pod as virt-controller created it, on no node: it stays as it is, Pending."""
    body: dict[str, Any] = json.loads(_RECORDED_POD.read_text())
    meta = {key: body["metadata"][key] for key in ("labels", "annotations")}
    spec = {key: value for key, value in body["spec"].items() if key not in ("nodeName", "priority")}
    return {"metadata": {**meta, "name": name, "namespace": namespace}, "spec": spec}


async def namespace_with_quota(client: Client, name: str) -> None:
    """A namespace whose default ResourceQuota is the seed's."""
    limits = bodies.quota_text({"limitsCpu": "3000m", "limitsMemory": "5000Mi"})
    await client.resource(registry.NAMESPACES).create(bodies.namespace(name, limits))
    quota = bodies.default_quota("default-bench", {"limits.cpu": "3", "limits.memory": "5000Mi"})
    await client.resource(registry.RESOURCE_QUOTAS).create(quota, namespace=name)


async def namespace_in_project(client: Client, name: str) -> None:
    """The same in a project of Rancher's with room for ten of it; Rancher has written the quota."""
    hard = {"limits.cpu": "3", "limits.memory": "5000Mi"}
    project = bodies.project(f"p-{name}", {"limits.cpu": "30", "limits.memory": "50000Mi"}, hard)
    await client.resource(registry.NAMESPACES).create({"metadata": {"name": CLUSTER}})
    await client.resource(PROJECTS).create(project, namespace=CLUSTER)
    body = bodies.namespace(name, bodies.granting(hard))
    body["metadata"]["annotations"][ANNOTATION_PROJECT] = f"{CLUSTER}:p-{name}"
    await client.resource(registry.NAMESPACES).create(body)
    await Namespace(client, name).until_counted()


async def migration(namespace: Namespace, vm: str) -> None:
    """A VMI and a migration of it that was not handled yet, both named like the VM."""
    await namespace.create(VMIS, vmi(namespace.name, vm))
    await namespace.create(VMIMS, bodies.migration(vm, vm))


def api_server(directory: Path) -> tuple[str, dict[str, str]]:
    """Returns how the API server of the cluster in `directory` is run, its audit log left out: the binary, and its
    flags."""
    binary, *words = find(directory, "kube-apiserver").argv
    return binary, dict(word.partition("=")[::2] for word in words if not word.startswith("--audit-"))
