"""The kinds of KubeVirt, with the fields in use; it publishes no CRD file to generate them from."""

from typing import Any

from kubeloop.api.meta import Condition, Object, Struct
from kubeloop.api.registry import Resource


class NodeAffinity(Struct):
    required_during_scheduling_ignored_during_execution: dict[str, Any] | None = None


class Affinity(Struct):
    node_affinity: NodeAffinity | None = None


class VirtualMachineInstanceSpec(Struct):
    affinity: Affinity | None = None
    node_selector: dict[str, str] | None = None


class VirtualMachineInstanceStatus(Struct):
    conditions: list[Condition] | None = None


class VirtualMachineInstance(Object):
    spec: VirtualMachineInstanceSpec = VirtualMachineInstanceSpec()
    status: VirtualMachineInstanceStatus = VirtualMachineInstanceStatus()


class VirtualMachineSpec(Struct):
    running: bool | None = None
    run_strategy: str | None = None


class VirtualMachine(Object):
    spec: VirtualMachineSpec = VirtualMachineSpec()


VIRTUAL_MACHINE_INSTANCES = Resource(
    "kubevirt.io",
    "v1",
    "virtualmachineinstances",
    "VirtualMachineInstance",
    VirtualMachineInstance,
    status_subresource=False,
)
VIRTUAL_MACHINES = Resource(
    "kubevirt.io", "v1", "virtualmachines", "VirtualMachine", VirtualMachine, status_subresource=True
)
