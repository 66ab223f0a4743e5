"""The CRDs are those of KubeVirt, Harvester and managed-tenant-quota as far as clients can tell."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.cluster.readiness import load_crds
from lab.cluster import CRDS as CRD_FILES
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in load_crds(CRD_FILES)}


def _version(kind: str) -> dict[str, Any]:
    versions: list[dict[str, Any]] = CRDS[kind]["spec"]["versions"]
    assert len(versions) == 1
    return versions[0]


@pytest.mark.parametrize(
    "resource",
    [
        VIRTUAL_MACHINES,
        VIRTUAL_MACHINE_INSTANCES,
        VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
        KUBEVIRTS,
        SETTINGS,
        VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS,
    ],
    ids=lambda resource: resource.kind,
)
def test_the_product_finds_its_objects_where_the_crd_puts_them(resource: registry.Resource[Any]) -> None:
    crd = CRDS[resource.kind]
    spec = crd["spec"]
    assert crd["metadata"]["name"] == f"{resource.plural}.{resource.group}"
    assert (spec["group"], spec["names"]["plural"]) == (resource.group, resource.plural)
    assert _version(resource.kind)["name"] == resource.version
    assert spec["scope"] == ("Namespaced" if resource.namespaced else "Cluster")
    assert ("status" in _version(resource.kind).get("subresources", {})) is resource.status_subresource


@pytest.mark.parametrize("kind", sorted(CRDS.keys() - {"VirtualMachineMigrationResourceQuota"}))
def test_every_field_is_preserved_in(kind: str) -> None:
    schema = _version(kind)["schema"]["openAPIV3Schema"]
    assert schema == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
