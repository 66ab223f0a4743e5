"""A virt-launcher pod: its containers with the resources that KubeVirt gives them.

Source: KubeVirt's template service (pkg/virt-controller/services: template, renderresources, serialconsolelog,
virtiofs; pkg/container-disk; pkg/network/netbinding), releases 1.1 to master, with what virt-api's webhook of pods
(virt-launcher-pod-mutator, 1.8) and the API server's defaulting add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import structs

from kubeloop.api.core import Container, Pod, PodSpec, ResourceRequirements
from kubeloop.api.meta import Object, ObjectMeta, RawResourceList
from kubeloop.api.quantity import ZERO, Format, Quantity
from kubeloop.api.resource_list import ResourceList, format_resource_list, parse_resource_list
from pkg.api.kubevirt import (
    KubeVirtConfiguration,
    Present,
    TemplateMeta,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceSpec,
)
from pkg.util import constants
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.compute_container import ANNOTATION_EVEN_PARITY, COMPUTE, compute_resources
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.overhead import is_pinned, is_resized, overhead_of
from pkg.util.kubevirt.profiles import GATE_IMAGE_VOLUME
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.pod_resources import apply_limit_ranges, default_requirements

ANNOTATION_HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
MAX_SIDECARS = 256
"""As many as KubeVirt lets a VMI have of disks, volumes or networks; of sidecars it names no limit."""
_SIDECARS = msgspec.json.Decoder(Annotated[list[Present | None], msgspec.Meta(max_length=MAX_SIDECARS)] | None)
HOTPLUG_DISK = "hotplug-disk"
_KERNEL_BOOT_VOLUME = "kernel-boot-volume"
_CONTAINER_DISK = "container-disk"
_CONSOLE_LOG, _DISK_BINARY, _DISK, _VIRTIOFS, _SIDECAR = (
    "guest-console-log",
    "container-disk-binary",
    "volume",
    "virtiofs-",
    "hook-sidecar-",
)
"""How the names of support containers begin, by kind."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of support container: the type by which the CR sizes it, and what it gets by default."""

    type: str
    requests: ResourceList
    limits: ResourceList
    pinned: ResourceList | None = None
    """Its limits in a pod of Guaranteed QoS, if others."""


def _of(cpu: str, memory: str) -> ResourceList:
    return {CPU: Quantity.parse(cpu), MEMORY: Quantity.parse(memory)}


_STORAGE = {"ephemeral-storage": Quantity.parse("50M")}
_KINDS = {
    _CONSOLE_LOG: _Kind(_CONSOLE_LOG, _of("5m", "35M"), _of("15m", "60M")),
    _DISK_BINARY: _Kind(_CONTAINER_DISK, _of("10m", "1M"), _of("100m", "40M"), pinned=_of("10m", "40M")),
    _DISK: _Kind(_CONTAINER_DISK, _of("1m", "1M") | _STORAGE, _of("10m", "40M")),
    _VIRTIOFS: _Kind("virtiofs", _of("10m", "1M"), _of("100m", "80M")),
    _SIDECAR: _Kind("sidecar", {}, {}, pinned=_of("200m", "64M")),
}
_NO_KIND = _Kind("", {}, {})


def rendered_pod(vmi: VirtualMachineInstance, rendering: Rendering, overhead: int | None = None) -> Pod:
    """A migration's target as KubeVirt would render it and the API server would complete it, now or with another
    overhead (bytes)."""
    overhead = overhead_of(vmi, rendering) if overhead is None else overhead
    spec = render_containers(vmi, rendering, overhead=overhead, digests_known=True)
    priority_class_name = vmi.spec.priority_class_name
    spec = structs.replace(spec, overhead=rendering.pod_overhead or None, priority_class_name=priority_class_name)
    return apply_limit_ranges(Pod(spec=spec), rendering.limit_ranges)


def attachment_pod(vmi: VirtualMachineInstance, rendering: Rendering) -> Pod:
    """The pod of hotplugged volumes, likewise."""
    spec = PodSpec(containers=[attachment_container(rendering)], priority_class_name=vmi.spec.priority_class_name)
    return apply_limit_ranges(Pod(spec=spec), rendering.limit_ranges)


def render_containers(
    vmi: VirtualMachineInstance, rendering: Rendering, *, overhead: int, digests_known: bool = False
) -> PodSpec:
    """The containers of the VMI's launcher pod, in KubeVirt's order: `compute` is the first.

    `overhead` is bytes, `overhead_of`'s or an observed pod's. A migration's target differs from its source in one
    thing: the digests of the container disks' images are known. QuantityError if a quantity of the spec is none.
    """
    profile, support = rendering.profile, _support_containers(vmi, rendering)
    # In the format that KubeVirt's sum has: its first part, the page tables, is decimal if any.
    has_tables = parse_resource_list(vmi.spec.domain.resources.requests).get(MEMORY, ZERO)
    spelled = Quantity.of(overhead, Format.DECIMAL_SI if has_tables else Format.BINARY_SI)
    limits, requests = map(format_resource_list, compute_resources(vmi, rendering, spelled))
    containers = [Container(name=COMPUTE, resources=default_requirements(limits, requests))]
    log, disks, init_containers = support[_CONSOLE_LOG], support[_DISK], list[Container]()
    if profile.console_log_restarts:
        init_containers += [structs.replace(each, restart_policy="Always") for each in log]
    if disks and not rendering.has_gate(GATE_IMAGE_VOLUME):
        containers += disks
        init_containers += support[_DISK_BINARY]
        init_containers += [structs.replace(disk, name=f"{disk.name}-init") for disk in disks]
    elif profile.image_volume_fetched and not digests_known:
        init_containers += disks
    containers += support[_VIRTIOFS]
    if not profile.console_log_restarts:
        containers += log
    return PodSpec(containers=[*containers, *support[_SIDECAR]], init_containers=init_containers)


def attachment_container(rendering: Rendering) -> Container:
    """The container of a hotplug attachment pod."""
    kind = _Kind(HOTPLUG_DISK, _of(*rendering.profile.attachment_requests), _of("100m", "80M"))
    return Container(name=HOTPLUG_DISK, resources=_sized(kind, rendering.kubevirt))


def todays_containers(
    containers: Iterable[Container], vmi: VirtualMachineInstance, rendering: Rendering
) -> list[Container]:
    """The containers of a source pod, or its init containers, as its target will have them, by what the CR says now.

    Support containers have the resources that the CR sizes their kind with; where it says nothing, the pod tells more
    than the defaults, which move between releases. Container disks that are image volumes need no container once the
    images' digests are known.
    """
    kubevirt, pinned = rendering.kubevirt, is_pinned(vmi.spec.domain)
    if rendering.has_gate(GATE_IMAGE_VOLUME):
        containers = [each for each in containers if _kind_of(each.name).type != _CONTAINER_DISK]
    return [
        structs.replace(each, resources=_sized(_kind_of(each.name), kubevirt, pinned=pinned))
        if is_sized(_kind_of(each.name).type, kubevirt)
        else each
        for each in containers
    ]


def is_sized(container_type: str, kubevirt: KubeVirtConfiguration) -> bool:
    """Whether the CR's supportContainerResources name this kind of container."""
    sized = kubevirt.support_container_resources or ()
    return container_type != "" and any(entry.type == container_type for entry in sized)


def is_kubevirts(name: str) -> bool:
    """Whether KubeVirt gives a container this name."""
    return name == COMPUTE or _kind_of(name) is not _NO_KIND


def _kind_of(name: str) -> _Kind:
    """Of a support container; `_NO_KIND` for `compute` and what is not KubeVirt's."""
    return next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), _NO_KIND)


def _sized(kind: _Kind, kubevirt: KubeVirtConfiguration, *, pinned: bool = False) -> ResourceRequirements:
    """By the defaults and the CR's supportContainerResources, of which the first that names a resource wins; `pinned`:
    requests are the limits, so that the pod keeps its Guaranteed QoS."""
    limits, requests = (kind.pinned if pinned else None) or kind.limits, kind.requests
    for entry in reversed(kubevirt.support_container_resources or ()):
        if entry.type == kind.type:
            limits, requests = limits | _given(entry.resources.limits), requests | _given(entry.resources.requests)
    requests = requests | limits if pinned else requests
    return default_requirements(format_resource_list(limits), format_resource_list(requests))


def _given(raw: RawResourceList | None) -> ResourceList:
    return {name: quantity for name, quantity in parse_resource_list(raw).items() if quantity and name in (CPU, MEMORY)}


def _support_containers(vmi: VirtualMachineInstance, rendering: Rendering) -> Mapping[str, list[Container]]:
    """Those that the VMI needs, by kind."""
    kubevirt, pinned = rendering.kubevirt, is_pinned(vmi.spec.domain)
    devices, options, volumes = vmi.spec.domain.devices, kubevirt.virtual_machine_options, vmi.spec.volumes or ()
    logs = devices.log_serial_console
    if logs is None:
        logs = options is None or options.disable_serial_console_log is None
    disks = [
        volume.name for volume in volumes if volume.container_disk is not None and volume.name != _KERNEL_BOOT_VOLUME
    ]
    firmware = vmi.spec.domain.firmware
    if firmware and firmware.kernel_boot and firmware.kernel_boot.container is not None:
        disks.append(_KERNEL_BOOT_VOLUME)
    shared = {filesystem.name for filesystem in devices.filesystems or ()}
    # A path of the compute container is served by a container that virt-api's webhook puts into the pod; from where it
    # is mounted is not read here.
    paths = {volume.name: volume.container_path for volume in volumes}
    served = [name for name, path in paths.items() if name in shared and (path is None or path.read_only)]
    bound = {interface.binding.name for interface in devices.interfaces or () if interface.binding is not None}
    plugins = [plugin for name, plugin in kubevirt.binding_plugins.items() if name in bound and plugin.sidecar_image]
    names = {
        _CONSOLE_LOG: [_CONSOLE_LOG] if logs and devices.autoattach_serial_console is not False else [],
        _DISK_BINARY: [_DISK_BINARY] if disks else [],
        _DISK: [_DISK + name for name in disks],
        _VIRTIOFS: [_VIRTIOFS + name for name in served],
        _SIDECAR: [f"{_SIDECAR}{index}" for index in range(hook_sidecar_count(vmi) + len(plugins))],
    }
    sized = {kind: _sized(_KINDS[kind], kubevirt, pinned=pinned) for kind, of_kind in names.items() if of_kind}
    return {kind: [Container(name=name, resources=sized[kind]) for name in of_kind] for kind, of_kind in names.items()}


def hook_sidecar_count(metadata: Object | ObjectMeta | TemplateMeta) -> int:
    """How many sidecars a VMI's annotation asks for. None if it is not a list of objects, as such a VMI never gets a
    pod, nor if it has more than MAX_SIDECARS: a tenant may rewrite it at any time, and its length is work here."""
    annotations = metadata.annotations or {}
    try:
        return len(_SIDECARS.decode(annotations.get(ANNOTATION_HOOK_SIDECARS, "[]")) or ())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return 0


# ---- what is read of a VMI -----------------------------------------------------------------------------------


class RenderedFrom(NamedTuple):
    """All that a rendering reads of a VMI."""

    outdated: bool
    resized: bool
    hotplugged: bool
    sidecars: int
    even_parity: bool
    spec: VirtualMachineInstanceSpec


def rendered_from(vmi: VirtualMachineInstance) -> RenderedFrom:
    return RenderedFrom(
        constants.LABEL_OUTDATED_LAUNCHER in vmi.labels,
        is_resized(vmi),
        has_hotplugged_volumes(vmi),
        hook_sidecar_count(vmi),
        ANNOTATION_EVEN_PARITY in vmi.annotations,
        vmi.spec,
    )


def instance_of(machine: VirtualMachine) -> VirtualMachineInstance:
    """What KubeVirt would make of a VM when it starts."""
    template = machine.spec.template
    labels, annotations = template.metadata.labels, template.metadata.annotations
    metadata = ObjectMeta(name=machine.name, namespace=machine.namespace, labels=labels, annotations=annotations)
    return VirtualMachineInstance(metadata=metadata, spec=template.spec)


def has_hotplugged_volumes(vmi: VirtualMachineInstance) -> bool:
    """Whether the VMI needs an attachment pod on the target: also while a volume is unplugged or memory dumped, when
    only its status says so. Source: KubeVirt pkg/controller VMIHasHotplugVolumes."""
    if any(volume.hotplug_volume is not None for volume in trusted_status(vmi).volume_status or ()):
        return True
    sources = [s for v in vmi.spec.volumes or () for s in (v.persistent_volume_claim, v.data_volume)]
    return any(source is not None and source.hotpluggable for source in sources)
