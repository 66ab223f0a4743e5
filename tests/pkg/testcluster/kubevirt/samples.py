"""Objects as the API server would hand them out, in few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pkg.api.core import Pod
from pkg.testcluster.kubevirt.objects import (
    Node,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)

T = TypeVar("T")

RECORDED = Path(__file__).parents[3] / "vectors" / "recorded"
NOW = "2026-11-21T16:31:33Z"
NAMESPACE = "t1"
SEED_DOMAIN: dict[str, Any] = {
    "cpu": {"cores": 2, "sockets": 1, "threads": 1},
    "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
    "memory": {"guest": "3996Mi"},
    "resources": {
        "limits": {"cpu": "2", "memory": "4Gi"},
        "requests": {"cpu": "125m", "memory": "2730Mi"},
    },
}
"""The VM of the seeds: 2 CPU and 4Gi limits, 2730Mi requested."""
HOTPLUG_VOLUME = {
    "name": "extra",
    "persistentVolumeClaim": {"claimName": "extra-claim", "hotpluggable": True},
}


def recorded(name: str) -> dict[str, Any]:
    """An object that KubeVirt's own controllers left."""
    loaded: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return loaded


def convert(body: dict[str, Any], kind: type[T]) -> T:
    return msgspec.convert(body, kind)


def metadata(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "resourceVersion": "7", **more}


def vm(
    name: str = "vm1", *, strategy: str | None = "Always", status: dict[str, Any] | None = None, **meta: Any
) -> VirtualMachine:
    spec: dict[str, Any] = {"template": {"spec": {"domain": SEED_DOMAIN}}}
    if strategy is not None:
        spec["runStrategy"] = strategy
    return convert({"metadata": metadata(name, **meta), "spec": spec, "status": status or {}}, VirtualMachine)


def vmi(
    name: str = "vm1",
    *,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **meta: Any,
) -> VirtualMachineInstance:
    body = {
        "metadata": metadata(name, **meta),
        "spec": {"domain": SEED_DOMAIN, **(spec or {})},
        "status": status or {},
    }
    return convert(body, VirtualMachineInstance)


def running(name: str = "vm1", *, state: dict[str, Any] | None = None, **more: Any) -> VirtualMachineInstance:
    """A VMI that runs on node-1; `state` is its migration state."""
    status: dict[str, Any] = {
        "phase": "Running",
        "nodeName": "node-1",
        "activePods": {"uid-source": "node-1"},
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "LiveMigratable", "status": "True"}],
    }
    if state is not None:
        status["migrationState"] = state
    meta = {
        "labels": {"kubevirt.io/nodeName": "node-1"},
        "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"],
    }
    return vmi(name, status={**status, **more.pop("status", {})}, **{**meta, **more})


def vmim(
    name: str = "m1", *, phase: str = "", vmi_name: str = "vm1", **more: Any
) -> VirtualMachineInstanceMigration:
    """A migration that virt-controller has marked as its own."""
    status = {"phase": phase, **more.pop("status", {})} if phase else more.pop("status", {})
    spec = {"vmiName": vmi_name, **more.pop("spec", {})}
    marks = {"finalizers": ["kubevirt.io/migrationJobFinalize"], "labels": {"kubevirt.io/vmi-name": vmi_name}}
    body = {"metadata": metadata(name, **{**marks, **more}), "spec": spec, "status": status}
    return convert(body, VirtualMachineInstanceMigration)


def launcher(
    name: str = "source",
    *,
    node: str | None = "node-1",
    phase: str = "Running",
    job: str = "",
    vmi_name: str = "vm1",
    conditions: list[dict[str, Any]] | None = None,
    **meta: Any,
) -> Pod:
    """A launcher pod; the target of migration `job` when there is one."""
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": f"uid-{vmi_name}"}
    annotations = {"kubevirt.io/memory-overhead-bytes": "442497017"}
    if job:
        labels["kubevirt.io/migrationJobUID"] = f"uid-{job}"
        annotations["kubevirt.io/migrationJobName"] = job
    owner = {"kind": "VirtualMachineInstance", "name": vmi_name, "uid": f"uid-{vmi_name}", "controller": True}
    annotations |= meta.pop("annotations", {})
    body = {
        "metadata": metadata(name, labels=labels, annotations=annotations, ownerReferences=[owner], **meta),
        "spec": {"containers": [{"name": "compute"}], **({"nodeName": node} if node else {})},
        "status": {"phase": phase, "conditions": conditions or []},
    }
    return convert(body, Pod)


def attachment(
    owner: str = "source", *, name: str = "hp-volume-a", phase: str = "Running", **meta: Any
) -> Pod:
    """The attachment pod of a launcher."""
    reference = {"kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
    labels = {"kubevirt.io": "hotplug-disk"}
    body = {
        "metadata": metadata(name, labels=labels, ownerReferences=[reference], **meta),
        "spec": {"containers": [{"name": "hotplug-disk"}]},
        "status": {"phase": phase},
    }
    return convert(body, Pod)


def node(name: str, *, unschedulable: bool = False, ready: str | None = "True", **labels: str) -> Node:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": unschedulable},
        "status": {"conditions": conditions},
    }
    return convert(body, Node)
