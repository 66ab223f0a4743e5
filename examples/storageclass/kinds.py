"""Written by `kubeloop structs`."""

from typing import ClassVar

import msgspec

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource


class StorageProfileClaimPropertySets(Struct):
    """ClaimPropertySet is a set of properties applicable to PVC"""

    whole: ClassVar[bool] = True

    access_modes: list[str] = msgspec.field(default_factory=list)
    volume_mode: str = ""


class StorageProfileSpec(Struct):
    """StorageProfileSpec defines specification for StorageProfile"""

    whole: ClassVar[bool] = True

    claim_property_sets: list[StorageProfileClaimPropertySets] | None = None
    clone_strategy: str | None = None
    data_import_cron_source_format: str | None = None
    snapshot_class: str | None = None


class StorageProfile(Object):
    """StorageProfile provides a CDI specific recommendation for storage parameters"""

    spec: StorageProfileSpec = StorageProfileSpec()


class CDIFilesystemOverhead(Struct):
    """FilesystemOverhead describes the space reserved for overhead when using…"""

    whole: ClassVar[bool] = True

    global_: str | None = None
    storage_class: dict[str, str] | None = None


class CDIConfig(Struct):
    """CDIConfig at CDI level"""

    filesystem_overhead: CDIFilesystemOverhead | None = None


class CDISpec(Struct):
    """CDISpec defines our specification for the CDI installation"""

    config: CDIConfig | None = None


class CDI(Object):
    """CDI is the CDI Operator CRD"""

    spec: CDISpec = CDISpec()


class VolumeSnapshotClass(Object):
    """VolumeSnapshotClass specifies parameters that a underlying storage system…"""

    driver: str = ""


STORAGE_PROFILES = Resource(
    "cdi.kubevirt.io",
    "v1beta1",
    "storageprofiles",
    "StorageProfile",
    StorageProfile,
    namespaced=False,
    status_subresource=True,
)
CDIS = Resource("cdi.kubevirt.io", "v1beta1", "cdis", "CDI", CDI, namespaced=False, status_subresource=False)
VOLUME_SNAPSHOT_CLASSES = Resource(
    "snapshot.storage.k8s.io",
    "v1",
    "volumesnapshotclasses",
    "VolumeSnapshotClass",
    VolumeSnapshotClass,
    namespaced=False,
    status_subresource=False,
)
