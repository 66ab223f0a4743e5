"""KubeVirt's objects: the product's types with the fields that only their controller reads."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource
from pkg.api import kubevirt

T = TypeVar("T", bound=Object)


class MigrationState(kubevirt.MigrationState):
    """kubevirt.io/v1 VirtualMachineInstanceMigrationState, with what virt-handler reports."""

    start_timestamp: str | None = None
    target_node: str | None = None
    target_node_address: str | None = None
    target_attachment_pod_uid: str | None = None
    target_memory_overhead: str | None = None
    target_node_domain_detected: bool = False
    target_node_domain_ready_timestamp: str | None = None
    failure_reason: str | None = None


class InstanceStatus(kubevirt.VirtualMachineInstanceStatus):
    active_pods: dict[str, str] | None = None
    migration_state: MigrationState | None = None
    phase_transition_timestamps: list[kubevirt.PhaseTransition] | None = None


class InstanceSpec(kubevirt.VirtualMachineInstanceSpec):
    """kubevirt.io/v1 VirtualMachineInstanceSpec, with what goes into the launcher pod as it stands."""

    hostname: str | None = None
    subdomain: str | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[dict[str, Any]] | None = None
    termination_grace_period_seconds: int | None = None


class VirtualMachineInstance(kubevirt.VirtualMachineInstance):
    spec: InstanceSpec = InstanceSpec()
    status: InstanceStatus = InstanceStatus()

    @property
    def phase(self) -> str:
        return self.status.phase or ""


class MigrationSpec(kubevirt.VirtualMachineInstanceMigrationSpec):
    added_node_selector: dict[str, str] | None = None


class MigrationStatus(kubevirt.VirtualMachineInstanceMigrationStatus):
    migration_state: MigrationState | None = None


class VirtualMachineInstanceMigration(kubevirt.VirtualMachineInstanceMigration):
    spec: MigrationSpec = MigrationSpec()
    status: MigrationStatus = MigrationStatus()

    @property
    def vmi_key(self) -> str:
        return f"{self.namespace}/{self.spec.vmi_name}"


class Template(Struct):
    """kubevirt.io/v1 VirtualMachineInstanceTemplateSpec; the spec goes into the VMI as it stands."""

    metadata: kubevirt.TemplateMeta = kubevirt.TemplateMeta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class VirtualMachineSpec(Struct):
    run_strategy: str | None = None
    running: bool | None = None
    template: Template = Template()


class VirtualMachine(Object):
    spec: VirtualMachineSpec = VirtualMachineSpec()
    status: kubevirt.VirtualMachineStatus = kubevirt.VirtualMachineStatus()


def _own(like: Resource[Any], kind: type[T]) -> Resource[T]:
    """The product's resource, decoded into the type with all that the controller reads."""
    return Resource(like.group, like.version, like.plural, like.kind, kind, status_subresource=like.status_subresource)


MACHINES = _own(kubevirt.VIRTUAL_MACHINES, VirtualMachine)
INSTANCES = _own(kubevirt.VIRTUAL_MACHINE_INSTANCES, VirtualMachineInstance)
MIGRATIONS = _own(kubevirt.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VirtualMachineInstanceMigration)
