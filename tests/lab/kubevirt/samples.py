"""The stand-in's own types of objects (tests/objects.py builds the product's)."""

from typing import Any, TypeVar

from kubeloop.api.core import Node, Pod
from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from tests.objects import SEED_DOMAIN, build, controlled_by

T = TypeVar("T")

NOW = "2026-11-21T16:31:33Z"
NAMESPACE = "t1"
HOTPLUG_VOLUME = {"name": "extra", "persistentVolumeClaim": {"claimName": "extra-claim", "hotpluggable": True}}


def build_object(kind: type[T], name: str, spec: Any = None, status: Any = None, **meta: Any) -> T:
    return build(kind, name, spec, status, **{"namespace": NAMESPACE, "resourceVersion": "7", **meta})


def vm(*, strategy: str | None = "Always", status: dict[str, Any] | None = None, **meta: Any) -> VirtualMachine:
    spec: dict[str, Any] = {"template": {"spec": {"domain": SEED_DOMAIN}}, "runStrategy": strategy}
    return build_object(VirtualMachine, "vm1", spec, status, **meta)


def vmi(
    name: str = "vm1", *, status: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **meta: Any
) -> VirtualMachineInstance:
    return build_object(VirtualMachineInstance, name, {"domain": SEED_DOMAIN, **(spec or {})}, status, **meta)


def running(name: str = "vm1", *, state: dict[str, Any] | None = None, **meta: Any) -> VirtualMachineInstance:
    """A VMI that runs on node-1; `state` is its migration state."""
    status: dict[str, Any] = {
        "phase": "Running",
        "nodeName": "node-1",
        "activePods": {"uid-source": "node-1"},
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "LiveMigratable", "status": "True"}],
        "migrationState": state,
    }
    defaults = {
        "labels": {"kubevirt.io/nodeName": "node-1"},
        "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"],
    }
    return vmi(name, status={**status, **meta.pop("status", {})}, **{**defaults, **meta})


def vmim(name: str = "m1", *, phase: str = "", vmi_name: str = "vm1", **meta: Any) -> VirtualMachineInstanceMigration:
    """A migration that virt-controller has marked as its own."""
    status = {"phase": phase or None, **meta.pop("status", {})}
    spec = {"vmiName": vmi_name, **meta.pop("spec", {})}
    marks = {"finalizers": ["kubevirt.io/migrationJobFinalize"], "labels": {"kubevirt.io/vmi-name": vmi_name}}
    return build_object(VirtualMachineInstanceMigration, name, spec, status, **{**marks, **meta})


def launcher(
    name: str = "source",
    *,
    node: str | None = "node-1",
    phase: str = "Running",
    job: str = "",
    vmi_name: str = "vm1",
    **meta: Any,
) -> Pod:
    """A launcher pod; the target of migration `job` when there is one."""
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": f"uid-{vmi_name}"}
    annotations = {"kubevirt.io/memory-overhead-bytes": "442497017"}
    if job:
        labels["kubevirt.io/migrationJobUID"] = f"uid-{job}"
        annotations["kubevirt.io/migrationJobName"] = job
    meta |= {
        "labels": labels,
        "annotations": annotations | meta.pop("annotations", {}),
        "ownerReferences": controlled_by("VirtualMachineInstance", vmi_name, f"uid-{vmi_name}"),
    }
    spec = {"containers": [{"name": "compute"}], **({"nodeName": node} if node else {})}
    return build_object(Pod, name, spec, {"phase": phase}, **meta)


def attachment(owner: str = "source", *, phase: str = "Running", **meta: Any) -> Pod:
    """The attachment pod of a launcher."""
    meta |= {"labels": {"kubevirt.io": "hotplug-disk"}, "ownerReferences": controlled_by("Pod", owner, f"uid-{owner}")}
    return build_object(Pod, "hp-volume-a", {"containers": [{"name": "hotplug-disk"}]}, {"phase": phase}, **meta)


def node(name: str, *, unschedulable: bool = False, ready: str | None = "True", **labels: str) -> Node:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    spec, status = {"unschedulable": unschedulable}, {"conditions": conditions}
    return build(Node, name, spec, status, namespace="", labels=labels)
