"""Written by `kubeloop structs`."""

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource


class ReplicaSpec(Struct):
    """ReplicaSpec defines the desired state of the Longhorn replica"""

    node_id: str | None = None
    volume_name: str | None = None


class ReplicaStatus(Struct):
    """ReplicaStatus defines the observed state of the Longhorn replica"""

    started: bool | None = None


class Replica(Object):
    """Replica is where Longhorn stores replica object."""

    spec: ReplicaSpec = ReplicaSpec()
    status: ReplicaStatus = ReplicaStatus()


class VolumeWorkloadsStatus(Struct):
    workload_name: str | None = None
    workload_type: str | None = None


class VolumeKubernetesStatus(Struct):
    namespace: str | None = None
    workloads_status: list[VolumeWorkloadsStatus] | None = None


class VolumeStatus(Struct):
    """VolumeStatus defines the observed state of the Longhorn volume"""

    kubernetes_status: VolumeKubernetesStatus | None = None


class Volume(Object):
    """Volume is where Longhorn stores volume object."""

    status: VolumeStatus = VolumeStatus()


REPLICAS = Resource("longhorn.io", "v1beta2", "replicas", "Replica", Replica, status_subresource=True)
VOLUMES = Resource("longhorn.io", "v1beta2", "volumes", "Volume", Volume, status_subresource=True)
