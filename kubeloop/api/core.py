"""core/v1, where a class does not say otherwise, and a few kinds beside it: the fields in use."""

from typing import Any, ClassVar, Literal

import msgspec

from kubeloop.api.meta import Condition, LabelSelector, Object, RawResourceList, Struct


class Namespace(Object):
    pass


class ScopedResourceSelectorRequirement(Struct):
    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None


class ScopeSelector(Struct):
    match_expressions: list[ScopedResourceSelectorRequirement] | None = None


class ResourceQuotaSpec(Struct):
    hard: RawResourceList | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Struct):
    hard: RawResourceList | None = None
    used: RawResourceList | None = None


class ResourceQuota(Object):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()

    @property
    def hard(self) -> RawResourceList:
        return self.spec.hard or {}

    @property
    def used(self) -> RawResourceList:
        return self.status.used or {}


class ResourceRequirements(Struct):
    limits: RawResourceList | None = None
    requests: RawResourceList | None = None


class Container(Struct):
    name: str = ""
    image: str | None = None
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class PodAffinityTerm(Struct):
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(Struct):
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Struct):
    """core/v1 PodAffinity and PodAntiAffinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] | None = None


class Affinity(Struct):
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodSchedulingGate(Struct):
    name: str = ""


class PodResourceClaim(Struct):
    name: str = ""
    template: str | None = msgspec.field(default=None, name="resourceClaimTemplateName")


class PodResourceClaimStatus(Struct):
    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(Struct):
    containers: list[Container] = msgspec.field(default_factory=list)
    init_containers: list[Container] | None = None
    node_name: str | None = None
    overhead: RawResourceList | None = None
    runtime_class_name: str | None = None
    resources: ResourceRequirements | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None
    affinity: Affinity | None = None
    restart_policy: str | None = None
    scheduling_gates: list[PodSchedulingGate] | None = None
    resource_claims: list[PodResourceClaim] | None = None


class ContainerStatus(Struct):
    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: RawResourceList | None = None


class PodStatus(Struct):
    phase: str | None = None
    reason: str | None = None
    qos_class: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None


class Pod(Object):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def terminal(self) -> bool:
        """Reports whether the pod's phase is Succeeded or Failed: quota counts every other pod."""
        return self.status.phase in ("Succeeded", "Failed")


class PersistentVolumeClaimSpec(Struct):
    access_modes: list[str] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str | None = None


class PersistentVolumeClaimStatus(Struct):
    access_modes: list[str] | None = None
    allocated_resources: RawResourceList | None = None
    capacity: RawResourceList | None = None
    phase: str | None = None


class PersistentVolumeClaim(Object):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class LimitRangeItem(Struct):
    type: str = ""
    max: RawResourceList | None = None
    min: RawResourceList | None = None
    default: RawResourceList | None = None
    default_request: RawResourceList | None = None


class LimitRangeSpec(Struct):
    limits: list[LimitRangeItem] = msgspec.field(default_factory=list)


class LimitRange(Object):
    spec: LimitRangeSpec = LimitRangeSpec()


class RuntimeClassOverhead(Struct):
    pod_fixed: RawResourceList | None = None


class RuntimeClass(Object):
    """node.k8s.io/v1 RuntimeClass, cluster scoped."""

    overhead: RuntimeClassOverhead = RuntimeClassOverhead()


class Taint(Struct):
    whole: ClassVar[bool] = True

    key: str = ""
    value: str | None = None
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Struct):
    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(Struct):
    allocatable: RawResourceList | None = None
    conditions: list[Condition] | None = None


class Node(Object):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ConfigMap(Object):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(Object):
    """core/v1 Secret; values are base64 on the wire."""

    data: dict[str, str] | None = None
    type: str | None = None


class ObjectReference(Struct):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class EventSource(Struct):
    component: str = ""


EventType = Literal["Normal", "Warning"]
"""A Warning asks for attention. The API server refuses other types."""


class Event(Object):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    source: EventSource = EventSource()


class CustomResourceDefinitionStatus(Struct):
    conditions: list[Condition] | None = None


class CustomResourceDefinition(Object):
    """apiextensions.k8s.io/v1 CustomResourceDefinition: only whether it is established."""

    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()


class LeaseSpec(Struct):
    """coordination.k8s.io/v1 LeaseSpec. Its times are for people: they are never compared with another clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object):
    spec: LeaseSpec = LeaseSpec()


class DeviceSubRequest(Struct):
    """resource.k8s.io ExactDeviceRequest and DeviceSubRequest: how many devices of a class."""

    device_class_name: str = ""
    allocation_mode: str = ""
    count: int | None = None


class DeviceRequest(DeviceSubRequest):
    """resource.k8s.io DeviceRequest: exact, or one of several; v1beta1 has the exact one's fields here."""

    exactly: DeviceSubRequest | None = None
    first_available: list[DeviceSubRequest] | None = None


class DeviceClaim(Struct):
    requests: list[DeviceRequest] | None = None


class ResourceClaimSpec(Struct):
    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(Object):
    """resource.k8s.io ResourceClaim, v1 and its betas: what a quota counts of it."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class ValidatingWebhookConfiguration(Object):
    """admissionregistration.k8s.io/v1: webhooks and policies stay as they are on the wire, they are compared whole."""

    webhooks: list[dict[str, Any]] | None = None


class MutatingWebhookConfiguration(Object):
    webhooks: list[dict[str, Any]] | None = None


class ValidatingAdmissionPolicy(Object):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class ValidatingAdmissionPolicyBinding(Object):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
