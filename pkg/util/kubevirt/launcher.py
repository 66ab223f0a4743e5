"""A virt-launcher pod: its containers with the resources that KubeVirt gives them.

Source: KubeVirt's template service (pkg/virt-controller/services: template, renderresources, serialconsolelog,
virtiofs; pkg/container-disk; pkg/network/netbinding), releases 1.1 to master, with what virt-api's webhook of pods
(virt-launcher-pod-mutator, 1.8) and the API server's defaulting add."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import structs

from kubeloop.api.core import Container, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import Object, ObjectMeta, RawResourceList
from kubeloop.api.quantity import ZERO, Format, Quantity
from kubeloop.api.resource_list import ResourceList, format_resource_list, parse_resource_list
from pkg.api.kubevirt import KubeVirtConfiguration, Present, VirtualMachineInstance
from pkg.util import constants
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.compute_container import ANNOTATION_EVEN_PARITY, COMPUTE, compute_resources
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.overhead import is_pinned, is_resized, overhead_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.pod_resources import apply_limit_ranges, default_requirements

ANNOTATION_HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
MAX_SIDECARS = 256
"""As many as KubeVirt lets a VMI have of disks, volumes or networks; of sidecars it names no limit."""
_SIDECARS = msgspec.json.Decoder(Annotated[list[Present | None], msgspec.Meta(max_length=MAX_SIDECARS)] | None)
_KERNEL_BOOT_VOLUME = "kernel-boot-volume"
_CONTAINER_DISK = "container-disk"
# How the names of support containers begin, by kind.
_CONSOLE_LOG, _DISK_BINARY, _DISK = "guest-console-log", "container-disk-binary", "volume"
_VIRTIOFS, _SIDECAR = "virtiofs-", "hook-sidecar-"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of support container: the type by which the CR sizes it, and what it gets by default; `pinned`: its limits
    in a pod of Guaranteed QoS, if others."""

    type: str
    requests: ResourceList
    limits: ResourceList
    pinned: ResourceList | None = None


def _compute_list(cpu: str, memory: str) -> ResourceList:
    return {CPU: Quantity.parse(cpu), MEMORY: Quantity.parse(memory)}


_STORAGE = {"ephemeral-storage": Quantity.parse("50M")}
_KINDS = {
    _CONSOLE_LOG: _Kind(_CONSOLE_LOG, _compute_list("5m", "35M"), _compute_list("15m", "60M")),
    _DISK_BINARY: _Kind(
        _CONTAINER_DISK, _compute_list("10m", "1M"), _compute_list("100m", "40M"), pinned=_compute_list("10m", "40M")
    ),
    _DISK: _Kind(_CONTAINER_DISK, _compute_list("1m", "1M") | _STORAGE, _compute_list("10m", "40M")),
    _VIRTIOFS: _Kind("virtiofs", _compute_list("10m", "1M"), _compute_list("100m", "80M")),
    _SIDECAR: _Kind("sidecar", {}, {}, pinned=_compute_list("200m", "64M")),
}
_NO_KIND = _Kind("", {}, {})


def rendered_pod(vmi: VirtualMachineInstance, rendering: Rendering, overhead: int | None = None) -> Pod:
    """Returns a migration's target as KubeVirt renders it and the API server completes it; `overhead` is in bytes."""
    overhead = overhead_of(vmi, rendering) if overhead is None else overhead
    spec = render_containers(vmi, rendering, overhead=overhead, digests_known=True)
    priority_class_name = vmi.spec.priority_class_name
    spec = structs.replace(spec, overhead=rendering.pod_overhead or None, priority_class_name=priority_class_name)
    return apply_limit_ranges(Pod(spec=spec), rendering.limit_ranges)


def render_containers(
    vmi: VirtualMachineInstance, rendering: Rendering, *, overhead: int, digests_known: bool = False
) -> PodSpec:
    """Returns the containers of the VMI's launcher pod, in KubeVirt's order: `compute` is the first. `overhead` is
    bytes; `digests_known`: of the container disks' images, as for a migration's target. Raises QuantityError."""
    profile, containers_by_kind = rendering.profile, _support_containers_by_kind(vmi, rendering)
    # In the format that KubeVirt's sum has: its first part, the page tables, is decimal if any.
    page_tables = parse_resource_list(vmi.spec.domain.resources.requests).get(MEMORY, ZERO)
    overhead_quantity = Quantity.of(overhead, Format.DECIMAL_SI if page_tables else Format.BINARY_SI)
    limits, requests = map(format_resource_list, compute_resources(vmi, rendering, overhead_quantity))
    containers = [Container(name=COMPUTE, resources=default_requirements(limits, requests))]
    log_containers, disks = containers_by_kind[_CONSOLE_LOG], containers_by_kind[_DISK]
    init_containers = list[Container]()
    if profile.console_log_restarts:
        init_containers += [structs.replace(container, restart_policy="Always") for container in log_containers]
    if disks and not rendering.has_gate("ImageVolume"):
        containers += disks
        init_containers += containers_by_kind[_DISK_BINARY]
        init_containers += [structs.replace(disk, name=f"{disk.name}-init") for disk in disks]
    elif profile.image_volume_fetched and not digests_known:
        init_containers += disks
    containers += containers_by_kind[_VIRTIOFS]
    if not profile.console_log_restarts:
        containers += log_containers
    return PodSpec(containers=[*containers, *containers_by_kind[_SIDECAR]], init_containers=init_containers)


def attachment_container(rendering: Rendering) -> Container:
    """Returns the container of a hotplug attachment pod."""
    name, requests = constants.APP_HOTPLUG_DISK, _compute_list(*rendering.profile.attachment_requests)
    kind = _Kind(name, requests, limits=_compute_list("100m", "80M"))
    return Container(name=name, resources=_sized_resources(kind, rendering.kubevirt))


def current_containers(
    containers: Iterable[Container], vmi: VirtualMachineInstance, rendering: Rendering
) -> list[Container]:
    """Returns the containers of a source pod, or its init containers, as its target will have them. Support containers
    have the resources that the CR sizes their kind with; where it sets none, the pod is a better source than the
    defaults, which move between releases. Image volumes need no container once the images' digests are known."""
    kubevirt, pinned, current = rendering.kubevirt, is_pinned(vmi.spec.domain), []
    for container in containers:
        kind = _kind_of(container.name)
        if is_sized(kind.type, kubevirt):
            container = structs.replace(container, resources=_sized_resources(kind, kubevirt, pinned=pinned))
        if kind.type != _CONTAINER_DISK or not rendering.has_gate("ImageVolume"):
            current.append(container)
    return current


def is_sized(container_type: str, kubevirt: KubeVirtConfiguration) -> bool:
    """Reports whether the CR's supportContainerResources name this kind of container."""
    return container_type != "" and any(e.type == container_type for e in kubevirt.support_container_resources or ())


def foreign_containers(containers: Iterable[Container] | None) -> list[Container]:
    """Returns the containers whose names are not KubeVirt's."""
    return [c for c in containers or () if c.name != COMPUTE and _kind_of(c.name) is _NO_KIND]


def _kind_of(name: str) -> _Kind:
    return next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), _NO_KIND)


def _sized_resources(kind: _Kind, kubevirt: KubeVirtConfiguration, *, pinned: bool = False) -> ResourceRequirements:
    """Returns a kind's resources by the defaults and the CR's supportContainerResources, of which the first that names
    a resource wins; `pinned`: requests are the limits, so that the pod keeps its Guaranteed QoS."""
    limits, requests = (kind.pinned if pinned else None) or kind.limits, kind.requests
    for entry in reversed(kubevirt.support_container_resources or ()):
        if entry.type == kind.type:
            limits = limits | _set_amounts(entry.resources.limits)
            requests = requests | _set_amounts(entry.resources.requests)
    requests = requests | limits if pinned else requests
    return default_requirements(format_resource_list(limits), format_resource_list(requests))


def _set_amounts(raw: RawResourceList | None) -> ResourceList:
    return {name: quantity for name, quantity in parse_resource_list(raw).items() if quantity and name in (CPU, MEMORY)}


def _support_containers_by_kind(vmi: VirtualMachineInstance, rendering: Rendering) -> Mapping[str, list[Container]]:
    kubevirt, pinned = rendering.kubevirt, is_pinned(vmi.spec.domain)
    devices, volumes = vmi.spec.domain.devices, vmi.spec.volumes or ()
    by_default = kubevirt.virtual_machine_options.disable_serial_console_log is None
    has_console_log = by_default if devices.log_serial_console is None else devices.log_serial_console
    disks = [volume.name for volume in volumes if volume.container_disk and volume.name != _KERNEL_BOOT_VOLUME]
    if vmi.spec.domain.firmware.kernel_boot.container is not None:
        disks.append(_KERNEL_BOOT_VOLUME)
    filesystem_names = {filesystem.name for filesystem in devices.filesystems or ()}
    # A path of the compute container is served by a container that virt-api's webhook puts into the pod; from where it
    # is mounted is not read here.
    paths = {volume.name: volume.container_path for volume in volumes if volume.name in filesystem_names}
    served_names = [name for name, path in paths.items() if path is None or path.read_only]
    sidecars = hook_sidecar_count(vmi) + sum(plugin.sidecar_image != "" for plugin in kubevirt.bindings_of(vmi.spec))
    names = {
        _CONSOLE_LOG: [_CONSOLE_LOG] if has_console_log and devices.autoattach_serial_console is not False else [],
        _DISK_BINARY: [_DISK_BINARY] if disks else [],
        _DISK: [_DISK + name for name in disks],
        _VIRTIOFS: [_VIRTIOFS + name for name in served_names],
        _SIDECAR: [f"{_SIDECAR}{index}" for index in range(sidecars)],
    }
    containers_by_kind = {}
    for kind, kind_names in names.items():
        resources = _sized_resources(_KINDS[kind], kubevirt, pinned=pinned) if kind_names else ResourceRequirements()
        containers_by_kind[kind] = [Container(name=name, resources=resources) for name in kind_names]
    return containers_by_kind


def hook_sidecar_count(metadata: Object | ObjectMeta) -> int:
    """Returns how many sidecars a VMI's annotation requests. 0 if it is not a list of objects, as such a VMI never gets
    a pod, or if it has more than MAX_SIDECARS: a tenant may rewrite it at any time, and its length is work here."""
    annotations = metadata.annotations or {}
    try:
        return len(_SIDECARS.decode(annotations.get(ANNOTATION_HOOK_SIDECARS, "[]")) or ())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return 0


class RenderedFrom(NamedTuple):
    """All fields of a VMI that a rendering reads."""

    resized: bool
    hotplugged: bool
    fields: tuple[object, ...]


def rendered_from(vmi: VirtualMachineInstance) -> RenderedFrom:
    marks = constants.LABEL_OUTDATED_LAUNCHER in vmi.labels, ANNOTATION_EVEN_PARITY in vmi.annotations
    return RenderedFrom(is_resized(vmi), has_hotplugged_volumes(vmi), (marks, hook_sidecar_count(vmi), vmi.spec))


def has_hotplugged_volumes(vmi: VirtualMachineInstance) -> bool:
    """Reports whether the VMI needs an attachment pod on the target: also while a volume is unplugged or memory dumped,
    when only its status says so. Source: KubeVirt pkg/controller VMIHasHotplugVolumes."""
    sources = [source for v in vmi.spec.volumes or () for source in (v.persistent_volume_claim, v.data_volume)]
    statuses = trusted_status(vmi).volume_status or ()
    return any(status.hotplug_volume for status in statuses) or any(source.hotpluggable for source in sources)
