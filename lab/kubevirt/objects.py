"""KubeVirt's objects: the product's types with the fields that only their controller reads, its keys where pkg.util has
them not, and pieces of merge patches. A list in a merge patch replaces the whole list: each is built from all that
stands."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from kubeloop.api.meta import Condition, Object, ObjectMeta, Struct
from kubeloop.api.registry import Resource
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from pkg.api import kubevirt
from pkg.api.kubevirt import PhaseTransition

T = TypeVar("T", bound=Object)
Patch = dict[str, Any]

FINALIZER_MIGRATION: Final = "kubevirt.io/migrationJobFinalize"
FINALIZER_VMI: Final = "kubevirt.io/virtualMachineControllerFinalize"
LABEL_VMI_NAME: Final = "kubevirt.io/vmi-name"
"""The label of a VMIM by which `kubectl get vmim -l` selects."""
LABEL_MIGRATION_TARGET_NODE: Final = "kubevirt.io/migrationTargetNodeName"
ANNOTATION_MIGRATION_JOB_NAME: Final = "kubevirt.io/migrationJobName"
ANNOTATION_MIGRATION_TARGET_READY: Final = "kubevirt.io/migration-target-ready-timestamp"
CONDITION_MIGRATION_REQUIRED: Final = "MigrationRequired"
CONDITION_SYNCHRONIZED: Final = "Synchronized"
"""The condition of a VMI whose pod could not be created: status False, reason FailedCreate."""


class MigrationState(kubevirt.MigrationState):
    """kubevirt.io/v1 VirtualMachineInstanceMigrationState, with virt-handler's fields."""

    abort_requested: bool = False
    start_timestamp: str | None = None
    target_node: str | None = None
    target_node_address: str | None = None
    target_attachment_pod_uid: str | None = None
    target_memory_overhead: str | None = None
    target_node_domain_detected: bool = False
    target_node_domain_ready_timestamp: str | None = None
    failure_reason: str | None = None


class VMIStatus(kubevirt.VirtualMachineInstanceStatus):
    active_pods: dict[str, str] | None = None
    launcher_container_image_version: str | None = None
    memory: dict[str, Any] | None = None
    migration_state: MigrationState | None = None
    phase_transition_timestamps: list[PhaseTransition] | None = None


class VMISpec(kubevirt.VirtualMachineInstanceSpec):
    """kubevirt.io/v1 VirtualMachineInstanceSpec, with the fields that go into the launcher pod unchanged."""

    hostname: str | None = None
    subdomain: str | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[dict[str, Any]] | None = None
    termination_grace_period_seconds: int | None = None
    eviction_strategy: str | None = None


class VirtualMachineInstance(kubevirt.VirtualMachineInstance):
    spec: VMISpec = VMISpec()
    status: VMIStatus = VMIStatus()

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

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class VirtualMachineSpec(Struct):
    run_strategy: str | None = None
    running: bool | None = None
    template: Template = Template()


class VirtualMachine(Object):
    spec: VirtualMachineSpec = VirtualMachineSpec()
    status: kubevirt.VirtualMachineStatus = kubevirt.VirtualMachineStatus()


class WorkloadUpdateStrategy(Struct):
    """kubevirt.io/v1 KubeVirtWorkloadUpdateStrategy: how VMIs come into launchers of a new release."""

    workload_update_methods: list[str] | None = None


class KubeVirtSpec(kubevirt.KubeVirtSpec):
    workload_update_strategy: WorkloadUpdateStrategy | None = None


class KubeVirt(kubevirt.KubeVirt):
    spec: KubeVirtSpec = KubeVirtSpec()


def _extended_resource(base: Resource[Any], kind: type[T]) -> Resource[T]:
    """The product's resource, decoded into the type with all that the controller reads."""
    return Resource(base.group, base.version, base.plural, base.kind, kind, status_subresource=base.status_subresource)


VMS = _extended_resource(kubevirt.VIRTUAL_MACHINES, VirtualMachine)
VMIS = _extended_resource(kubevirt.VIRTUAL_MACHINE_INSTANCES, VirtualMachineInstance)
INSTALLED_KUBEVIRTS = _extended_resource(kubevirt.KUBEVIRTS, KubeVirt)
MIGRATIONS = _extended_resource(kubevirt.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VirtualMachineInstanceMigration)


async def delete(client: ResourceClient[T], obj: T) -> None:
    """Deletes exactly this object. Raises Conflict (another one of its name), ApiError."""
    with contextlib.suppress(NotFound):
        await client.delete(name=obj.name, namespace=obj.namespace, uid=obj.uid)


async def write(client: ResourceClient[Any], obj: Object, patch: Patch, subresource: str = "") -> bool:
    """The merge patch of the object as it was seen; False when it was deleted meanwhile. Raises Conflict, ApiError."""
    with contextlib.suppress(NotFound):
        await client.patch(obj, patch, subresource=subresource)
        return True
    return False


def conditions(old: Sequence[Condition] | None, new: Sequence[Condition]) -> Patch:
    """Returns the status patch to these conditions; empty where they are there already."""
    return {} if list(old or ()) == list(new) else {"conditions": msgspec.to_builtins(new) or None}


def conditions_without(conditions: Sequence[Condition] | None, kind: str) -> list[Condition]:
    """The conditions but those of a type."""
    return [condition for condition in conditions or () if condition.type != kind]


def transitions(old: Iterable[PhaseTransition] | None, phases: Iterable[str], now: str) -> list[Any]:
    """Returns phaseTransitionTimestamps with these phases reached `now`; a phase that is in it keeps its time."""
    entries = list(old or ())
    known_phases = {entry.phase for entry in entries}
    entries += [PhaseTransition(phase=p, phase_transition_timestamp=now) for p in phases if p not in known_phases]
    result: list[Any] = msgspec.to_builtins(entries)
    return result


def replacement(old: Mapping[str, Any], new: Mapping[str, Any]) -> Patch:
    """The merge patch that turns one object into the other: what is gone becomes null."""
    return {**dict.fromkeys(old.keys() - new.keys()), **new}


def finalizers(obj: Object, name: str, *, present: bool = True) -> Patch:
    """Returns the metadata patch with this finalizer or without; empty where nothing changes."""
    current = obj.metadata.finalizers or []
    if (name in current) is present:
        return {}
    return {"finalizers": [*current, name] if present else [finalizer for finalizer in current if finalizer != name]}
