"""Kinds of apps, batch, policy, discovery, storage, access control and events.k8s.io, Service and ServiceAccount: the
fields that controllers look at. Reviews, which answer questions about access, are created, never kept."""

from typing import ClassVar

from kubeloop.api.core import ObjectReference
from kubeloop.api.meta import Condition, LabelSelector, Object, RawResourceList, Struct


class DeploymentSpec(Struct):
    replicas: int | None = None
    selector: LabelSelector = LabelSelector()


class DeploymentStatus(Struct):
    available_replicas: int | None = None
    conditions: list[Condition] | None = None
    observed_generation: int | None = None
    ready_replicas: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None


class Deployment(Object):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class DaemonSetSpec(Struct):
    selector: LabelSelector = LabelSelector()


class DaemonSetStatus(Struct):
    conditions: list[Condition] | None = None
    desired_number_scheduled: int = 0
    number_available: int | None = None
    number_ready: int = 0
    observed_generation: int | None = None
    updated_number_scheduled: int | None = None


class DaemonSet(Object):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class JobSpec(Struct):
    backoff_limit: int | None = None
    completions: int | None = None
    parallelism: int | None = None
    suspend: bool | None = None


class JobStatus(Struct):
    active: int | None = None
    completion_time: str | None = None
    conditions: list[Condition] | None = None
    failed: int | None = None
    start_time: str | None = None
    succeeded: int | None = None


class Job(Object):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJobSpec(Struct):
    concurrency_policy: str | None = None
    schedule: str = ""
    suspend: bool | None = None


class CronJobStatus(Struct):
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Object):
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


class ServicePort(Struct):
    whole: ClassVar[bool] = True

    app_protocol: str | None = None
    name: str | None = None
    node_port: int | None = None
    port: int = 0
    protocol: str | None = None
    target_port: int | str | None = None


class ServiceSpec(Struct):
    cluster_ip: str | None = None
    ports: list[ServicePort] | None = None
    selector: dict[str, str] | None = None
    type: str | None = None


class LoadBalancerIngress(Struct):
    hostname: str | None = None
    ip: str | None = None


class LoadBalancerStatus(Struct):
    whole: ClassVar[bool] = True

    ingress: list[LoadBalancerIngress] | None = None


class ServiceStatus(Struct):
    load_balancer: LoadBalancerStatus | None = None


class Service(Object):
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class StorageClass(Object):
    allow_volume_expansion: bool | None = None
    parameters: dict[str, str] | None = None
    provisioner: str = ""
    reclaim_policy: str | None = None
    volume_binding_mode: str | None = None


class StatefulSetSpec(DeploymentSpec):
    service_name: str | None = None


class StatefulSetStatus(Struct):
    available_replicas: int | None = None
    conditions: list[Condition] | None = None
    current_revision: str | None = None
    observed_generation: int | None = None
    ready_replicas: int | None = None
    replicas: int = 0
    update_revision: str | None = None
    updated_replicas: int | None = None


class StatefulSet(Object):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class PodDisruptionBudgetSpec(Struct):
    max_unavailable: int | str | None = None
    min_available: int | str | None = None
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Struct):
    conditions: list[Condition] | None = None
    current_healthy: int = 0
    desired_healthy: int = 0
    disruptions_allowed: int = 0
    expected_pods: int = 0
    observed_generation: int | None = None


class PodDisruptionBudget(Object):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class EndpointConditions(Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(Struct):
    addresses: list[str] | None = None
    conditions: EndpointConditions | None = None
    hostname: str | None = None
    node_name: str | None = None
    target_ref: ObjectReference | None = None
    zone: str | None = None


class EndpointPort(Struct):
    whole: ClassVar[bool] = True

    app_protocol: str | None = None
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Object):
    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None


class PersistentVolumeSpec(Struct):
    access_modes: list[str] | None = None
    capacity: RawResourceList | None = None
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None


class PersistentVolumeStatus(Struct):
    message: str | None = None
    phase: str | None = None
    reason: str | None = None


class PersistentVolume(Object):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class LocalObjectReference(Struct):
    whole: ClassVar[bool] = True

    name: str = ""


class ServiceAccount(Object):
    automount_service_account_token: bool | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None


class PolicyRule(Struct):
    whole: ClassVar[bool] = True

    verbs: list[str] | None = None
    api_groups: list[str] | None = None
    resources: list[str] | None = None
    resource_names: list[str] | None = None
    non_resource_urls: list[str] | None = None


class Role(Object):
    rules: list[PolicyRule] | None = None


class ClusterRole(Role):
    pass


class Subject(Struct):
    whole: ClassVar[bool] = True

    kind: str = ""
    api_group: str | None = None
    name: str = ""
    namespace: str | None = None


class RoleRef(Struct):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class RoleBinding(Object):
    subjects: list[Subject] | None = None
    role_ref: RoleRef = RoleRef()


class ClusterRoleBinding(RoleBinding):
    pass


class SubjectAccessReviewStatus(Struct):
    allowed: bool = False
    denied: bool | None = None
    reason: str | None = None
    evaluation_error: str | None = None


class SubjectAccessReview(Object):
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class SelfSubjectAccessReview(SubjectAccessReview):
    """authorization.k8s.io/v1: whether this client may do something."""


class EventSeries(Struct):
    count: int = 0
    last_observed_time: str = ""


class Event(Object):
    """events.k8s.io/v1 Event: `action` is what was done about `regarding`, `related` another object that took part."""

    event_time: str | None = None
    type: str = ""
    reason: str = ""
    action: str = ""
    note: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    series: EventSeries | None = None
