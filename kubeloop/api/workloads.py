"""Kinds of apps, batch and storage, and Service: the fields that controllers look at."""

from __future__ import annotations

from typing import ClassVar

from kubeloop.api.meta import Condition, LabelSelector, Object, Struct


class DeploymentSpec(Struct):
    """DeploymentSpec is the specification of the desired behavior of the…"""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()


class DeploymentStatus(Struct):
    """DeploymentStatus is the most recently observed status of the Deployment."""

    available_replicas: int | None = None
    conditions: list[Condition] | None = None
    observed_generation: int | None = None
    ready_replicas: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None


class Deployment(Object):
    """Deployment enables declarative updates for Pods and ReplicaSets."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class DaemonSetSpec(Struct):
    """DaemonSetSpec is the specification of a daemon set."""

    selector: LabelSelector = LabelSelector()


class DaemonSetStatus(Struct):
    """DaemonSetStatus represents the current status of a daemon set."""

    conditions: list[Condition] | None = None
    desired_number_scheduled: int = 0
    number_available: int | None = None
    number_ready: int = 0
    observed_generation: int | None = None
    updated_number_scheduled: int | None = None


class DaemonSet(Object):
    """DaemonSet represents the configuration of a daemon set."""

    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class JobSpec(Struct):
    """JobSpec describes how the job execution will look like."""

    backoff_limit: int | None = None
    completions: int | None = None
    parallelism: int | None = None
    suspend: bool | None = None


class JobStatus(Struct):
    """JobStatus represents the current state of a Job."""

    active: int | None = None
    completion_time: str | None = None
    conditions: list[Condition] | None = None
    failed: int | None = None
    start_time: str | None = None
    succeeded: int | None = None


class Job(Object):
    """Job represents the configuration of a single job."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJobSpec(Struct):
    """CronJobSpec describes how the job execution will look like and when it…"""

    concurrency_policy: str | None = None
    schedule: str = ""
    suspend: bool | None = None


class CronJobStatus(Struct):
    """CronJobStatus represents the current state of a cron job."""

    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Object):
    """CronJob represents the configuration of a single cron job."""

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


class ServicePort(Struct):
    """ServicePort contains information on service's port."""

    whole: ClassVar[bool] = True

    app_protocol: str | None = None
    name: str | None = None
    node_port: int | None = None
    port: int = 0
    protocol: str | None = None
    target_port: int | str | None = None


class ServiceSpec(Struct):
    """ServiceSpec describes the attributes that a user creates on a service."""

    cluster_ip: str | None = None
    ports: list[ServicePort] | None = None
    selector: dict[str, str] | None = None
    type: str | None = None


class LoadBalancerIngress(Struct):
    """LoadBalancerIngress represents the status of a load-balancer ingress…"""

    hostname: str | None = None
    ip: str | None = None


class LoadBalancerStatus(Struct):
    """LoadBalancerStatus represents the status of a load-balancer."""

    whole: ClassVar[bool] = True

    ingress: list[LoadBalancerIngress] | None = None


class ServiceStatus(Struct):
    """ServiceStatus represents the current status of a service."""

    load_balancer: LoadBalancerStatus | None = None


class Service(Object):
    """Service is a named abstraction of software service (for example, mysql)…"""

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class StorageClass(Object):
    """StorageClass describes the parameters for a class of storage for which…"""

    allow_volume_expansion: bool | None = None
    parameters: dict[str, str] | None = None
    provisioner: str = ""
    reclaim_policy: str | None = None
    volume_binding_mode: str | None = None
