"""Pods in memory: tenants', and a VM's by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec

from pkg.api.core import Pod
from pkg.api.meta import OwnerReference
from pkg.util import constants
from tests.pkg.util.resourcequota.world import uid_of

_numbers = itertools.count(1)


def pod(
    cpu: str = "100m",
    memory: str = "10Mi",
    *,
    name: str = "",
    phase: str = "Running",
    labels: Mapping[str, str] | None = None,
    node: str = "",
) -> Pod:
    name = name or f"pod-{next(_numbers)}"
    limits = {"limits": {"cpu": cpu, "memory": memory}}
    content = {
        "metadata": {"name": name, "namespace": "ns1", "uid": f"uid-{name}", "labels": dict(labels or {})},
        "spec": {"containers": [{"name": "main", "resources": limits}], "nodeName": node},
        "status": {"phase": phase},
    }
    return msgspec.convert(content, Pod)


def launcher(
    vm: str = "vm1",
    *,
    target_of: str = "",
    node: str = "node1",
    cpu: str = "2",
    memory: str = "4Gi",
    phase: str = "Running",
) -> Pod:
    """A VM's pod; `target_of` is the uid of the migration that made it."""
    labels = {
        constants.LABEL_APP: constants.APP_VIRT_LAUNCHER,
        constants.LABEL_CREATED_BY: uid_of(vm),
        constants.LABEL_VM_NAME: vm,
    }
    if target_of:
        labels[constants.LABEL_MIGRATION_JOB_UID] = target_of
    made = pod("2", "4Gi", name=f"virt-launcher-{vm}-{node}", labels=labels, node=node, phase=phase)
    owner = OwnerReference(kind="VirtualMachineInstance", name=vm, uid=uid_of(vm), controller=True)
    metadata = msgspec.structs.replace(
        made.metadata, owner_references=[owner], creation_timestamp="2026-01-01T00:00:00Z"
    )
    return msgspec.structs.replace(made, metadata=metadata)
