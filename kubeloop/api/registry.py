"""Resource: a kind's group, version, plural and type; Kubernetes' own kinds. Paths are built here and nowhere else."""

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from kubeloop.api import core, workloads
from kubeloop.api.meta import Object, PartialObjectMetadata

T = TypeVar("T", bound=Object)
BY_TYPE: "dict[type, Resource[Any]]" = {}
"""Every Resource by the type that its objects decode into; the first definition of a type stays."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A REST resource: its path in the API and the type that its objects decode into. `status_subresource`: whether
    status is written through the subresource alone, or there is none; None: not known, discovery is asked."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True
    status_subresource: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.type not in (Object, PartialObjectMetadata):  # those are of any kind
            BY_TYPE.setdefault(self.type, self)

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """`plural`, or `plural.group`, as the API server's messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def metadata(self) -> "Resource[PartialObjectMetadata]":
        """The same kind, of whose objects the metadata alone is sent and cached (client-go's metadata informers)."""
        return replace(self, type=PartialObjectMetadata)  # type: ignore[return-value,arg-type]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = ("/apis", self.group) if self.group else ("/api",)
        parent = ("namespaces", namespace) if namespace and self.namespaced else ()
        return "/".join((*root, self.version, *parent, self.plural, *filter(None, (name, subresource))))


def kind_of(obj: Object) -> tuple[str, str]:
    """Returns apiVersion and kind. Raises ValueError for an object without them whose type is in no registry."""
    if obj.api_version and obj.kind:
        return obj.api_version, obj.kind
    resource = BY_TYPE.get(type(obj))
    if resource is None:
        raise ValueError(f"{type(obj).__name__} {obj.key} has no kind and no Resource: define one of its type")
    return resource.api_version, resource.kind


def _namespaced(group: str, kind: type[T], status: bool | None = None, *, namespaced: bool = True) -> Resource[T]:
    """A kind in its group's v1, of its struct's name; its plural as Kubernetes makes it (UnsafeGuessKindToResource)."""
    name = kind.__name__.lower()
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"
    return Resource(group, "v1", plural, kind.__name__, kind, namespaced, status)


def _cluster_wide(group: str, kind: type[T], status: bool | None = None) -> Resource[T]:
    return _namespaced(group, kind, status, namespaced=False)


NAMESPACES = _cluster_wide("", core.Namespace, True)
NODES = _cluster_wide("", core.Node, True)
PODS = _namespaced("", core.Pod, True)
RESOURCE_QUOTAS = _namespaced("", core.ResourceQuota, True)
LIMIT_RANGES = _namespaced("", core.LimitRange, False)
PERSISTENT_VOLUME_CLAIMS = _namespaced("", core.PersistentVolumeClaim, True)
RESOURCE_CLAIMS = _namespaced("resource.k8s.io", core.ResourceClaim, True)
CONFIG_MAPS = _namespaced("", core.ConfigMap, False)
SECRETS = _namespaced("", core.Secret, False)
EVENTS = _namespaced("", core.Event, False)
EVENTS_V1 = _namespaced("events.k8s.io", workloads.Event, False)
DEPLOYMENTS = _namespaced("apps", workloads.Deployment, True)
STATEFUL_SETS = _namespaced("apps", workloads.StatefulSet, True)
DAEMON_SETS = _namespaced("apps", workloads.DaemonSet, True)
JOBS = _namespaced("batch", workloads.Job, True)
CRON_JOBS = _namespaced("batch", workloads.CronJob, True)
SERVICES = _namespaced("", workloads.Service, True)
ENDPOINT_SLICES = _namespaced("discovery.k8s.io", workloads.EndpointSlice, False)
POD_DISRUPTION_BUDGETS = _namespaced("policy", workloads.PodDisruptionBudget, True)
PERSISTENT_VOLUMES = _cluster_wide("", workloads.PersistentVolume, True)
SERVICE_ACCOUNTS = _namespaced("", workloads.ServiceAccount, False)
_RBAC = "rbac.authorization.k8s.io"
ROLES = _namespaced(_RBAC, workloads.Role, False)
ROLE_BINDINGS = _namespaced(_RBAC, workloads.RoleBinding, False)
CLUSTER_ROLES = _cluster_wide(_RBAC, workloads.ClusterRole, False)
CLUSTER_ROLE_BINDINGS = _cluster_wide(_RBAC, workloads.ClusterRoleBinding, False)
SUBJECT_ACCESS_REVIEWS = _cluster_wide("authorization.k8s.io", workloads.SubjectAccessReview, False)
SELF_SUBJECT_ACCESS_REVIEWS = _cluster_wide("authorization.k8s.io", workloads.SelfSubjectAccessReview, False)
STORAGE_CLASSES = _cluster_wide("storage.k8s.io", workloads.StorageClass, False)
LEASES = _namespaced("coordination.k8s.io", core.Lease, False)
CUSTOM_RESOURCE_DEFINITIONS = _cluster_wide("apiextensions.k8s.io", core.CustomResourceDefinition, True)
_ADMISSION = "admissionregistration.k8s.io"
VALIDATING_WEBHOOK_CONFIGURATIONS = _cluster_wide(_ADMISSION, core.ValidatingWebhookConfiguration, False)
MUTATING_WEBHOOK_CONFIGURATIONS = _cluster_wide(_ADMISSION, core.MutatingWebhookConfiguration, False)
VALIDATING_ADMISSION_POLICIES = _cluster_wide(_ADMISSION, core.ValidatingAdmissionPolicy)
VALIDATING_ADMISSION_POLICY_BINDINGS = _cluster_wide(_ADMISSION, core.ValidatingAdmissionPolicyBinding)
