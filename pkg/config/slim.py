"""KubeVirt's objects as caches and live lists hold them: what decisions read, and no more than KubeVirt would start.

A tenant writes these objects, up to 1.5 MiB each, and thousands of them. So of labels, annotations, owner references
and conditions the few stay that are read, a list has LONGEST elements at most, as KubeVirt validates it, and an object
that is still larger than LARGEST stands without spec and status: nothing is added for it. Most objects are alike in all
but name, uid and node: what equal ones say of devices, resources and containers is held once, two thirds of a VM.
For objects that no reader has yet: they are changed in place."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from kubeloop.api import core
from kubeloop.api.meta import Object, ObjectMeta, Struct
from pkg.api import kubevirt
from pkg.util import constants
from pkg.util.kubevirt.compute_container import ANNOTATION_EVEN_PARITY
from pkg.util.kubevirt.launcher import ANNOTATION_HOOK_SIDECARS, hook_sidecar_count
from pkg.util.quotacount.usage import ANNOTATION_STORAGE_CLASS

T = TypeVar("T", bound=Object)

LONGEST: Final = 256
"""Elements of a list, as KubeVirt's schema has it for disks, volumes, interfaces and networks; and characters of an
annotation of which only short values mean anything."""
LARGEST: Final = 128 * 1024
"""Bytes of an object as it is read: a VMI with 256 disks has 75 KiB."""
_LONGEST_SHARED: Final = 4096
"""Bytes of a value that is held for others: equal ones that are larger are rare, and a tenant may write many."""
_MOST_SHARED: Final = 5000
"""Different values that are held; tenants choose how many there are."""

_POD_LABELS = (
    constants.LABEL_APP,
    constants.LABEL_CREATED_BY,
    constants.LABEL_MIGRATION_JOB_UID,
    constants.LABEL_NODE_NAME,
    constants.LABEL_VM_NAME,
)
_TEMPLATE_ANNOTATIONS = (ANNOTATION_HOOK_SIDECARS, ANNOTATION_EVEN_PARITY)

_encode = msgspec.json.Encoder().encode
_write = force_setattr


class CacheTransforms:
    """The transforms of one process's caches and live lists, which share what they hold."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, bytes], Any] = {}

    def pod(self, pod: core.Pod) -> core.Pod:
        """A fifth of a launcher pod remains. Never less than quota counts, however large that is; but what has more
        containers than KubeVirt makes, or more resources than a VMI's, is no VM's."""
        spec, status = pod.spec, pod.status
        containers = [*spec.containers, *(spec.init_containers or ())]
        parts = [container.resources for container in containers]
        resources = [spec.overhead, *(part.limits for part in parts), *(part.requests for part in parts)]
        exceeds_launchers = len(containers) > 4 * LONGEST or any(len(part or ()) > 2 * LONGEST for part in resources)
        _keep_metadata(pod, () if exceeds_launchers else _POD_LABELS)
        # When the containers of a pod that is over ended, its condition Ready tells.
        _keep_conditions(status, ("PodResizePending", "Ready") if pod.terminal else ("PodResizePending",))
        self._share(spec, "containers", "init_containers")
        self._share(status, "container_statuses", "init_container_statuses")
        return pod

    def instance(self, vmi: kubevirt.VirtualMachineInstance) -> kubevirt.VirtualMachineInstance:
        """Half of a VMI without disks remains."""
        annotations = (*_TEMPLATE_ANNOTATIONS, *constants.VMI_STATE_ANNOTATIONS)
        _keep_metadata(vmi, (constants.LABEL_OUTDATED_LAUNCHER,), annotations)
        _keep_conditions(vmi.status, (constants.CONDITION_CPU_CHANGE, constants.CONDITION_MEMORY_CHANGE))
        self._keep_spec(vmi.spec)
        _cut_lists(vmi.status)
        return _within_size(vmi)

    def plain(self, obj: T) -> T:
        """Spec and status remain, of metadata names, times and controllers."""
        _keep_metadata(obj)
        return _within_size(obj)

    def claim(self, claim: core.PersistentVolumeClaim) -> core.PersistentVolumeClaim:
        """A fifth of a claim remains: its name, times, sizes and class."""
        _keep_metadata(claim, (), (ANNOTATION_STORAGE_CLASS,))
        _write(claim, "spec", replace(claim.spec, access_modes=None, volume_mode=None, volume_name=None))
        _write(claim, "status", replace(claim.status, capacity=None, phase=None))
        self._share(claim, "spec", "status")
        return claim

    def machine(self, vm: kubevirt.VirtualMachine) -> kubevirt.VirtualMachine:
        """A quarter of a VM remains."""
        _keep_metadata(vm, (), (constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA,))
        template = vm.spec.template
        annotations = _read_annotations(template.metadata, _TEMPLATE_ANNOTATIONS)
        _write(template, "metadata", ObjectMeta(annotations=annotations))
        self._keep_spec(template.spec)
        return _within_size(vm)

    def _keep_spec(self, spec: kubevirt.VirtualMachineInstanceSpec) -> None:
        for part in (spec, spec.domain.devices, spec.domain.resources):
            _cut_lists(part)
        self._share(spec, "domain")

    def _share(self, part: Struct, *names: str) -> None:
        """Sets these fields, of which no two types have one, to the one value that is held for all equal ones."""
        for name in names:
            value = getattr(part, name)
            if len(encoded := _encode(value)) <= _LONGEST_SHARED:
                if len(self._shared) >= _MOST_SHARED:
                    self._shared.clear()
                _write(part, name, self._shared.setdefault((name, encoded), value))


def _keep_metadata(obj: Object, labels: Collection[str] = (), annotations: Collection[str] = ()) -> None:
    meta = obj.metadata
    _write(meta, "generate_name", None)
    _write(meta, "finalizers", None)
    _write(meta, "owner_references", [owner for owner in meta.owner_references or () if owner.controller] or None)
    _write(meta, "labels", _with_keys(meta.labels, labels))
    _write(meta, "annotations", _read_annotations(meta, annotations))


def _read_annotations(metadata: ObjectMeta, keys: Collection[str]) -> dict[str, str] | None:
    """Returns the annotations that are read; of a list of sidecars its length, and that as far as it is read."""
    read_annotations = _with_keys(metadata.annotations, keys)
    if read_annotations and ANNOTATION_HOOK_SIDECARS in read_annotations:
        read_annotations[ANNOTATION_HOOK_SIDECARS] = f"[{','.join(['{}'] * hook_sidecar_count(metadata))}]"
    return read_annotations


def _with_keys(texts: Mapping[str, str] | None, keys: Collection[str]) -> dict[str, str] | None:
    return {key: texts[key][:LONGEST] for key in keys if key in texts} or None if texts else None


def _keep_conditions(status: core.PodStatus | kubevirt.VirtualMachineInstanceStatus, types: Collection[str]) -> None:
    """Keeps type, status, reason and times of conditions, without the message."""
    read = [condition for condition in status.conditions or () if condition.type in types][:LONGEST]
    conditions = [replace(condition, message=None) for condition in read]
    _write(status, "conditions", conditions or None)


def _cut_lists(part: Struct) -> None:
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, list | dict) and len(value) > LONGEST:
            first_elements = islice(value.items() if isinstance(value, dict) else value, LONGEST)
            _write(part, name, type(value)(first_elements))


def _within_size(obj: T) -> T:
    """Returns the object; without spec and status if it is larger than any that KubeVirt starts."""
    if len(_encode(obj)) <= LARGEST:
        return obj
    return type(obj)(api_version=obj.api_version, kind=obj.kind, metadata=obj.metadata)
