"""The containers of a virt-launcher pod, with the resources that KubeVirt gives them.

Source: KubeVirt's template service (pkg/virt-controller/services: template, renderresources, serialconsolelog,
virtiofs; pkg/container-disk; pkg/network/netbinding), releases 1.1 to master, with the API server's defaulting on
top.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kubeloop.api.core import Container, PodSpec, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.compute_container import compute_resources
from pkg.util.kubevirt.overhead import is_pinned
from pkg.util.kubevirt.profiles import GATE_IMAGE_VOLUME
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Format, Quantity
from pkg.util.quotacount.limit_ranges import default_requirements
from pkg.util.resource_list import ResourceList, format_resource_list, parse_resource_list

ANNOTATION_HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
COMPUTE = "compute"
HOTPLUG_DISK = "hotplug-disk"
_KERNEL_BOOT_VOLUME = "kernel-boot-volume"
_CONTAINER_DISK = "container-disk"


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
    "guest-console-log": _Kind("guest-console-log", _of("5m", "35M"), _of("15m", "60M")),
    "container-disk-binary": _Kind(_CONTAINER_DISK, _of("10m", "1M"), _of("100m", "40M"), pinned=_of("10m", "40M")),
    "volume": _Kind(_CONTAINER_DISK, _of("1m", "1M") | _STORAGE, _of("10m", "40M")),
    "virtiofs-": _Kind("virtiofs", _of("10m", "1M"), _of("100m", "80M")),
    "hook-sidecar-": _Kind("sidecar", {}, {}, pinned=_of("200m", "64M")),
}
"""By how the names of the containers begin."""
_NO_KIND = _Kind("", {}, {})


def render_containers(
    vmi: VirtualMachineInstance, rendering: Rendering, *, overhead: int, digests_known: bool = False
) -> PodSpec:
    """The containers of the VMI's launcher pod, in KubeVirt's order: `compute` is the first.

    `overhead` is bytes, `memory_overhead`'s or an observed pod's. A migration's target differs from its source in one
    thing: the digests of the container disks' images are known. QuantityError if a quantity of the spec is none.
    """
    kubevirt, profile = rendering.kubevirt, rendering.profile
    pinned = is_pinned(vmi.spec.domain)

    def support(names: Iterable[str], restart_policy: str | None = None) -> list[Container]:
        return [_container(name, *_sized(_kind_of(name), kubevirt, pinned=pinned), restart_policy) for name in names]

    # In the format that KubeVirt's sum has: its first part, the page tables, is decimal if any.
    has_tables = parse_resource_list(vmi.spec.domain.resources.requests).get(MEMORY, ZERO)
    spelled = Quantity.of(overhead, Format.DECIMAL_SI if has_tables else Format.BINARY_SI)
    limits, requests = compute_resources(vmi, rendering, spelled)
    containers, init_containers = [_container(COMPUTE, limits, requests)], []
    log = ["guest-console-log"] if _has_console_log(vmi, kubevirt) else []
    if profile.console_log_restarts:
        init_containers += support(log, "Always")
    disks = support(_container_disks(vmi))
    if not rendering.has_gate(GATE_IMAGE_VOLUME):
        containers += disks
        init_containers += support(["container-disk-binary"] if disks else ())
        init_containers += [msgspec.structs.replace(disk, name=f"{disk.name}-init") for disk in disks]
    elif profile.image_volume_fetched and not digests_known:
        init_containers += disks
    containers += support(_virtiofs(vmi))
    if not profile.console_log_restarts:
        containers += support(log)
    containers += support(
        f"hook-sidecar-{index}" for index in range(hook_sidecar_count(vmi) + _binding_sidecar_count(vmi, kubevirt))
    )
    return PodSpec(containers=containers, init_containers=init_containers)


def attachment_container(rendering: Rendering) -> Container:
    """The container of a hotplug attachment pod."""
    kind = _Kind(HOTPLUG_DISK, _of(*rendering.profile.attachment_requests), _of("100m", "80M"))
    return _container(HOTPLUG_DISK, *_sized(kind, rendering.kubevirt))


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
        msgspec.structs.replace(each, resources=_resources(*_sized(_kind_of(each.name), kubevirt, pinned=pinned)))
        if is_sized(_kind_of(each.name).type, kubevirt)
        else each
        for each in containers
    ]


def is_sized(container_type: str, kubevirt: KubeVirtConfiguration) -> bool:
    """Whether the CR's supportContainerResources name this kind of container."""
    return container_type != "" and any(
        entry.type == container_type for entry in kubevirt.support_container_resources or ()
    )


def is_kubevirts(name: str) -> bool:
    """Whether KubeVirt gives a container this name."""
    return name == COMPUTE or _kind_of(name) is not _NO_KIND


def _kind_of(name: str) -> _Kind:
    """Of a support container; `_NO_KIND` for `compute` and what is not KubeVirt's."""
    return next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), _NO_KIND)


def _sized(kind: _Kind, kubevirt: KubeVirtConfiguration, *, pinned: bool = False) -> tuple[ResourceList, ResourceList]:
    """(limits, requests) by the defaults and the CR's supportContainerResources, of which the first that names a
    resource wins; `pinned`: requests are the limits, so that the pod keeps its Guaranteed QoS."""
    limits, requests = (kind.pinned if pinned else None) or kind.limits, kind.requests
    for entry in reversed(kubevirt.support_container_resources or ()):
        if entry.type == kind.type:
            limits, requests = limits | _given(entry.resources.limits), requests | _given(entry.resources.requests)
    return limits, requests | limits if pinned else requests


def _given(raw: RawResourceList | None) -> ResourceList:
    return {name: quantity for name, quantity in parse_resource_list(raw).items() if quantity and name in (CPU, MEMORY)}


def _container(name: str, limits: ResourceList, requests: ResourceList, restart_policy: str | None = None) -> Container:
    return Container(name=name, resources=_resources(limits, requests), restart_policy=restart_policy)


def _resources(limits: ResourceList, requests: ResourceList) -> ResourceRequirements:
    """As the API server completes them."""
    rendered = ResourceRequirements(
        limits=dict(format_resource_list(limits)), requests=dict(format_resource_list(requests))
    )
    return default_requirements(rendered)


def _has_console_log(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> bool:
    devices, options = vmi.spec.domain.devices, kubevirt.virtual_machine_options
    enabled = devices.log_serial_console
    if enabled is None:
        enabled = options is None or options.disable_serial_console_log is None
    return enabled and devices.autoattach_serial_console is not False


def _container_disks(vmi: VirtualMachineInstance) -> list[str]:
    """The names of their containers."""
    volumes = [volume.name for volume in vmi.spec.volumes or () if volume.container_disk is not None]
    names = [name for name in volumes if name != _KERNEL_BOOT_VOLUME]
    firmware = vmi.spec.domain.firmware
    if firmware and firmware.kernel_boot and firmware.kernel_boot.container is not None:
        names.append(_KERNEL_BOOT_VOLUME)
    return [f"volume{name}" for name in names]


def _virtiofs(vmi: VirtualMachineInstance) -> list[str]:
    """The names of the containers that serve file systems."""
    shared = {filesystem.name for filesystem in vmi.spec.domain.devices.filesystems or ()}
    volumes = [volume for volume in vmi.spec.volumes or () if volume.container_path is None]
    return [f"virtiofs-{volume.name}" for volume in volumes if volume.name in shared]


def hook_sidecar_count(vmi: VirtualMachineInstance) -> int:
    """How many sidecars the annotation asks for; none if it is not a list, as such a VMI never gets a pod."""
    try:
        sidecars = msgspec.json.decode(vmi.annotations.get(ANNOTATION_HOOK_SIDECARS, "[]"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return 0
    return len(sidecars) if isinstance(sidecars, list) else 0


def _binding_sidecar_count(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> int:
    """One sidecar for each network binding plugin in use that has an image."""
    bound = {i.binding.name for i in vmi.spec.domain.devices.interfaces or () if i.binding is not None}
    return sum(bool(p.sidecar_image) for name, p in kubevirt.binding_plugins.items() if name in bound)
