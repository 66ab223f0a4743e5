"""KubeVirt's objects as caches hold them: thousands, most of them alike in all but name, uid and node.

What equal VMs and equal pods say of their devices, resources and containers is held once, and of a pod the annotations
and conditions that no decision reads are dropped. For objects that no reader has yet: they are changed in place.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from pkg.api.core import Container, ContainerStatus, Pod
from pkg.api.kubevirt import DomainSpec, VirtualMachine, VirtualMachineInstance
from pkg.util.constants import ANNOTATION_MEMORY_OVERHEAD

S = TypeVar("S")
_CONDITIONS = ("PodResizePending",)

_encode = msgspec.json.Encoder().encode
_write = msgspec.structs.force_setattr


class Slim:
    """The transforms of one process's caches, which share what they hold."""

    def __init__(self, most: int = 5000) -> None:
        """`most`: different values that are held to be shared; tenants choose how many there are."""
        self._most = most
        self._shared: dict[tuple[type, bytes], Any] = {}

    def pod(self, pod: Pod) -> Pod:
        """A quarter of a launcher pod remains."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        if meta.annotations:
            overhead = meta.annotations.get(ANNOTATION_MEMORY_OVERHEAD)
            _write(meta, "annotations", None if overhead is None else {ANNOTATION_MEMORY_OVERHEAD: overhead})
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
        """Two thirds of a VMI without disks remain."""
        _write(vmi.spec, "domain", self._held_once(DomainSpec, vmi.spec.domain))
        return vmi

    def machine(self, vm: VirtualMachine) -> VirtualMachine:
        """Half of a VM remains."""
        spec = vm.spec.template.spec
        _write(spec, "domain", self._held_once(DomainSpec, spec.domain))
        return vm

    def _held_once(self, kind: type, value: S) -> S:
        """One of `kind`, or a list of such: what reads the same and is of the same kind is the same."""
        if len(self._shared) >= self._most:
            self._shared.clear()
        held: S = self._shared.setdefault((kind, _encode(value)), value)
        return held
