"""VMs, migrations and pods in memory, and the API objects that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import MigrationState, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.usage import pod_usage
from tests.objects import BOTH, launcher, machine, vmim

PHASES = ("", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded")
KINDS = ("namespace", "rendering", "migrations", "instances", "pods", "quotas")
"""What is watched, each by a watch of its own."""
MANAGED = {"headroom.harvesterhci.io/managed": "true"}
_SEED = {"cpu": {"cores": 2}, "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}}}
_BARE = {"cpu": {"cores": 1}, "resources": {"requests": {"memory": "1Gi"}}}
_DISK = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk", "hotpluggable": True}}]
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "a": {"domain": _SEED},
    "b": {"domain": _BARE},
    "plugged": {"domain": _SEED, "volumes": _DISK},
}
RENDERINGS = {ratio: Rendering(ratio, quota_limits=BOTH) for ratio in ("", "1.5", "4.5")}


@dataclass
class ModelVm:
    """A running VM; `launcher` is the uid of the pod that it lives in."""

    name: str
    uid: str
    node: str
    launcher: str = ""
    state: tuple[str, str, str] = ("", "", "")
    """status.migrationState: the migration's uid, its source pod's name and its target pod's, once handed over."""


@dataclass
class Move:
    """A VMIM. `target` is the uid of its launcher pod once that is there."""

    name: str
    vm: str
    vmi_uid: str
    created: int
    phase: str = ""
    refused: bool = False
    abort: bool = False
    ended: float | None = None
    target: str = ""
    source: str = ""
    """The name of the source pod, from Pending on."""
    handed_over: bool = False

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"


def other_pod(number: int, memory: str) -> Pod:
    """A pod that is no VM's."""
    resources = {"limits": {"cpu": "100m", "memory": memory}, "requests": {"cpu": "100m", "memory": memory}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    body = {"metadata": {"name": f"other-{number}", "uid": f"other-{number}"}, "spec": spec}
    return msgspec.convert(body, Pod)


def is_other(pod: Pod) -> bool:
    return pod.name.startswith("other-")


def side_of(pod: Pod) -> str:
    """The uid of the launcher pod on whose side a pod is."""
    owners = [owner.uid for owner in pod.metadata.owner_references or () if owner.kind == "Pod"]
    return owners[0] if owners else pod.uid


_USAGES: dict[str, ResourceList] = {}


def usage(pod: Pod) -> ResourceList:
    if pod.uid not in _USAGES:
        _USAGES[pod.uid] = pod_usage(pod)
    return _USAGES[pod.uid]


@lru_cache(maxsize=4096)
def instance_of(name: str, uid: str, node: str, state: tuple[str, str, str] = ("", "", "")) -> VirtualMachineInstance:
    vmi = machine(name=name, node=node, **SHAPES[name])
    uid_of_migration, source, target = state
    migration_state = MigrationState(migration_uid=uid_of_migration, source_pod=source, target_pod=target)
    status = msgspec.structs.replace(vmi.status, migration_state=migration_state if uid_of_migration else None)
    metadata = msgspec.structs.replace(vmi.metadata, uid=uid, resource_version="1")
    return msgspec.structs.replace(vmi, metadata=metadata, status=status)


@lru_cache(maxsize=4096)
def launcher_of(name: str, uid: str, node: str, job: str, ratio: str, number: int) -> Pod:
    move = vmim(name=job) if job else None
    stamp = f"2026-01-01T00:00:00.{number:09}Z"
    pod = launcher(instance_of(name, uid, node), node=node, migration=move, rendering=RENDERINGS[ratio], created=stamp)
    key = f"pod-{name}-{node}-{job}-{ratio}-{number}"
    metadata = msgspec.structs.replace(pod.metadata, name=f"virt-launcher-{key}", uid=key, resource_version="1")
    return msgspec.structs.replace(pod, metadata=metadata)


def migration_of(move: Move) -> VirtualMachineInstanceMigration:
    """KubeVirt names the source pod from Pending on; it copies the VMI's state when the migration is over."""
    target = move.target if move.over and move.handed_over else ""
    return _vmim(
        move.name, move.vm, move.phase, move.refused, move.abort, move.created, move.ended, move.source, target
    )


@lru_cache(maxsize=4096)
def _vmim(
    name: str,
    vm: str,
    phase: str,
    refused: bool,
    abort: bool,
    created: int,
    ended: float | None,
    source: str,
    target: str,
) -> VirtualMachineInstanceMigration:
    migration = vmim(phase, vm, refused=refused, abort=abort, name=name, created=f"2026-01-01T00:00:00.{created:09}Z")
    state = {"sourcePod": source, "targetPod": f"virt-launcher-{target}" if target else ""}
    if ended is not None:
        state["endTimestamp"] = datetime.fromtimestamp(ended, UTC).isoformat()
    state = {key: text for key, text in state.items() if text}
    if not state:
        return migration
    status = msgspec.to_builtins(migration.status) | {"migrationState": state}
    return msgspec.structs.replace(migration, status=msgspec.convert(status, type(migration.status)))
