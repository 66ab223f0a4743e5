"""Resource: a kind's group, version, plural and type. Paths are built here and nowhere else.

The kinds of Kubernetes stand here; those of an add-on stand beside their structs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from kubeloop.api import access, admissionregistration, core, devices, events, workloads
from kubeloop.api.meta import Object, PartialObjectMetadata

T = TypeVar("T", bound=Object)

BY_TYPE: dict[type, Resource[Any]] = {}
"""Every Resource by the type that its objects decode into; the first definition of a type stays."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One REST resource: where it lives and what its objects decode into.

    `status_subresource`: whether status is written through the subresource alone, or there is none; writes the other
    way are refused at once. None: not known, the API server decides."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True
    status_subresource: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        BY_TYPE.setdefault(self.type, self)

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """`plural`, or `plural.group`, as the API server's messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def metadata(self) -> Resource[PartialObjectMetadata]:
        """The same, of whose objects clients ask for the metadata alone."""
        return replace(self, type=PartialObjectMetadata)  # type: ignore[return-value,arg-type]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, an object or its subresource."""
        parts = ["/apis", self.group] if self.group else ["/api"]
        parts.append(self.version)
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def kind_of(obj: Object) -> tuple[str, str]:
    """apiVersion and kind. Raises ValueError for an object that says none and whose type stands in no registry."""
    if obj.api_version and obj.kind:
        return obj.api_version, obj.kind
    resource = BY_TYPE.get(type(obj))
    if resource is None:
        raise ValueError(f"{type(obj).__name__} {obj.key} has no kind and is not in the registry")
    return resource.api_version, resource.kind


def _cluster_wide(group: str, plural: str, kind: type[T], status: bool | None = None) -> Resource[T]:
    """A kind without namespaces, in its group's v1, of its struct's name."""
    return Resource(group, "v1", plural, kind.__name__, kind, namespaced=False, status_subresource=status)


NAMESPACES = _cluster_wide("", "namespaces", core.Namespace, True)
NODES = _cluster_wide("", "nodes", core.Node, True)
PODS = Resource("", "v1", "pods", "Pod", core.Pod, status_subresource=True)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", core.ResourceQuota, status_subresource=True)
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange", core.LimitRange, status_subresource=False)
PERSISTENT_VOLUME_CLAIMS = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", core.PersistentVolumeClaim, status_subresource=True
)
RESOURCE_CLAIMS = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", devices.ResourceClaim, status_subresource=True
)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", core.ConfigMap, status_subresource=False)
SECRETS = Resource("", "v1", "secrets", "Secret", core.Secret, status_subresource=False)
EVENTS = Resource("", "v1", "events", "Event", core.Event, status_subresource=False)
EVENTS_V1 = Resource("events.k8s.io", "v1", "events", "Event", events.Event, status_subresource=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", workloads.Deployment, status_subresource=True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", workloads.StatefulSet, status_subresource=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", workloads.DaemonSet, status_subresource=True)
JOBS = Resource("batch", "v1", "jobs", "Job", workloads.Job, status_subresource=True)
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob", workloads.CronJob, status_subresource=True)
SERVICES = Resource("", "v1", "services", "Service", workloads.Service, status_subresource=True)
ENDPOINT_SLICES = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", workloads.EndpointSlice, status_subresource=False
)
POD_DISRUPTION_BUDGETS = Resource(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    workloads.PodDisruptionBudget,
    status_subresource=True,
)
PERSISTENT_VOLUMES = _cluster_wide("", "persistentvolumes", workloads.PersistentVolume, True)
SERVICE_ACCOUNTS = Resource(
    "", "v1", "serviceaccounts", "ServiceAccount", access.ServiceAccount, status_subresource=False
)
_RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(_RBAC, "v1", "roles", "Role", access.Role, status_subresource=False)
ROLE_BINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding", access.RoleBinding, status_subresource=False)
CLUSTER_ROLES = _cluster_wide(_RBAC, "clusterroles", access.ClusterRole, False)
CLUSTER_ROLE_BINDINGS = _cluster_wide(_RBAC, "clusterrolebindings", access.ClusterRoleBinding, False)
SUBJECT_ACCESS_REVIEWS = _cluster_wide(
    "authorization.k8s.io", "subjectaccessreviews", access.SubjectAccessReview, False
)
SELF_SUBJECT_ACCESS_REVIEWS = _cluster_wide(
    "authorization.k8s.io", "selfsubjectaccessreviews", access.SelfSubjectAccessReview, False
)
TOKEN_REVIEWS = _cluster_wide("authentication.k8s.io", "tokenreviews", access.TokenReview, False)
STORAGE_CLASSES = _cluster_wide("storage.k8s.io", "storageclasses", workloads.StorageClass, False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", core.Lease, status_subresource=False)
CUSTOM_RESOURCE_DEFINITIONS = _cluster_wide(
    "apiextensions.k8s.io", "customresourcedefinitions", core.CustomResourceDefinition, True
)
_ADMISSION = "admissionregistration.k8s.io"
VALIDATING_WEBHOOK_CONFIGURATIONS = _cluster_wide(
    _ADMISSION, "validatingwebhookconfigurations", admissionregistration.ValidatingWebhookConfiguration, False
)
MUTATING_WEBHOOK_CONFIGURATIONS = _cluster_wide(
    _ADMISSION, "mutatingwebhookconfigurations", admissionregistration.MutatingWebhookConfiguration, False
)
VALIDATING_ADMISSION_POLICIES = _cluster_wide(
    _ADMISSION, "validatingadmissionpolicies", admissionregistration.ValidatingAdmissionPolicy
)
VALIDATING_ADMISSION_POLICY_BINDINGS = _cluster_wide(
    _ADMISSION, "validatingadmissionpolicybindings", admissionregistration.ValidatingAdmissionPolicyBinding
)
