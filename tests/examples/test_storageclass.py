"""The ported `storageclass` controller: upstream's tables (storage_class_controller_test.go)."""

from typing import Any

import msgspec
import pytest

from examples.storageclass.controller import (
    ACCESS_MODES,
    CLONE_STRATEGY,
    FILESYSTEM_OVERHEAD,
    SNAPSHOT_CLASS,
    ClaimPropertySets,
    are_equal,
    register,
)
from examples.storageclass.kinds import CDIS, STORAGE_PROFILES, VOLUME_SNAPSHOT_CLASSES, StorageProfileClaimPropertySets
from kubeloop.api.registry import STORAGE_CLASSES
from kubeloop.client.client import Client
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import settle, virtual_time

KINDS = (STORAGE_CLASSES, STORAGE_PROFILES, CDIS, VOLUME_SNAPSHOT_CLASSES)
RWO, ROX, RWX = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"


def sets(*pairs: tuple[str, list[str]]) -> ClaimPropertySets:
    return [StorageProfileClaimPropertySets(volume_mode=mode, access_modes=modes) for mode, modes in pairs]


TWO = sets(("Block", [RWO, ROX]), ("Filesystem", [RWX]))
EQUAL: dict[str, tuple[ClaimPropertySets | None, ClaimPropertySets | None, bool]] = {
    "identical sets, same order": (TWO, list(TWO), True),
    "identical sets, different order": (sets(("Filesystem", [RWX]), ("Block", [ROX, RWO])), TWO, True),
    "different access modes": (sets(("Block", [RWO])), sets(("Block", [ROX])), False),
    "different volume modes": (sets(("Block", [RWO])), sets(("Filesystem", [RWO])), False),
    "empty sets": (None, None, True),
    "one empty, one not": (None, sets(("Block", [RWO])), False),
    "access modes different order": (sets(("Block", [ROX, RWO])), sets(("Block", [RWO, ROX])), True),
}


@pytest.mark.parametrize("case", EQUAL)
def test_compare_claim_property_sets(case: str) -> None:
    a, b, expected = EQUAL[case]
    assert are_equal(a, b) is expected


BLOCK = {"volumeMode": "Block", "accessModes": [RWO]}
FILES = {"volumeMode": "Filesystem", "accessModes": [RWX]}
# upstream's name: annotations, spec of the profile before -> after (None: an error, the profile as it was)
PROFILES: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any] | None]] = {
    "update clone strategy": ({CLONE_STRATEGY: "snapshot"}, {}, {"cloneStrategy": "snapshot"}),
    "remove clone strategy": ({}, {"cloneStrategy": "snapshot"}, {}),
    "update snapshot class": ({SNAPSHOT_CLASS: "snapclass"}, {}, {"snapshotClass": "snapclass"}),
    "skip update if snapshot class not found": ({SNAPSHOT_CLASS: "another"}, {}, None),
    "remove snapshot class": ({}, {"snapshotClass": "snapclass"}, {}),
    "update claim property sets": (
        {ACCESS_MODES: '{"Block":["ReadWriteOnce"]}'},
        {"claimPropertySets": [FILES]},
        {"claimPropertySets": [BLOCK]},
    ),
    "remove claim property sets": ({}, {"claimPropertySets": [BLOCK, FILES]}, {}),
    "invalid claim property sets json": ({ACCESS_MODES: "not-a-json"}, {}, None),
    "a clone strategy that is none": ({CLONE_STRATEGY: "other"}, {}, None),
    "equal claim property sets stay": (
        {ACCESS_MODES: '{"Filesystem":["ReadWriteMany"],"Block":["ReadWriteOnce"]}'},
        {"claimPropertySets": [BLOCK, FILES]},
        {"claimPropertySets": [BLOCK, FILES]},
    ),
}


async def handled(cluster: FakeCluster, annotations: dict[str, str], **fields: Any) -> list[str]:
    """The patches' kinds, once the controller has handled a storage class `sc`."""
    cluster.put(STORAGE_CLASSES, {"metadata": {"name": "sc", "annotations": annotations}, **fields})
    cluster.put(VOLUME_SNAPSHOT_CLASSES, {"metadata": {"name": "snapclass"}})
    management = ControllerFactory(cluster.client())
    register(management)
    await management.start()
    await settle()
    await management.stop()
    return [request.plural for request in cluster.requests if request.verb == "patch"]


def spec_of(cluster: FakeCluster, kind: Any, name: str) -> Any:
    (obj,) = (candidate for candidate in cluster.all(kind) if candidate.name == name)
    return msgspec.to_builtins(obj.spec)


@virtual_time
@pytest.mark.parametrize("case", PROFILES)
async def test_sync_storage_profile(case: str) -> None:
    annotations, spec_before, spec_after = PROFILES[case]
    cluster = FakeCluster(*KINDS)
    cluster.put(STORAGE_PROFILES, {"metadata": {"name": "sc"}, "spec": spec_before})
    patched = await handled(cluster, annotations)
    assert spec_of(cluster, STORAGE_PROFILES, "sc") == (spec_before if spec_after is None else spec_after)
    assert (patched == []) is (spec_after in (None, spec_before))


def overhead(**classes: str) -> dict[str, Any]:
    return {"config": {"filesystemOverhead": {"storageClass": classes}}}


# upstream's name: annotations, spec of the CDI before -> after
SETTINGS: dict[str, tuple[dict[str, str], dict[str, Any] | None, dict[str, Any]]] = {
    "CDI not found should skip": ({}, None, {}),
    "invalid filesystem overhead annotation should skip update": ({FILESYSTEM_OVERHEAD: "1.2345"}, {}, {}),
    "valid filesystem overhead triggers update": ({FILESYSTEM_OVERHEAD: "0.85"}, {}, overhead(sc="0.85")),
    "valid filesystem overhead when annotation missing (cdi storage class map is nil)": (
        {FILESYSTEM_OVERHEAD: "0.85"},
        {"config": {"filesystemOverhead": {}}},
        overhead(sc="0.85"),
    ),
    "remove filesystem overhead when annotation missing": ({}, overhead(sc="0.85", x="1"), overhead(x="1")),
}


@virtual_time
@pytest.mark.parametrize("case", SETTINGS)
async def test_sync_cdi_settings(case: str) -> None:
    annotations, spec_before, spec_after = SETTINGS[case]
    cluster = FakeCluster(*KINDS)
    if spec_before is not None:
        cluster.put(CDIS, {"metadata": {"name": "cdi"}, "spec": spec_before})
    patched = await handled(cluster, annotations)
    assert patched == ([] if spec_before in (None, spec_after) else ["cdis"])
    if spec_before is not None:
        assert spec_of(cluster, CDIS, "cdi") == spec_after


@virtual_time
async def test_sync_cdi_leaves_longhorn_v1_alone() -> None:
    cluster = FakeCluster(*KINDS)
    cluster.put(CDIS, {"metadata": {"name": "cdi"}})
    fields = {"provisioner": "driver.longhorn.io", "parameters": {"dataEngine": "v1"}}
    assert await handled(cluster, {FILESYSTEM_OVERHEAD: "0.85"}, **fields) == []


async def scenario(client: Client) -> None:
    """The profile comes after its storage class."""
    management = ControllerFactory(client)
    register(management)
    await management.start()
    annotations = {
        FILESYSTEM_OVERHEAD: "0.85",
        CLONE_STRATEGY: "snapshot",
        ACCESS_MODES: '{"Filesystem":["ReadWriteMany"]}',
    }
    metadata = {"name": "sc", "annotations": annotations}
    cdis, profiles = client.resource(CDIS), client.resource(STORAGE_PROFILES)
    await cdis.create({"metadata": {"name": "cdi"}, "spec": {}})
    await client.resource(STORAGE_CLASSES).create({"metadata": metadata, "provisioner": "example.org/none"})
    await profiles.create({"metadata": {"name": "sc"}, "spec": {}})

    async def written() -> bool:
        spec = msgspec.to_builtins((await profiles.get(name="sc")).spec)
        return spec == {"cloneStrategy": "snapshot", "claimPropertySets": [FILES]}

    await until(written)
    assert msgspec.to_builtins((await cdis.get(name="cdi")).spec) == overhead(sc="0.85")
    await management.stop()
