"""The seed's namespace with a migration that waits, on a scripted server."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.api.meta import Object
from kubeloop.testing.scripted_server import LIST, PATCH, POST, WATCH, body, listing, raw, watch
from kubeloop.testing.scripted_steps import hang
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from tests import objects as builders
from tests.pkg.cmd.rig import ThreadedServer

QUOTAS = registry.RESOURCE_QUOTAS.path()
NAMESPACES = registry.NAMESPACES.path()
INSTANCES = VIRTUAL_MACHINE_INSTANCES.path()
MIGRATIONS = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.path()
QUOTA = registry.RESOURCE_QUOTAS.path("ns1", "default-abc")
EVENTS = registry.EVENTS.path("ns1")


def has(server: ThreadedServer, path: str, *objects: dict[str, Any], version: str = "10") -> None:
    """The kind is installed, with these objects, and nothing happens to them."""
    server.server.always(LIST, path, listing(objects, version))
    server.server.always(WATCH, path, watch(hang()))


def quota(version: str = "7") -> dict[str, Any]:
    return built(builders.quota(version=version))


def built(obj: Object) -> dict[str, Any]:
    """Returns the object as JSON has it."""
    content: dict[str, Any] = msgspec.to_builtins(obj)
    content["metadata"].setdefault("resourceVersion", "9")
    return content


def seed(server: ThreadedServer) -> None:
    """The seed's namespace with a migration that waits."""
    vmi = built(builders.vmi())
    has(server, NAMESPACES, built(builders.annotated_namespace()))
    has(server, QUOTAS, quota())
    has(server, INSTANCES, vmi)
    has(server, MIGRATIONS, built(builders.vmim(name="m1")))
    server.server.always(PATCH, QUOTA, body(quota(version="11")))
    server.server.always(PATCH, VIRTUAL_MACHINE_INSTANCES.path("ns1", "vm1"), body(vmi))
    server.server.always(POST, EVENTS, raw(b"{}"))
