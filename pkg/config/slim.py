"""KubeVirt's objects as caches hold them: thousands, most of them alike in all but name, uid and node.

What equal VMs and equal pods say of their devices, resources and containers is held once, as is a word that thousands
say: a kind, a phase, a namespace, a node. Of a pod the annotations and conditions that no decision reads are dropped.
For objects that no reader has yet: they are changed in place.
"""

from __future__ import annotations

from sys import intern
from typing import Any, TypeVar

import msgspec

from kubeloop.api.core import (
    Container,
    ContainerStatus,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    Pod,
)
from kubeloop.api.meta import Object, Struct
from pkg.api.kubevirt import DomainSpec, VirtualMachine, VirtualMachineInstance
from pkg.util.constants import ANNOTATION_MEMORY_OVERHEAD, LABEL_APP, LABEL_MIGRATION_NAME, LABEL_NODE_NAME

S = TypeVar("S")
_CONDITIONS = ("PodResizePending",)
_WORDS = (LABEL_APP, LABEL_NODE_NAME)
_LONGEST_WORD = 63

_encode = msgspec.json.Encoder().encode
_write = msgspec.structs.force_setattr


class Slim:
    """The transforms of one process's caches, which share what they hold."""

    def __init__(self, most: int = 5000) -> None:
        """`most`: different values that are held to be shared; tenants choose how many there are."""
        self._most = most
        self._shared: dict[tuple[type, bytes], Any] = {}

    def pod(self, pod: Pod) -> Pod:
        """A fifth of a launcher pod remains."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        if meta.annotations:
            overhead = meta.annotations.get(ANNOTATION_MEMORY_OVERHEAD)
            kept = None if overhead is None else {ANNOTATION_MEMORY_OVERHEAD: overhead}
            _write(meta, "annotations", kept and self._held_once(dict, kept))
        _write(meta, "generate_name", None)
        _intern(spec, "node_name", "restart_policy")
        _intern(status, "phase", "qos_class")
        _intern_metadata(pod)
        if status.conditions:
            _write(status, "conditions", [c for c in status.conditions if c.type in _CONDITIONS] or None)
        for part, name, kind in (
            (spec, "containers", Container),
            (spec, "init_containers", Container),
            (status, "container_statuses", ContainerStatus),
            (status, "init_container_statuses", ContainerStatus),
        ):
            if value := getattr(part, name):
                _write(part, name, self._held_once(kind, value))
        return pod

    def instance(self, vmi: VirtualMachineInstance) -> VirtualMachineInstance:
        """Half of a VMI without disks remains."""
        _intern(vmi.status, "phase", "node_name")
        for condition in vmi.status.conditions or ():
            _intern(condition, "type", "status")
        if vmi.metadata.finalizers:
            _write(vmi.metadata, "finalizers", self._held_once(list, vmi.metadata.finalizers))
        _intern_metadata(vmi)
        _write(vmi.spec, "domain", self._held_once(DomainSpec, vmi.spec.domain))
        return vmi

    def claim(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """A fifth of a claim remains: its name, times, sizes and class."""
        migration = claim.labels.get(LABEL_MIGRATION_NAME)
        for name in ("annotations", "labels", "finalizers", "owner_references", "generate_name"):
            _write(claim.metadata, name, None)
        if migration is not None:
            _write(claim.metadata, "labels", {LABEL_MIGRATION_NAME: migration})
        _intern_metadata(claim)
        _write(claim, "spec", self._held_once(PersistentVolumeClaimSpec, claim.spec))
        _write(claim, "status", self._held_once(PersistentVolumeClaimStatus, claim.status))
        return claim

    def machine(self, vm: VirtualMachine) -> VirtualMachine:
        """A quarter of a VM remains."""
        _intern(vm.spec, "run_strategy")
        _intern(vm.status, "printable_status")
        _intern_metadata(vm)
        spec = vm.spec.template.spec
        _write(spec, "domain", self._held_once(DomainSpec, spec.domain))
        return vm

    def _held_once(self, kind: type, value: S) -> S:
        """One of `kind`, or a list of such: what reads the same and is of the same kind is the same."""
        if len(self._shared) >= self._most:
            self._shared.clear()
        held: S = self._shared.setdefault((kind, _encode(value)), value)
        return held


def _intern_metadata(obj: Object) -> None:
    """Not names and uids: few objects say the same, and what is interned may stay for good (Python 3.12)."""
    meta = obj.metadata
    _intern(obj, "api_version", "kind")
    _intern(meta, "namespace")
    for owner in meta.owner_references or ():
        _intern(owner, "api_version", "kind")
    if meta.labels:
        labels = {name: _word(text) if name in _WORDS else text for name, text in meta.labels.items()}
        _write(meta, "labels", labels)


def _intern(part: Struct, *names: str) -> None:
    for name in names:
        if text := getattr(part, name):
            _write(part, name, _word(text))


def _word(text: str) -> str:
    """Interned, unless it is too long for a word: a tenant may write anything there."""
    return intern(text) if len(text) <= _LONGEST_WORD else text
