"""The handler, and what calls it."""

import json
import logging
import re

from examples.storageclass.kinds import (
    CDI,
    CDIS,
    STORAGE_PROFILES,
    VOLUME_SNAPSHOT_CLASSES,
    StorageProfile,
    StorageProfileClaimPropertySets,
    VolumeSnapshotClass,
)
from kubeloop.api.objects import edit
from kubeloop.api.registry import STORAGE_CLASSES
from kubeloop.api.workloads import StorageClass
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.factory import ControllerFactory

log = logging.getLogger(__name__)

_PREFIX = "cdi.harvesterhci.io/"
FILESYSTEM_OVERHEAD = _PREFIX + "filesystemOverhead"
CLONE_STRATEGY = _PREFIX + "storageProfileCloneStrategy"
SNAPSHOT_CLASS = _PREFIX + "storageProfileVolumeSnapshotClass"
ACCESS_MODES = _PREFIX + "storageProfileVolumeModeAccessModes"

_OVERHEAD = re.compile(r"^(0(?:\.\d{1,3})?|1)$")
_STRATEGIES = {"copy", "snapshot", "csi-clone"}
_VOLUME_MODES = {"Block", "Filesystem"}
_MODES = {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}

ClaimPropertySets = list[StorageProfileClaimPropertySets]


def register(management: ControllerFactory) -> None:
    classes = management.controller(STORAGE_CLASSES)
    profiles = management.controller(STORAGE_PROFILES)
    cdis = management.controller(CDIS)
    snapshot_classes = management.controller(VOLUME_SNAPSHOT_CLASSES).cache()
    handler = StorageClassHandler(cdis.client, cdis.cache(), profiles.client, profiles.cache(), snapshot_classes)
    classes.on_change("harvester-storage-class-controller", handler.on_changed)


class StorageClassHandler:
    def __init__(
        self,
        cdis: ResourceClient[CDI],
        cdi_cache: CacheReader[CDI],
        profiles: ResourceClient[StorageProfile],
        profile_cache: CacheReader[StorageProfile],
        snapshot_class_cache: CacheReader[VolumeSnapshotClass],
    ) -> None:
        self._cdis = cdis
        self._cdi_cache = cdi_cache
        self._profiles = profiles
        self._profile_cache = profile_cache
        self._snapshot_class_cache = snapshot_class_cache

    async def on_changed(self, key: str, storage_class: StorageClass | None) -> StorageClass | None:
        if storage_class is None or storage_class.deleting or is_longhorn_v1(storage_class):
            return storage_class
        await self._sync_cdi_settings(storage_class)
        await self._sync_storage_profile(storage_class)
        return storage_class

    async def _sync_cdi_settings(self, storage_class: StorageClass) -> None:
        """Copies the annotation's filesystem overhead to CDI's configuration; removes the entry without annotation."""
        name, overhead = storage_class.name, storage_class.annotations.get(FILESYSTEM_OVERHEAD)
        cdi = self._cdi_cache.get(name="cdi")
        if cdi is None:
            log.warning("storage class %s: there is no CDI, skipping update", name)
            return
        if overhead is not None and not _OVERHEAD.match(overhead):
            log.warning("storage class %s: invalid filesystem overhead %s, skipping update", name, overhead)
            return
        config = cdi.spec.config
        overheads = (config and config.filesystem_overhead and config.filesystem_overhead.storage_class) or {}
        new_overheads = {class_name: value for class_name, value in overheads.items() if class_name != name}
        new_overheads |= {} if overhead is None else {name: overhead}
        if new_overheads != overheads:
            new = edit(cdi, spec={"config": {"filesystem_overhead": {"storage_class": new_overheads}}})
            await self._cdis.update(cdi, new)

    async def _sync_storage_profile(self, storage_class: StorageClass) -> None:
        """Writes the annotations into the storage profile, which CDI creates soon after the storage class. A field
        without annotation is removed."""
        profile = self._profile_cache.get(name=storage_class.name)
        if profile is None:
            raise RetryAfter(1.0, f"no StorageProfile {storage_class.name} yet")
        annotations = storage_class.annotations
        strategy, snapshot_class = annotations.get(CLONE_STRATEGY), annotations.get(SNAPSHOT_CLASS)
        if strategy is not None and strategy not in _STRATEGIES:
            raise ValueError(f"invalid clone strategy {strategy}")
        if snapshot_class is not None:
            self._snapshot_class_cache.require(name=snapshot_class)
        sets = claim_property_sets(annotations[ACCESS_MODES]) if ACCESS_MODES in annotations else None
        if sets is not None and are_equal(sets, profile.spec.claim_property_sets):
            sets = profile.spec.claim_property_sets
        spec = {"clone_strategy": strategy, "snapshot_class": snapshot_class, "claim_property_sets": sets}
        await self._profiles.update(profile, edit(profile, spec=spec))


def is_longhorn_v1(storage_class: StorageClass) -> bool:
    engine = (storage_class.parameters or {}).get("dataEngine")
    return storage_class.provisioner == "driver.longhorn.io" and engine == "v1"


def claim_property_sets(text: str) -> ClaimPropertySets:
    """Decodes JSON, an object from volume mode to access modes. Raises ValueError."""
    modes_by_volume_mode: dict[str, list[str]] = json.loads(text)
    if unknown := [
        *modes_by_volume_mode.keys() - _VOLUME_MODES,
        *{mode for modes in modes_by_volume_mode.values() for mode in modes} - _MODES,
    ]:
        raise ValueError(f"{ACCESS_MODES}: unknown mode {unknown[0]}")
    return [
        StorageProfileClaimPropertySets(volume_mode=m, access_modes=modes) for m, modes in modes_by_volume_mode.items()
    ]


def are_equal(a: ClaimPropertySets | None, b: ClaimPropertySets | None) -> bool:
    """Reports whether two lists of property sets are equal, in any order."""
    first_sets, second_sets = (
        sorted((property_set.volume_mode, sorted(property_set.access_modes)) for property_set in sets or ())
        for sets in (a, b)
    )
    return first_sets == second_sets
