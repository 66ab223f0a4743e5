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
_MOST = 5000
"""Different values that are held to be shared; tenants choose how many there are."""

_encode = msgspec.json.Encoder().encode
_write = msgspec.structs.force_setattr
_shared: dict[tuple[type, bytes], Any] = {}


def slim_pod(pod: Pod) -> Pod:
    """A quarter of a launcher pod remains."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if meta.annotations:
        overhead = meta.annotations.get(ANNOTATION_MEMORY_OVERHEAD)
        _write(meta, "annotations", None if overhead is None else {ANNOTATION_MEMORY_OVERHEAD: overhead})
    if spec.containers:
        _write(spec, "containers", _held_once(Container, spec.containers))
    if spec.init_containers:
        _write(spec, "init_containers", _held_once(Container, spec.init_containers))
    if status.conditions:
        _write(status, "conditions", [c for c in status.conditions if c.type in _CONDITIONS] or None)
    if status.container_statuses:
        _write(status, "container_statuses", _held_once(ContainerStatus, status.container_statuses))
    if status.init_container_statuses:
        _write(status, "init_container_statuses", _held_once(ContainerStatus, status.init_container_statuses))
    return pod


def slim_instance(vmi: VirtualMachineInstance) -> VirtualMachineInstance:
    """Two thirds of a VMI without disks remain."""
    _write(vmi.spec, "domain", _held_once(DomainSpec, vmi.spec.domain))
    return vmi


def slim_machine(vm: VirtualMachine) -> VirtualMachine:
    """Half of a VM remains."""
    spec = vm.spec.template.spec
    _write(spec, "domain", _held_once(DomainSpec, spec.domain))
    return vm


def _held_once(kind: type, value: S) -> S:
    """One of `kind`, or a list of such: what reads the same and is of the same kind is the same."""
    if len(_shared) >= _MOST:
        _shared.clear()
    held: S = _shared.setdefault((kind, _encode(value)), value)
    return held
