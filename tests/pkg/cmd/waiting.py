"""The seed's namespace with a migration that waits, on a scripted server."""

from __future__ import annotations

from typing import Any

from pkg.api import registry
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from tests.pkg.cmd.rig import ThreadedServer
from tests.scripted_server import (
    LIST,
    PATCH,
    POST,
    WATCH,
    body,
    hang,
    listing,
    raw,
    watch,
)

QUOTAS = registry.RESOURCE_QUOTAS.path()
NAMESPACES = registry.NAMESPACES.path()
INSTANCES = VIRTUAL_MACHINE_INSTANCES.path()
MIGRATIONS = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.path()
QUOTA = registry.RESOURCE_QUOTAS.path("ns1", "default-abc")
EVENTS = registry.EVENTS.path("ns1")
DEFAULT = "resourcequota.management.cattle.io/default-resource-quota"


def has(server: ThreadedServer, path: str, *objects: dict[str, Any], version: str = "10") -> None:
    """The kind is installed, with these objects, and nothing happens to them."""
    server.server.always(LIST, path, listing(objects, version))
    server.server.always(WATCH, path, watch(hang()))


def namespace(annotation: str) -> dict[str, Any]:
    annotations = {"field.cattle.io/resourceQuota": annotation}
    return {"metadata": {"name": "ns1", "uid": "uid-ns1", "resourceVersion": "5", "annotations": annotations}}


def quota(annotations: dict[str, str] | None = None, version: str = "7") -> dict[str, Any]:
    metadata = {"name": "default-abc", "namespace": "ns1", "uid": "uid-q", "resourceVersion": version}
    return {
        "metadata": metadata | {"labels": {DEFAULT: "true"}, "annotations": annotations or {}},
        "spec": {"hard": {"limits.cpu": "3", "limits.memory": "5000Mi"}},
    }


def vmi() -> dict[str, Any]:
    resources = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}}
    domain = {"cpu": {"cores": 2}, "resources": resources}
    metadata = {"name": "vm1", "namespace": "ns1", "uid": "uid-vm1", "resourceVersion": "8"}
    return {"metadata": metadata, "spec": {"domain": domain}}


def vmim() -> dict[str, Any]:
    metadata = {"name": "m1", "namespace": "ns1", "uid": "uid-m1", "resourceVersion": "9"}
    return {"metadata": metadata, "spec": {"vmiName": "vm1"}, "status": {"phase": "Pending"}}


LIMITS = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'


def seed(server: ThreadedServer, annotation: str = LIMITS) -> None:
    """The seed's namespace with a migration that waits."""
    has(server, NAMESPACES, namespace(annotation))
    has(server, QUOTAS, quota())
    has(server, INSTANCES, vmi())
    has(server, MIGRATIONS, vmim())
    server.server.always(PATCH, QUOTA, body(quota(version="11")))
    server.server.always(PATCH, VIRTUAL_MACHINE_INSTANCES.path("ns1", "vm1"), body(vmi()))
    server.server.always(POST, EVENTS, raw(b"{}"))
